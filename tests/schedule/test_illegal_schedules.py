"""Each kind of illegal schedule is refused: by name, with both accesses and with iterations that show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tilewright.ir.printer import print_op
from tilewright.schedule import Schedule, ScheduleError, finalize
from tilewright.schedule.finalize import finished

from .kernels import KERNELS
from .test_primitives import check

Use = Callable[[Schedule], Any]


ILLEGAL: dict[str, tuple[str, Use, Use, str]] = {
    "threads add to one element": (
        "scalar_sum",
        lambda s: None,
        lambda s: s.parallel("b0_r0"),
        "parallel: in the nest (b0_r0), iterations of 'b0_r0' depend on each other: the accumulation "
        "into the buffer of 'b0' at [] in block 'b0' in two iterations touch one element in the "
        "iterations (b0_r0=0) and (b0_r0=1): element [], n = 3",
    ),
    "threads scatter": (
        "placed",
        lambda s: None,
        lambda s: s.parallel("map_i0"),
        "parallel: in the nest (map_i0, map_i1), iterations of 'map_i0' depend on each other: the store to "
        "out0 at [v0, map_i1] in block 'map' in two iterations touch one element in the iterations "
        "(map_i0=0, map_i1=0) and (map_i0=1, map_i1=0) if the data give both the same index",
    ),
    "a scatter in another order": (
        "placed",
        lambda s: s.split("map_i0", 2),
        lambda s: s.fission("map_i0_o"),
        "fission: in the nest (map_i0_o, map_i0_i, map_i1), iterations of 'map_i0_o' depend on each "
        "other: the store to out0",
    ),
    "a running sum on threads": (
        "running",
        lambda s: s.reorder("b0_r0", "b0_i1"),
        lambda s: s.parallel("b0_r0"),
        "parallel: in the nest (b0_r0, b0_i1), iterations of 'b0_r0' depend on each other: ",
    ),
    "a running sum before its last loop": (
        "running",
        lambda s: (s.reorder("b0_r0", "b0_i1"), s.fission("b0_i1")),
        lambda s: s.compute_at("b0", s.loops("b0_out")[-1]),
        "compute_at: loop 'b0_r0' reads what block 'b0' has summed so far",
    ),
    "steps of time in lanes": (
        "decaying",
        lambda s: None,
        lambda s: s.vectorize("step"),
        "vectorize: in the nest (column0, column2, step, b0_i1), iterations of 'step' depend on each other: ",
    ),
    "a loop that reads what the other writes later": (
        "stencil",
        lambda s: None,
        lambda s: s.fuse_loops("b0_i0", "b1_i0"),
        "fuse_loops: in the nest (b0_i0), iterations of 'b0_i0' and 'b1_i0' depend on each other: the "
        "store to the buffer of 'b0' at [b0_i0] in block 'b0' and the load of the buffer of 'b0'",
    ),
    "a sum over parts whose order changes": (
        "matmul",
        lambda s: s.decompose_reduction("b0", "b0_r0"),
        lambda s: s.parallel("b0_r0"),
        "parallel: loop 'b0_r0' is not outermost",
    ),
    "rows of an input that were overwritten": (
        "centered",
        lambda s: None,
        lambda s: s.compute_at("b0", "b1_i1"),
        "compute_at: in the nest (b1_i0, b1_i1), iterations of 'b1_i0', 'b1_i1' depend on each other: the "
        "store to out0 at [b1_i0, b1_i1] in block 'b1' and the load of x0 at [b1_i0, b0_r0_2] in block 'b0' "
        "(out0 may be the memory of x0) touch one element in the iterations (b1_i0=0, b1_i1=0) and (b1_i0=0, "
        "b1_i1=1, b0_r0_2=0): element [0, 0], n = 3",
    ),
    "a sum in the memory of its summand": (
        "residual",
        lambda s: None,
        lambda s: s.write_into("b0", "b1"),
        "write_into: in the nest (b0_i0, b0_i1, b0_r0), the nests depend on each other: the accumulation "
        "into out0 at [b0_i0, b0_i1] in block 'b0' and the load of x2 at [b1_i0, b1_i1] in block 'b1' "
        "(out0 may be the memory of x2) touch one element in the iterations (b0_i0=0, b0_i1=0, b0_r0=0) "
        "and (b1_i0=0, b1_i1=0): element [0, 0], n = 3",
    ),
    "tiles that add to one tile": (
        "matmul",
        lambda s: (
            s.split("b0_r0", 2),
            s.reorder("b0_r0_o", "b0_i0", "b0_i1", "b0_r0_i"),
            s.decompose_reduction("b0", "b0_r0_o"),
            s.tensorize("b0", "b0_i0", "b0_i1", (), "b0_r0_i", 8),
        ),
        lambda s: s.parallel("b0_r0_o"),
        "parallel: in the nest (b0_r0_o), iterations of 'b0_r0_o' depend on each other: 'simd.brgemm' "
        "writing",
    ),
    "a split of no iterations": (
        "matmul",
        lambda s: None,
        lambda s: s.split("b0_i0", 0),
        "split: in the nest (b0_i0), factor of loop 'b0_i0' with n iterations must be from 1 to 2147483648, "
        "got 0",
    ),
    "a split whose places have too many bits": (
        "matmul",
        lambda s: None,
        lambda s: s.tile("b0_i0", "b0_i1", 4, 1 << 62),
        "tile: in the nest (b0_i0, b0_i1), column_factor of loop 'b0_i1' with 8 iterations must be from 1 ",
    ),
    "a loop that has been split": (
        "matmul",
        lambda s: s.split("b0_i0", 4),
        lambda s: s.split("b0_i0", 2),
        "no loop 'b0_i0' in kernel 'k' any more, after split('b0_i0', 4)  -> ('b0_i0_o', 'b0_i0_i'); loops: ",
    ),
    "a copy of a result that the nest reads": (
        "matmul",
        lambda s: s.compute_at("b0", "b1_i0"),
        lambda s: s.cache_write("b0"),
        "cache_write: the result of block 'b0' is read in the same loop nest: in the nest (b1_i0, b0_i1_2, "
        "b0_r0_2, b1_i1), the accumulation into the buffer of 'b0' at [b1_i0, b0_i1_2] in block 'b0' and the "
        "load of the buffer of 'b0' at [b1_i0, b1_i1] in block 'b1' touch one element in the iterations ",
    ),
    "a part that moves outside of its whole": (
        "matmul",
        lambda s: s.split("b0_i0", 4),
        lambda s: s.reorder("b0_i0_i", "b0_i0_o"),
        "reorder: the extent of 'b0_i0_i' depends on 'b0_i0_o', which must stay outside it",
    ),
    "a copy of what the nest still writes": (
        "matmul",
        lambda s: s.compute_at("b0", "b1_i0"),
        lambda s: s.cache_read("b1", 0),
        "cache_read: buffer 0 of block 'b1' is written in the same loop nest, and the copy before the nest "
        "lacks what it writes: in the nest (b1_i0, b0_i1_2, b0_r0_2, b1_i1), the accumulation into the "
        "buffer of 'b0' at [b1_i0, b0_i1_2] in block 'b0' and the load of the buffer of 'b0' at "
        "[b1_i0, b1_i1] in block 'b1' touch one element in the iterations (b1_i0=0, b0_i1_2=0, "
        "b0_r0_2=0) and (b1_i0=0, ",
    ),
    "a thread axis that is too short": (
        "matmul",
        lambda s: None,
        lambda s: s.bind("b0_r0", "thread.x"),
        "bind: in the nest (b0_i0, b0_i1, b0_r0), iterations of 'b0_r0' depend on each other",
    ),
}
"""Kernel, steps before, the illegal step, and the beginning of its refusal."""


@pytest.mark.parametrize("case", ILLEGAL)
def test_an_illegal_step_is_refused_and_changes_nothing(case: str) -> None:
    name, before, step, message = ILLEGAL[case]
    s = Schedule(KERNELS[name][0]())
    before(s)
    kernel, steps = print_op(s.kernel), len(s.trace)
    with pytest.raises(ScheduleError, match=f"^{re.escape(message)}"):
        step(s)
    assert print_op(s.kernel) == kernel
    assert len(s.trace) == steps
    check(finished(s), name, (1, 5))


AT_THE_END: dict[str, tuple[str, Use, str]] = {
    "threads beside another nest": (
        "matmul",
        lambda s: s.parallel("b1_i0"),
        "parallel: loop 'b1_i0' is 'parallel', and the nest of loop 'b0_i0' stands beside it",
    ),
    "lanes of different length": (
        "matmul",
        lambda s: s.vectorize(s.split("b0_i1", 3)[0]),
        "vectorize: loop 'b0_i1_o' of kernel 'k' cannot run in lanes: the extent of loop 'b0_i1_i'",
    ),
}
"""Kernel, steps, and the beginning of the refusal of the whole schedule."""


@pytest.mark.parametrize("case", AT_THE_END)
def test_an_illegal_schedule_is_refused_at_its_end(case: str) -> None:
    name, steps, message = AT_THE_END[case]
    s = Schedule(KERNELS[name][0]())
    steps(s)
    with pytest.raises(ScheduleError, match=f"^{re.escape(message)}"):
        finalize(s)
