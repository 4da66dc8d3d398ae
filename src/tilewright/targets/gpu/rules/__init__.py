"""Schedule rules for GPUs: one for each kind of group.

- contraction: a block computes a tile of the result from tiles of both factors in shared memory.
- chain: attention; a block takes some rows of the queries through all keys, a tile of keys at a time.
- rows: elementwise computations have a thread for a few neighbouring elements; row groups (a softmax, a layer
  norm) have a warp or a block for each row; reductions along contiguous memory too, others a thread for each
  result.
- cumulative: a thread for each line of the running combination.
- recurrence: a block or a thread for each column, which runs through all steps.
- scatter: threads run along axes on which no two points meet; points that may meet run in order.
- argsort: a block sorts a row in shared memory.
- plain, and kinds without a rule: a thread for each iteration of the loops that all statements share.

The rule of the plain kind fits every kernel.
"""

from __future__ import annotations

from ....dialects.tensor import GroupKind
from ....schedule.rules import ScheduleRule
from .chain import chain
from .contraction import contraction
from .cumulative import cumulative
from .plain import plain
from .recurrence import recurrence
from .rows import rows
from .scatter import scatter
from .sorting import argsort

RULES: dict[str, ScheduleRule] = {
    GroupKind.CONTRACTION: contraction,
    GroupKind.CHAIN: chain,
    GroupKind.ROWS: rows,
    GroupKind.CUMULATIVE: cumulative,
    GroupKind.RECURRENCE: recurrence,
    GroupKind.SCATTER: scatter,
    GroupKind.ARGSORT: argsort,
    GroupKind.PLAIN: plain,
}
"""The rule of each kind of group."""

__all__ = ["RULES"]
