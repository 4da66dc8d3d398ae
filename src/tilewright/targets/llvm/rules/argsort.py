"""The rule of sorting: rows are divided among the threads."""

from __future__ import annotations

from ....analysis.loop_nest import enclosing_loops
from ....dialects import simd
from ....schedule import Schedule
from .common import fuse_all, set_grain

POINT = 16
"""Cost of sorting one element, in cheap operations. A larger value gives a thread fewer rows."""


def argsort(s: Schedule, rows: int) -> None:
    """Schedule one `simd.argsort` in a nest of loops over the rows."""
    (op,) = [x for x in s.kernel.walk() if isinstance(x, simd.Argsort)]
    around = enclosing_loops(op)
    if around:
        s.parallel(fuse_all(s, [f.iv.name for f in around]))
        set_grain(s, POINT * op.n)


__all__ = ["argsort"]
