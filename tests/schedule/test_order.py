"""A primitive that moves nests is refused where conflicting accesses would change their order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.dialects import loop
from tilewright.ir.printer import print_op
from tilewright.schedule import Schedule, ScheduleError
from tilewright.schedule.order import Order, keeps_order

from .kernels import KERNELS
from .test_primitives import CASES

MOVING = (
    "accumulate_apart",
    "all_reduce",
    "cache_read",
    "cache_write",
    "compute_at",
    "compute_inline",
    "decompose_reduction",
    "online_softmax",
    "rfactor",
    "share_reduction",
    "stage_factors",
    "write_into",
)
"""Primitives that move nests or accesses, or add some."""


def initialized() -> Schedule:
    """A matrix product whose sums have their initial values from a nest of their own."""
    s = Schedule(KERNELS["matmul"][0]())
    s.decompose_reduction("b0", s.loops("b0")[-1])
    s.fission("b0_i1")
    return s


def initial_values_last(s: Schedule) -> None:
    """Move the nest of the initial values to the end of the loop that it shares with the sums."""
    initial = s.loop(s.loops("b0_init")[1])
    initial.parent.append(initial.detach())  # type: ignore[union-attr]


def initial_values_of_each_term(s: Schedule) -> None:
    """Move the initial values into the loop over terms."""
    block, term = s.block("b0_init"), s.loop(s.loops("b0")[-1])
    block.bindings = (block.bindings[0], s.block("b0").bindings[1])
    term.body.insert_before(next(iter(term.body.ops)), block.detach())


def sums_behind_their_readers(s: Schedule) -> None:
    """Move the sums behind the nest that reads them."""
    first, *_, last = [op for op in s.kernel.body.ops if isinstance(op, loop.For)]
    last.parent.insert_after(last, first.detach())  # type: ignore[union-attr]


FAULTS = (initial_values_last, initial_values_of_each_term, sums_behind_their_readers)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_primitive_is_refused(fault: Callable[[Schedule], None]) -> None:
    s = initialized()
    before = print_op(s.kernel)
    faulty = keeps_order()(fault)
    with pytest.raises(ScheduleError, match=rf"^{fault.__name__}: .* touch one element"):
        faulty(s)
    assert print_op(s.kernel) == before


@pytest.mark.parametrize("name", MOVING)
def test_primitives_that_move_nests_are_tested(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[str] = []
    monkeypatch.setattr(Order, "check", lambda self, primitive, *_, **__: tested.append(primitive))
    kernel, use = CASES[name]
    use(Schedule(KERNELS[kernel][0]()))
    assert name in tested


def test_a_nest_moves_over_what_it_does_not_touch() -> None:
    s = initialized()
    initial = s.loop(s.loops("b0_init")[0])

    @keeps_order()
    def first_of_all(schedule: Schedule) -> None:
        initial.parent.insert_before(next(iter(initial.parent.ops)), initial.detach())  # type: ignore

    first_of_all(s)
