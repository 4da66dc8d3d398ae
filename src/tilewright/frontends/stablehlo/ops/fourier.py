"""Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....ir.symbolic import Dim
from ...complex import Complex
from ...fourier import Fourier, Signal
from ..registry import importer

if TYPE_CHECKING:
    from ..node import Node


@importer("fft", complex="whole")
def _fft(n: Node) -> Any:
    """Transform along the last dimensions. A transform from or to real numbers uses the shorter form along
    the last one.
    """
    x, fourier = n.inputs[0], Fourier(n.emit)
    kind, lengths = n.word("fft_type"), n.ints("fft_length")
    first = x.type.rank - len(lengths)
    inverse = kind in ("IFFT", "IRFFT")
    signal: Signal = (x.real, x.imaginary) if isinstance(x, Complex) else (x, None)

    def along(signal: Signal, axis: int, count: Dim) -> Signal:
        length = lengths[axis - first]

        def transformed(rows: Signal) -> Signal:
            real, imaginary = fourier.transform(rows, length, 1 if inverse else -1, count)
            return (
                (fourier.scaled(real, length), fourier.scaled(imaginary, length))
                if inverse
                else (real, imaginary)
            )

        return fourier.along(signal, axis, transformed)

    last = x.type.rank - 1
    if kind == "RFFT":
        signal = along(signal, last, lengths[-1] // 2 + 1)
    for axis in range(first, last + (kind in ("FFT", "IFFT"))):
        signal = along(signal, axis, lengths[axis - first])
    if kind == "IRFFT":
        return fourier.along(signal, last, lambda rows: (fourier.real_inverse(rows, lengths[-1]), None))[0]
    assert signal[1] is not None
    return Complex(signal[0], signal[1])
