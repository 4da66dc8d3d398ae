"""Schedule rules for devices with vectors and caches (CPUs, WebAssembly): one for each kind of group.

- contraction: the result is cut into tiles, which are divided among the threads. One `simd.brgemm` computes a
  tile, and the epilogue runs over it while it is in the first-level cache.
- chain (attention): a tile of rows passes through both contractions and the computations between them before
  the next tile.
- tiles (Winograd): a block of tiles is transformed, multiplied and transformed back before the next block.
- rows: all members run row by row. Rows are divided among the threads; each member is vectorized along its
  most contiguous axis. A single reduction keeps its most contiguous axis innermost, or outermost of the
  reduction loops if that axis is not reduced.
- cumulative: one pass along the axis of a running combination.
- recurrence: columns go to lanes and threads; each column runs through all steps.
- argsort: rows are divided among the threads.
- call: the kernel of the user's divides its own range; the rule states how much of it is worth a thread.
- scatter: lanes and threads run along axes on which no two points meet; otherwise the kernel is serial.
- plain, and unknown kinds: no threads; innermost loops are vectorized.
"""

from __future__ import annotations

from ....dialects.tensor import GroupKind
from ....schedule.rules import ScheduleRule
from .argsort import argsort
from .call import call
from .chain import chain
from .contraction import contraction
from .cumulative import cumulative
from .recurrence import recurrence
from .rows import rows, serial
from .scatter import scatter
from .tiles import tiles

RULES: dict[str, ScheduleRule] = {
    GroupKind.CONTRACTION: contraction,
    GroupKind.CHAIN: chain,
    GroupKind.TILES: tiles,
    GroupKind.ROWS: rows,
    GroupKind.CUMULATIVE: cumulative,
    GroupKind.RECURRENCE: recurrence,
    GroupKind.ARGSORT: argsort,
    GroupKind.SCATTER: scatter,
    GroupKind.CALL: call,
    GroupKind.PLAIN: serial,
}
"""The rule of each kind of group."""

__all__ = ["RULES"]
