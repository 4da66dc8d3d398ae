"""Resizing of images: along each dimension a product with a matrix of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import f64
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from .special import Real


def _triangle(x: Real) -> Real:
    return (1.0 - x("abs")).max(0.0)


def _cubic(x: Real) -> Real:
    """Return Keys' cubic kernel with a = -1/2."""
    a = x("abs")
    near = (1.5 * a - 2.5) * a * a + 1.0
    far = ((-0.5 * a + 2.5) * a - 4.0) * a + 2.0
    return (a < 1.0).select(near, (a < 2.0).select(far, 0.0))


def _weights(
    n: Node,
    size: Dim,
    out: Dim,
    aligned: bool,
    factor: float | None,
    kernel: Callable[[Real], Real],
    reach: float,
) -> Real:
    """Return the weights (out, size) of the elements in each result: `kernel`, widened to the distance of
    results, and cut at the borders.
    """
    have, wanted = Real(n, n.scalar(size, f64)), Real(n, n.scalar(out, f64))
    if aligned:
        step = (have - 1.0) / (wanted - 1.0).max(1.0) * (wanted > 1.0).select(1.0, 0.0)
    else:
        step = have / wanted if factor is None or factor <= 0 else have * 0.0 + 1.0 / factor
    width = step.max(1.0)
    rows, columns = (
        Real(n, n.cast(n.emit(g.Iota(shape=shape, axis=a)), f64))
        for a, shape in ((0, (out, 1)), (1, (1, size)))
    )
    center = step * (rows + 0.5)
    first = (center - width * reach + 0.5)("trunc").max(0.0)
    last = (center + width * reach + 0.5)("trunc").min(have)
    inside = Real(n, n.unary("not", (columns < first).value)) & (columns < last)
    shares = inside.select(kernel((columns - center + 0.5) / width), 0.0)
    return shares / Real(n, n.emit(g.ReduceSum(shares.value, axes=(1,), keepdims=True)))


def _antialiased(name: str, kernel: Callable[[Real], Real], reach: float) -> None:
    @importer(f"aten.{name}.default")
    def resized(
        n: Node,
        x: Value,
        size: Sequence[Dim],
        aligned: bool,
        high: float | None = None,
        wide: float | None = None,
    ) -> Value:
        dtype = x.type.dtype
        if not dtype.is_float:
            raise Unsupported(
                "antialiased resizing of integers; convert them to float32 before and round after"
            )
        for axis, (out, factor) in enumerate(zip(size, (high, wide), strict=True), 2):
            shares = n.cast(_weights(n, x.type.shape[axis], out, aligned, factor, kernel, reach).value, dtype)
            x = n.emit(g.Matmul(x, n.transpose(shares, (1, 0))) if axis == 3 else g.Matmul(shares, x))
        return x


_antialiased("_upsample_bilinear2d_aa", _triangle, 1.0)
_antialiased("_upsample_bicubic2d_aa", _cubic, 2.0)
