"""Loads that are contiguous along a loop inside the vector loop: square tiles transposed in registers instead
of gathers.

    for y in lanes:  for x in steps of as many:  use(a[..., y, x])

A step of x needs one element of each lane's row per iteration. The rows are loaded as vectors along x, once
per step, and the square of vectors is transposed.
"""

from __future__ import annotations

from collections.abc import Container

from ...ir.substitution import linear_in, substitute
from ...ir.symbolic import Dim, Expr, free_symbols
from .values import KernelContext, UnrolledStep


def rows_of_tile(
    g: KernelContext, tile: UnrolledStep, base: str, address: Dim, itemsize: int
) -> list[str] | None:
    """The addresses of the first elements of the lanes' rows; None if an access does not have this form.

    `address` counts elements from `base`, before loop variables are resolved.
    """
    lanes = g.lanes
    assert lanes is not None
    along = linear_in(address, tile.iv)
    if along is None or not (isinstance(along[0], int) and along[0] == 1):
        return None
    start = g.index.resolve(substitute(address, {tile.iv: tile.first}))
    across = linear_in(start, lanes.iv)
    if across is None:  # an axis that stands for several dimensions of the other tensor
        if _varying(lanes.varying, start):
            return None
        places = [substitute(start, {lanes.iv: lanes.iv + lane}) for lane in range(lanes.lanes)]
        return [g.index.pointer(base, place, itemsize) for place in places]
    if across[0] in (0, 1) or lanes.varies(across[0]) or _varying(lanes.varying, across[1]):
        return None
    pointer, stride = g.index.pointer(base, start, itemsize), g.index.value(across[0])
    return [g.e.at(pointer, g.e.mul(str(lane), stride), itemsize) for lane in range(lanes.lanes)]


def _varying(symbols: Container[Expr], e: Dim) -> bool:
    return not isinstance(e, int) and any(s in symbols for s in free_symbols(e))


def transposed(g: KernelContext, rows: list[str], element: str) -> list[str]:
    """The columns of a square of vectors of `element`: blocks of doubling size are swapped, log2(n) shuffles
    per vector.
    """
    n = len(rows)
    kind = f"<{n} x {element}>"

    def pick(a: str, b: str, numbers: list[int]) -> str:
        mask = ", ".join(f"i32 {x}" for x in numbers)
        return g.e.op(f"shufflevector {kind} {a}, {kind} {b}, <{n} x i32> <{mask}>")

    rows = list(rows)
    distance = 1
    while distance < n:
        low = [j if not j & distance else n + j - distance for j in range(n)]
        high = [j + distance if not j & distance else n + j for j in range(n)]
        for i in range(n):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = pick(a, b, low), pick(a, b, high)
        distance *= 2
    return rows


__all__ = ["rows_of_tile", "transposed"]
