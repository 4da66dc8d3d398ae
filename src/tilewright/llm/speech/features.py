"""The log-mel spectrogram of Whisper (Radford et al., 2022): 100 frames a second, each of 25 ms.

A library computes the logarithms (`log_mel`); what depends on the whole recording is left to its caller:
`hops`, which cuts it, and `normalized`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects import graph as g
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.operands import apply, value_of
from ...ir import notes

RATE = 16000
"""Samples a second."""
HOP = 160
"""Samples between the beginnings of frames."""
WINDOW = 400
"""Samples of a frame: two hops and a half."""
BEHIND = 2
"""Hops that begin after a frame and belong to it."""

Floats = np.ndarray[Any, np.dtype[np.float32]]


def mel_filters(count: int) -> Floats:
    """The weights of `count` bands of frequencies, float32 [201, count] (Slaney, "Auditory Toolbox", 1998).

    Bands are triangles of area 1 whose corners have equal distances on the mel scale, which is linear up to
    1 kHz and logarithmic above, from 0 to 8 kHz.
    """
    linear, above = 200 / 3, np.log(6.4) / 27
    top = 1000 / linear + np.log(RATE / 2 / 1000) / above
    mels = np.linspace(0, top, count + 2)
    corners = np.where(mels < 15, mels * linear, 1000 * np.exp((mels - 15) * above))
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rising = (bins[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins[:, None]) / (corners[2:] - corners[1:-1])
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * 2 / (corners[2:] - corners[:-2])).astype(np.float32)


def _product(x: Tensor, matrix: Floats) -> Tensor:
    """``x @ matrix`` in float32 whatever the precision of the library: quiet bands lie 8 powers of ten below
    loud ones.
    """
    y = apply(g.Einsum, [x, tnp.asarray(matrix)], equation="nk,km->nm")
    if y.is_traced and (op := value_of(y).defining_op) is not None:
        notes.FACTORS.set(op, "f32")
    return y


def log_mel(hops: Tensor, mels: int) -> Tensor:
    """The decimal logarithms, at least -10, of the power in `mels` bands: float32 [n - 2, mels].

    Args:
        hops: Samples [n, 160], float32. Frame i begins at hop i.
        mels: The number of bands.
    """
    half = WINDOW // 2
    n = np.arange(WINDOW)
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * n / WINDOW)).astype(np.float32)
    frame = tnp.arange(hops.shape[0] - BEHIND)
    x = tnp.concatenate([hops[frame], hops[frame + 1], hops[:, : WINDOW - 2 * HOP][frame + 2]], 1) * hann
    # Cosines are equal and sines opposite at the distances i and -i from the middle: half of the products.
    angles = 2 * np.pi * (np.outer(n[: half + 1], n[: half + 1]) % WINDOW) / WINDOW
    first, last = x[:, 1:half], x[:, :half:-1]
    even = tnp.concatenate([x[:, :1], first + last, x[:, half : half + 1]], 1)
    cosine = _product(even, np.cos(angles).astype(np.float32))
    sine = _product(first - last, np.sin(angles)[1:half].astype(np.float32))
    power = _product(cosine * cosine + sine * sine, mel_filters(mels))
    result: Tensor = tnp.log10(tnp.maximum(power, 1e-10))
    return result


def hops(samples: Floats, window: int) -> Floats:
    """A recording for `log_mel`, float32 [frames + 2, 160].

    Args:
        samples: The recording [n], at least one sample, at 16 kHz.
        window: The frames of a window of the model. A shorter recording is filled up with silence.
    """
    frames = max(window, len(samples) // HOP)
    x = np.zeros(max(frames * HOP, len(samples)), np.float32)
    x[: len(samples)] = samples
    x = np.pad(x, WINDOW // 2, mode="reflect")
    size = (frames + BEHIND) * HOP
    whole = np.zeros(size, np.float32)
    whole[: min(size, len(x))] = x[:size]
    return whole.reshape(-1, HOP)


def normalized(logarithms: Floats) -> Floats:
    """The input of an encoder: logarithms [frames, mels] of a whole recording, limited to 8 below the largest
    one, and brought near -1 to 1.
    """
    lowest = logarithms.max() - np.float32(8)
    return (np.maximum(logarithms, lowest) + np.float32(4)) / np.float32(4)


__all__ = ["BEHIND", "HOP", "RATE", "hops", "log_mel", "mel_filters", "normalized"]
