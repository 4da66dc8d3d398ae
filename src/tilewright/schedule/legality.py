"""Tests whether a transformation of loops keeps the order of conflicting accesses.

Each test raises `ScheduleError` with the primitive, the nest, both accesses, and two iterations that touch
one element. A case that the dependence analysis cannot decide counts as a conflict, so an applied primitive
is right for every size and all data.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

from ..analysis.dependence import (
    LoopPair,
    commute,
    conflicting_pairs,
    depends_on_data,
    distance,
    pairs_between,
    writes,
)
from ..analysis.lanes import obstacle_to_lanes
from ..analysis.loop_nest import Touch, enclosing, enclosing_loops, inside, resolved, walk_loops
from ..analysis.witness import describe_conflict, find_witness
from ..dialects import loop
from ..dialects.elements import Elements
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation
from ..ir.target_info import TargetInfo
from .core import ScheduleError


def check_independent(
    primitive: str, f: loop.For, *, shared: bool = False, lanes: bool = False, undecided: bool = False
) -> None:
    """Raise unless the iterations of a loop may run in any order, or at the same time.

    With `shared`, all iterations use one copy of each buffer that is allocated outside of the loop; otherwise
    a buffer that only the loop uses is private to an iteration. With `lanes`, reductions and running values
    are allowed: the code generator combines them across lanes. With `undecided`, so are conflicts for which
    the analysis finds no two iterations.
    """
    for a, b in conflicting_pairs(f, shared=shared):
        if lanes and _combined_across_lanes(f, a, b):
            continue
        what = f"iterations of {f.iv.name!r}"
        check_pair(primitive, a, b, [(f, f)], lambda apart: apart != (0,), what, undecided)


def check_order(primitive: str, before: Sequence[loop.For], after: Sequence[loop.For]) -> None:
    """Raise unless perfectly nested loops may be nested in another order.

    Args:
        primitive: its name, for the message.
        before: the loops as they are, outermost first.
        after: the same loops in the new order.
    """
    places = [before.index(f) for f in after]
    first, last = _places_that_move(places)
    moved, order = before[first:last], [p - first for p in places[first:last]]
    if not moved:
        return

    def reversed_by(apart: tuple[int, ...]) -> bool:
        return _sign(apart) != _sign([apart[p] for p in order])

    for a, b in conflicting_pairs(before[-1]):
        if not commute(a, b):
            check_pair(primitive, a, b, [(f, f) for f in moved], reversed_by, "the new order of the loops")


def _places_that_move(order: Sequence[int]) -> tuple[int, int]:
    """The range of positions, as (first, end), outside which a permutation changes nothing."""
    moved = [k for k, p in enumerate(order) if k != p]
    return (moved[0], moved[-1] + 1) if moved else (0, 0)


def check_joined(primitive: str, first: loop.For, second: loop.For) -> None:
    """Raise unless iteration i of the `second` loop may run directly after iteration i of the `first`."""
    for a, b in pairs_between(first, second):
        check_pair(
            primitive, a, b, [(first, second)], lambda apart: apart[0] < 0,
            f"iterations of {first.iv.name!r} and {second.iv.name!r}",
        )  # fmt: skip


def check_unchanged(primitive: str, read: loop.Load, left: Sequence[loop.For]) -> None:
    """Raise unless what a load reads stays in its buffer until the `left` loops around it have ended."""
    for op in read.buffer.users:
        common = [f for f in left if inside(op, f)]
        if common and isinstance(op, (loop.Store, loop.Accumulate)):
            what = f"iterations of {', '.join(repr(str(f.iv.name)) for f in common)}"
            check_pair(primitive, read, op, [(f, f) for f in common], lambda apart: _sign(apart) > 0, what)


def check_inputs_stay(primitive: str, kernel: loop.Kernel) -> None:
    """Raise if a kernel may read an element of an input after it has overwritten it: an output may be the
    memory of an input.
    """
    outputs = set(kernel.body.args[len(kernel.body.args) - kernel.num_outputs :])
    for first, second in conflicting_pairs(kernel, shared=True):
        read, write = (second, first) if writes(first) else (first, second)
        if writes(read) or read.buffer in outputs:
            continue
        common = [f for f in enclosing_loops(read) if inside(write, f)]
        runs = enclosing(read, loop.Runs)
        # The data decide the order of runs.
        first_late = -1 if runs is not None and inside(write, runs) else 0 if read is second else 1
        late = functools.partial(_at_least, first_late)
        what = f"iterations of {', '.join(repr(str(f.iv.name)) for f in common)}" if common else "the nests"
        check_pair(primitive, write, read, [(f, f) for f in common], late, what)


def check_races(kernel: loop.Kernel) -> None:
    """Raise if iterations of a parallel loop of a finished kernel depend on each other.

    The primitives have refused what cannot be decided. This finds their errors, and those of the rewrites at
    the end of a schedule.
    """
    for f in walk_loops(kernel):
        if f.kind == loop.LoopKind.PARALLEL or f.kind.startswith(("block", "thread")):
            name = f"{f.kind} loop {f.iv.name!r} of kernel {kernel.sym_name!r}"
            check_independent(name, f, shared=True, undecided=True)


def check_threads(kernel: loop.Kernel, info: TargetInfo) -> None:
    """Raise unless loops are bound to threads that the target has, and one loop over them holds all other
    statements of the kernel: each thread runs the whole kernel for its part of that loop.
    """
    statements = [op for op in kernel.body.ops if not isinstance(op, loop.Alloc)]
    known = {axis.name for axis in info.thread_axes}
    for f in walk_loops(kernel):
        if f.kind != loop.LoopKind.PARALLEL and "." not in f.kind:
            continue
        primitive = "parallel" if f.kind == loop.LoopKind.PARALLEL else "bind"
        if info.name and f.kind not in known:
            raise ScheduleError(
                f"{primitive}: loop {f.iv.name!r} is '{f.kind}'; the target {info.name} has "
                f"{', '.join(sorted(known))}"
            )
        if not f.kind.startswith("thread") and len(statements) > 1:
            other = next(op for op in statements if not inside(f, op))
            raise ScheduleError(
                f"{primitive}: loop {f.iv.name!r} is '{f.kind}', and {_nest_name(other)} stands beside it in "
                f"kernel {kernel.sym_name!r}, where each thread would run it: put all statements inside one "
                "loop (compute_at, fuse_loops), or leave the loop serial"
            )


def check_lanes(kernel: loop.Kernel, info: TargetInfo, name: str | None = None) -> None:
    """Raise unless the vectorized loops of a finished kernel, or those called `name`, can run in lanes."""
    for f in walk_loops(kernel):
        if f.kind != loop.LoopKind.VECTORIZE or name not in (None, f.iv.name):
            continue
        reason = obstacle_to_lanes(f, masked=info.masked)
        if info.vector_bits == 0 and info.gpu is None:
            reason = f"the target {info.name} has no vectors"
        if reason is not None:
            raise ScheduleError(
                f"vectorize: loop {f.iv.name!r} of kernel {kernel.sym_name!r} cannot run in lanes: {reason}"
            )


def _nest_name(op: Operation) -> str:
    """A statement at the top of a kernel, as error texts show it."""
    if isinstance(op, loop.For):
        return f"the nest of loop {str(op.iv.name)!r}"
    if isinstance(op, loop.Block):
        return f"block {op.sym_name!r}"
    return f"'{op.name}'"


def check_pair(
    primitive: str,
    a: Touch,
    b: Touch,
    loops: Sequence[LoopPair],
    wrong: Callable[[tuple[int, ...]], bool],
    what: str,
    undecided: bool = False,
) -> None:
    """Raise if two accesses may touch one element at a distance that is `wrong`.

    Args:
        primitive: The primitive's name, for the message.
        a: An access.
        b: Another access to the same memory.
        loops: The loops whose iterations are compared.
        wrong: Whether a distance, for each pair of loops the sign of the second iteration minus the first, is
            one that the primitive must not have.
        what: The text of the message that names what depends on each other.
        undecided: Whether a conflict is allowed for which the analysis finds no two iterations.
    """
    fixed = [f for f in enclosing_loops(loops[0][0]) if inside(b, f)] if loops else []
    apart = distance(a, b, loops, fixed)
    if apart is None:
        return
    choices = [(-1, 0, 1) if d is None else (d,) for d in apart]
    if not any(wrong(signs) for signs in itertools.product(*choices)):
        return
    if undecided and find_witness(a, b, loops, fixed, wrong) is None:
        return
    nest = ", ".join(str(f.iv.name) for f in enclosing_loops(a))
    raise ScheduleError(
        f"{primitive}: in the nest ({nest}), {what} depend on each other: "
        f"{describe_conflict(a, b, loops, fixed, wrong)}"
    )


def _at_least(least: int, apart: Sequence[int]) -> bool:
    return _sign(apart) >= least


def _sign(apart: Sequence[int]) -> int:
    """Whether a point comes after (1), before (-1) or is another (0), from their difference."""
    return next((1 if d > 0 else -1 for d in apart if d), 0)


def _combined_across_lanes(f: loop.For, a: Touch, b: Touch) -> bool:
    """Whether a conflict is that of a reduction over loop `f`, which adds to one element in all iterations,
    or of a load of the running value, which must stand in the innermost loop with its accumulation.
    """
    for op in (a, b):
        if isinstance(op, Elements):
            return False
        if any(depends_on_data(e) or f.iv in free_symbols_of(e) for e in resolved(op, op.indices)):
            return False
    kinds = {type(op) for op in (a, b)}
    if kinds == {loop.Accumulate}:
        return commute(a, b)
    return kinds == {loop.Accumulate, loop.Load} and all(enclosing_loops(op)[-1] is f for op in (a, b))
