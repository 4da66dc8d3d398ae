"""The rule of sorting: rows over the threads."""

from __future__ import annotations

from ....dialects import simd
from ....schedule import Schedule
from ....schedule.tree import enclosing_loops
from .common import fuse_all, set_grain, upper_limit

POINT = 16
"""Cost of an element in cheap operations."""


def order(s: Schedule) -> None:
    """One `simd.order` in a nest of loops over the rows."""
    (op,) = [x for x in s.kernel.walk() if isinstance(x, simd.Order)]
    around = enclosing_loops(op)
    if around:
        at = fuse_all(s, [f.iv.name for f in around])
        s.parallel(at)
        set_grain(s, at, POINT * upper_limit(op.n, 1024))


__all__ = ["order"]
