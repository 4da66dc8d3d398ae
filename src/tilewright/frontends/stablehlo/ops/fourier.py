"""Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....ir.core import Value
from ....ir.symbolic import Dim
from ...complex import Complex
from ...fourier import Fourier, Signal
from .table import importer

if TYPE_CHECKING:
    from ..importer import Node


def _rows(n: Node, x: Value, axis: int) -> Value:
    """A matrix whose rows go along `axis`."""
    x = n.transpose(x, [*(d for d in range(x.type.rank) if d != axis), axis])
    size: Dim = 1
    for d in x.type.shape[:-1]:
        size = size * d
    return n.reshape(x, (size, x.type.shape[-1]))  # type: ignore[no-any-return]


def _back(n: Node, y: Value, shape: list[Dim], axis: int) -> Value:
    """The reverse of `_rows`; `shape` is that of the result."""
    order = [*(d for d in range(len(shape)) if d != axis), axis]
    y = n.reshape(y, [shape[d] for d in order])
    return n.transpose(y, [order.index(d) for d in range(len(shape))])  # type: ignore[no-any-return]


@importer("fft", complex="whole")
def _fft(n: Node) -> Any:
    """Along the last dimensions; a transform from or to real numbers is so along the last one."""
    x, fourier = n.inputs[0], Fourier(n.emit)
    kind, lengths = n.word("fft_type"), n.ints("fft_length")
    shape = list(x.type.shape)
    first = len(shape) - len(lengths)
    inverse = kind in ("IFFT", "IRFFT")
    signal: Signal = (x.real, x.imaginary) if isinstance(x, Complex) else (x, None)

    def along(signal: Signal, axis: int, count: Dim) -> Signal:
        length = lengths[axis - first]
        rows = tuple(None if p is None else _rows(n, p, axis) for p in signal)
        shape[axis] = count
        if kind == "IRFFT" and axis == len(shape) - 1:
            assert rows[0] is not None
            return _back(n, fourier.real_inverse((rows[0], rows[1]), length), shape, axis), None
        assert rows[0] is not None
        y = fourier.transform((rows[0], rows[1]), length, 1 if inverse else -1, count)
        real, imaginary = (_back(n, fourier.scaled(p, length) if inverse else p, shape, axis) for p in y)
        return real, imaginary

    last = len(shape) - 1
    if kind == "RFFT":
        signal = along(signal, last, lengths[-1] // 2 + 1)
    for axis in range(first, last + (kind in ("FFT", "IFFT"))):
        signal = along(signal, axis, lengths[axis - first])
    if kind == "IRFFT":
        return along(signal, last, lengths[-1])[0]
    assert signal[1] is not None
    return Complex(signal[0], signal[1])
