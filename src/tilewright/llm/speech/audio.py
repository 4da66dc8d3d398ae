"""Reads recordings: WAV by Python's library, other formats by `soundfile`, if it is installed."""

from __future__ import annotations

import io
import wave
from importlib.util import find_spec
from math import gcd
from typing import Any

import numpy as np

from ...errors import RequestError
from .features import RATE

Floats = np.ndarray[Any, np.dtype[np.float32]]
LOWEST, HIGHEST = 4000, 384000
"""The rates, in samples a second, that are converted. A lower `LOWEST` lets files grow more."""


def read_audio(data: bytes) -> Floats:
    """Return the recording in `data`, the content of a file: float32 [n], one channel, 16 kHz, from -1 to 1.

    Raises:
        RequestError: The content is not a recording, a package that its format needs is missing, or it has no
            samples.
    """
    samples, rate = _wav(data) or _other(data)
    if not LOWEST <= rate <= HIGHEST:
        raise RequestError(f"the recording has {rate} samples a second; {LOWEST} to {HIGHEST} are supported")
    if not samples.size:
        raise RequestError("the recording has no samples")
    return resampled(samples.mean(1, dtype=np.float32), rate)


def resampled(samples: Floats, rate: int) -> Floats:
    """Return a recording [n] of `rate` samples a second with `RATE`, by a polyphase filter.

    Raises:
        RequestError: The rates differ, and scipy is not installed.
    """
    if rate == RATE:
        return samples
    if find_spec("scipy") is None:
        raise RequestError(
            f"the recording has {rate} samples a second, the model takes {RATE}: converting needs scipy "
            "(pip install scipy)"
        )
    from scipy.signal import resample_poly

    common = gcd(rate, RATE)
    converted: Floats = resample_poly(samples, RATE // common, rate // common).astype(np.float32)
    return converted


def _wav(data: bytes) -> tuple[Floats, int] | None:
    """Samples [n, channels] and rate of a WAV file of integers; None if it is something else."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        return None
    if width not in (1, 2, 3, 4):
        return None
    size = width * channels
    values = np.frombuffer(raw[: len(raw) // size * size], np.uint8).reshape(-1, channels, width)
    if width == 1:  # from 0 to 255
        return (values[..., 0].astype(np.float32) - np.float32(128)) / np.float32(128), rate
    whole = np.zeros((*values.shape[:2], 4), np.uint8)
    whole[..., 4 - width :] = values
    signed = whole.view("<i4")[..., 0]
    return signed.astype(np.float32) / np.float32(2**31), rate


def _other(data: bytes) -> tuple[Floats, int]:
    if find_spec("soundfile") is None:
        raise RequestError(
            "the recording is not a WAV file of integers; other formats need soundfile "
            "(pip install soundfile)"
        )
    import soundfile

    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        raise RequestError(f"the file is not a recording that can be read: {error}") from None
    return samples, int(rate)


__all__ = ["read_audio", "resampled"]
