"""The rule of sorting: rows over the threads."""

from __future__ import annotations

from ....dialects import simd
from ....schedule import Schedule
from ....schedule.tree import enclosing_loops
from .common import fuse_all, set_grain

POINT = 16
"""Cost of an element in cheap operations."""


def order(s: Schedule) -> None:
    """One `simd.order` in a nest of loops over the rows."""
    (op,) = [x for x in s.kernel.walk() if isinstance(x, simd.Order)]
    around = enclosing_loops(op)
    if around:
        s.parallel(fuse_all(s, [f.iv.name for f in around]))
        set_grain(s, POINT * op.n)


__all__ = ["order"]
