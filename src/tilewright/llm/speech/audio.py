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


def read_audio(data: bytes, most: int | None = None) -> Floats:
    """Return the recording in `data`, the content of a file: float32 [n], one channel, 16 kHz, from -1 to 1.

    Args:
        data: A file's content.
        most: The most samples, those of all channels, and those at 16 kHz; None: as many as fit into memory.

    Raises:
        RequestError: The content is not a recording, a package that its format needs is missing, it has no
            samples, or more than `most` or than fit into memory.
    """
    try:
        return _read(data, most)
    except RequestError:
        raise
    except MemoryError:
        raise RequestError("the recording does not fit into memory: cut it into parts") from None
    except (RuntimeError, TypeError, ValueError) as error:  # of soundfile, with those of libsndfile
        raise RequestError(f"the file is not a recording that can be read: {error}") from None


def _read(data: bytes, most: int | None) -> Floats:
    samples, rate = _wav(data, most) or _other(data, most)
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


def _check(frames: int, channels: int, rate: int, most: int | None) -> None:
    """Refuse a recording before it is decoded."""
    if not LOWEST <= rate <= HIGHEST:
        raise RequestError(f"the recording has {rate} samples a second; {LOWEST} to {HIGHEST} are supported")
    if most is not None and frames * max(channels, RATE / rate) > most:
        raise RequestError(
            f"the recording has {frames} samples in each of {channels} channels, {rate} a second; at most "
            f"{most} in all channels, and of one channel at {RATE} a second, are read: cut it into parts"
        )


def _wav(data: bytes, most: int | None) -> tuple[Floats, int] | None:
    """Samples [n, channels] and rate of a WAV file of integers; None if it is something else."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            size = width * channels
            if width not in (1, 2, 3, 4):
                return None
            # Files that were written to a pipe state more samples than they have.
            frames = min(file.getnframes(), len(data) // size)
            _check(frames, channels, rate, most)
            raw = file.readframes(frames)
    except (wave.Error, EOFError):
        return None
    values = np.frombuffer(raw[: len(raw) // size * size], np.uint8).reshape(-1, channels, width)
    if width == 1:  # from 0 to 255
        return (values[..., 0].astype(np.float32) - np.float32(128)) / np.float32(128), rate
    whole = np.zeros((*values.shape[:2], 4), np.uint8)
    whole[..., 4 - width :] = values
    signed = whole.view("<i4")[..., 0]
    return signed.astype(np.float32) / np.float32(2**31), rate


def _other(data: bytes, most: int | None) -> tuple[Floats, int]:
    if find_spec("soundfile") is None:
        raise RequestError(
            "the recording is not a WAV file of integers; other formats need soundfile "
            "(pip install soundfile)"
        )
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        _check(file.frames, file.channels, file.samplerate, most)
        return file.read(dtype="float32", always_2d=True), file.samplerate


__all__ = ["read_audio", "resampled"]
