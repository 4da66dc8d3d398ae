"""Schedules: a loop kernel and the primitives that transform it, recorded as a trace that prints and replays.

Blocks and loops are named by strings (a block's `sym_name`, a loop's variable), so a trace is plain data:

    s = Schedule(kernel)
    s.split("matmul_i0", 32)  ->  ("matmul_i0_o", "matmul_i0_i")

The suffix of a loop says which primitive made it: ``_o`` and ``_i`` outer and inner loop of a split, ``_f`` a
fused loop (``fused`` if the name would be long), ``_z`` a loop that sets zeros (`decompose_reduction`).

Every primitive checks its arguments and raises `ScheduleError`, whose message names the wrong one. None
changes the kernel's results.
"""

from __future__ import annotations

from .blocks import BlockPrimitives
from .compact import BufferPrimitives
from .core import ScheduleError
from .finalize import finished
from .legality import check_lanes
from .loops import LoopPrimitives
from .matrix_atoms import AtomPrimitives
from .online_softmax import SoftmaxPrimitives
from .row_runs import RunPrimitives
from .sorting import SortingPrimitives
from .staging import StagingPrimitives
from .tensorize import TensorizePrimitives
from .tensorize_quantized import QuantizedPrimitives
from .threads import ThreadPrimitives


class Schedule(
    SoftmaxPrimitives,
    ThreadPrimitives,
    BlockPrimitives,
    LoopPrimitives,
    BufferPrimitives,
    RunPrimitives,
    TensorizePrimitives,
    QuantizedPrimitives,
    StagingPrimitives,
    SortingPrimitives,
    AtomPrimitives,
):
    """A kernel being scheduled. Every method that changes it is a primitive and is recorded in `trace`."""

    def can_vectorize(self, name: str, lanes: int = 0) -> bool:
        """Return whether the loop `name` could run in lanes if the schedule ended here.

        `vectorize` refuses a loop whose iterations depend on each other. Whether the code generator has
        lanes for all statements inside is known at the end of a schedule, which is refused if it has not.

        Raises:
            ScheduleError: There is no such loop.
        """
        self.loop(name)
        copy = self.copy()
        try:
            copy.vectorize(name, lanes)
            check_lanes(finished(copy), self.info, name)
        except ScheduleError:
            return False
        return True


__all__ = ["Schedule"]
