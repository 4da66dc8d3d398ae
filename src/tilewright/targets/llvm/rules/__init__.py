"""Default schedules for machines with vectors and caches (CPUs, wasm): one rule for each kind of group, made of schedule primitives only.

- contraction: the result is cut into tiles that are spread over the threads; a tile is computed by one `simd.brgemm`, written to where
  the result goes, and the epilogue runs over it while it is in the first-level cache;
- rows: all members run row by row; rows are spread over the threads, members vectorized along their most contiguous axis;
- a single reduction keeps its most contiguous axis innermost, or outermost of the reduce loops when that axis is not reduced;
- prefix: one pass along the axis of a running combination;
- recurrence: columns in lanes and over the threads, each through all steps;
- order: rows over the threads;
- scatter: lanes and threads along axes on which no two points meet, else serial;
- plain, and kinds not known here: no thread shares work, innermost loops are vectorized.
"""

from __future__ import annotations

from ....dialects import loop
from ....schedule import Schedule
from .chain import chain
from .common import Machine
from .contraction import contraction
from .order import order
from .prefix import prefix
from .recurrence import recurrence
from .rows import rows as row_group
from .rows import serial
from .scatter import scatter


def schedule_kernel(kernel: loop.Kernel, kind: str, rows: int, machine: Machine) -> Schedule:
    """The default schedule of a kernel made from a group of `kind` whose members share `rows` leading axes."""
    s = Schedule(kernel)
    if kind == "contraction":
        contraction(s, machine)
    elif kind == "chain":
        chain(s, machine)
    elif kind == "rows":
        row_group(s, rows, machine)
    elif kind == "prefix":
        prefix(s)
    elif kind == "recurrence":
        recurrence(s)
    elif kind == "order":
        order(s)
    elif kind == "scatter":
        scatter(s, machine)
    else:
        serial(s)
    return s


__all__ = ["Machine", "schedule_kernel"]
