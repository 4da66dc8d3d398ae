"""Runs a kernel in the interpreter, with the iterations of its unordered loops in orders of one's choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...dialects import loop, scalar
from ...dialects.tensor import free_symbols_of
from ...ir import notes
from ...ir.core import Module, Operation
from ...ir.interpreter import Frame

Array = np.ndarray[Any, Any]
SHOWN = 8
"""Iterations of a loop that the text of an order lists."""


@dataclass
class Order:
    """An order of the iterations of parallel loops, of loops over threads and workgroups, and of lanes.

    Attributes:
        number: 0: one after another, from the first to the last. Other orders are random. In even ones each
            iteration runs to its end before the next one begins. In odd ones all iterations run their first
            statement, then all run the second one, and so on; of additions to one element at the same time,
            one is lost.
        seed: The seed of the random orders.
    """

    number: int = 0
    seed: int = 0
    seen: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    """The kind of each loop and the order of its iterations when it first ran, by name."""

    @property
    def in_step(self) -> bool:
        """Whether all iterations run a statement before one of them runs the next."""
        return self.number % 2 == 1

    def __str__(self) -> str:
        if not self.number:
            return "in order"
        loops = []
        for name, (kind, order) in self.seen.items():
            more = ", ..." if len(order) > SHOWN else ""
            loops.append(f"{kind} loop {name!r} as {', '.join(map(str, order[:SHOWN]))}{more}")
        how = "statement by statement" if self.in_step else "one iteration after another"
        return f"in random order {self.number} of seed {self.seed}, {how}: {'; '.join(loops) or 'no loop'}"

    def run_loop(self, rng: np.random.Generator) -> Any:
        """The function for `Frame.run_loop`; None if loops run in order."""
        if not self.number:
            return None

        def run(f: loop.For, env: Frame) -> bool:
            if not is_unordered(f):
                return False
            order = [int(i) for i in rng.permutation(int(env.evaluate(f.extent)))]
            self.seen.setdefault(f.iv.name, (str(f.kind), order))
            if self.in_step:
                _in_step(f.body.ops, [_own_frame(env, f, i) for i in order], rng)
            else:
                for i in order:
                    env.child({f.iv.name: i}).run_block(f.body, ())
            return True

        return run


def _own_frame(env: Frame, f: loop.For, i: int) -> Frame:
    """The frame of an iteration that runs beside others: with values of its own."""
    return Frame(env.module, {**env.dims, f.iv.name: i}, dict(env.values), env.run_loop, env.plans)


def _in_step(ops: Iterable[Operation], frames: Sequence[Frame], rng: np.random.Generator) -> None:
    """Run statements in several iterations at once: each in all of them before the next one."""
    for op in ops:
        if op.terminator:
            return
        if isinstance(op, loop.For):
            _loop_in_step(op, frames, rng)
        elif isinstance(op, loop.If):
            _in_step(op.body.ops, [f for f in frames if all(f.evaluate(e) >= 0 for e in op.conditions)], rng)
        elif isinstance(op, loop.Accumulate):
            _accumulate_in_step(op, frames)
        else:
            for frame in frames:
                frame.run(op)


def _loop_in_step(op: loop.For, frames: Sequence[Frame], rng: np.random.Generator) -> None:
    extents = [int(frame.evaluate(op.extent)) for frame in frames]
    if not op.inits and is_unordered(op):
        own = [_own_frame(frame, op, i) for frame, n in zip(frames, extents, strict=True) for i in range(n)]
        _in_step(op.body.ops, [own[k] for k in rng.permutation(len(own))], rng)
        return
    carried = [[frame.values[v] for v in op.inits] for frame in frames]
    for i in range(max(extents, default=0)):
        active = [k for k, n in enumerate(extents) if i < n]
        for k in active:
            frames[k].values.update(zip(op.body.args, carried[k], strict=True))
        _in_step(op.body.ops, [frames[k].child({op.iv.name: i}) for k in active], rng)
        if op.inits:
            for k in active:
                carried[k] = [frames[k].values[v] for v in op.body.terminator.operands]
    for frame, values in zip(frames, carried, strict=True):
        frame.values.update(zip(op.results, values, strict=True))


def _accumulate_in_step(op: loop.Accumulate, frames: Sequence[Frame]) -> None:
    """Add in all iterations at once. If several add to one element, one sum is kept, as threads would
    that read the element at the same time.
    """
    results: list[tuple[Array, tuple[int, ...], Any]] = []
    for frame in frames:
        target = frame.values[op.buffer]
        where = op.element(frame, target.shape, [frame.values[v] for v in op.dynamic])
        if where is not None:
            combine = scalar.BINARY[op.combine].function
            results.append((target, where, combine(target[where], frame.values[op.value])))
    for target, where, value in results:
        target[where] = value


def is_unordered(f: loop.For) -> bool:
    """Whether the iterations of a loop that carries no values may run in any order, as its kind says. Lanes
    that add to one element do not count: the code generator combines them.
    """
    if f.kind == loop.LoopKind.VECTORIZE:
        return not any(
            isinstance(op, loop.Accumulate) and all(f.iv not in free_symbols_of(e) for e in op.indices)
            for op in f.walk()
        )
    return f.kind not in (loop.LoopKind.SERIAL, loop.LoopKind.UNROLL)


def run(
    kernel: loop.Kernel, arrays: Sequence[Array], sizes: Mapping[str, int], order: Order | None = None
) -> list[Array]:
    """The outputs of a kernel.

    Args:
        kernel: A kernel of blocks, or a finalized one.
        arrays: The inputs, and the outputs' memory before the run. They stay as they are.
        sizes: The kernel's sizes by name.
        order: The order of the iterations; None: in order.

    Raises:
        IRError: An access is outside of its buffer.
    """
    count = len(arrays) - kernel.num_outputs
    memory = [a.copy() for a in arrays]
    for output, source in notes.BUFFER_ALIASES.get(kernel, ()):
        memory[count + output] = memory[source].reshape(memory[count + output].shape)
    rng = np.random.default_rng([order.seed, order.number] if order is not None else 0)
    frame = Frame(Module(), dict(sizes), {}, None if order is None else order.run_loop(rng))
    with np.errstate(all="ignore"):
        frame.run_block(kernel.body, memory)
    return memory[count:]


__all__ = ["Array", "Order", "is_unordered", "run"]
