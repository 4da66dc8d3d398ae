"""Runs operations early that free memory, so that less memory is alive at one time.

In a training step the update of a parameter reads the parameter's gradient last and writes into the
parameter's own memory. Recorded after the whole backward pass, the updates would keep all gradients alive at
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...dialects import func, tensor
from ...ir.core import Block, Effect, Module, Operation, OpResult, Value
from ...ir.run_time_symbols import definers_of, definitions
from ...ir.symbolic import Dim, prove_le
from .write_in_place import computed, makers_of, memory_of, readers_in, versions_of

SMALL = 4096
"""Bytes of a result that count as none. With a larger value, results wait in memory for their readers; with a
smaller one, a scalar such as the bias correction of an optimizer, which stands behind the backward pass,
delays all updates.
"""


def free_early(module: Module) -> None:
    """Move every group that frees more than it allocates up behind the last operation that it needs.

    ``dw1 = ...; dx = ...; dw0 = ...; w1' = w1 - dw1; w0' = w0 - dw0`` ->
    ``dw1 = ...; dx = ...; w1' = w1 - dw1; dw0 = ...; w0' = w0 - dw0``

    A group that frees as much as it allocates moves if its only reader then moves behind it. Other operations
    keep their order. New values of a function's arguments (`updates`) wait for the readers of the old values,
    whose memory they take.
    """
    updates = {f.body: f.updated for f in module.functions(func.Func)}
    for block in tensor.blocks_of_computations(module):
        _Order(block, updates.get(block, ())).apply()


class _Order:
    """The new order of a block. Memory is named by the value that it was allocated for."""

    def __init__(self, block: Block, updated: Sequence[tuple[Value, Value]]) -> None:
        self.block = block
        self.placed: set[Operation] = set()
        self.ordered: list[Operation] = []
        self.ops: list[Operation] = []
        """The operations, without reshapes, which are placed with what they view."""
        self.views: dict[Operation | None, list[Operation]] = defaultdict(list)
        """The reshapes of the results of an operation, or of values from outside."""
        self.needs: dict[Operation, set[Operation]] = {}
        self.awaited_by: dict[Operation, list[Operation]] = defaultdict(list)
        self.reads: dict[Operation, set[OpResult]] = {}
        """The memory that an operation reads, of values that the block computes."""
        self.readers: dict[OpResult, set[Operation]] = defaultdict(set)
        self.given: set[Value] = set()
        """Memory from outside for the block's results."""
        symbols = definitions(block)
        latest: Operation | None = None  # with side effects, whose order stays
        for op in block.ops:
            needs = set(definers_of(op, symbols))
            if isinstance(op, tensor.Reshape) and not needs:
                self.views[self._maker(op.x)].append(op)
                continue
            self.ops.append(op)
            values = {v for inner in op.walk() for v in inner.operands} if op.regions else set(op.operands)
            needs.update(x for v in values if (x := self._maker(v)) is not None)
            if op.effects & (Effect.READ | Effect.WRITE):
                needs.update(() if latest is None else (latest,))
                latest = op
            self.needs[op] = needs - {op}
            memory = {memory_of(v) for v in values}
            self.reads[op] = {m for m in memory if isinstance(m, OpResult) and m.op.parent is block}
            for m in self.reads[op]:
                self.readers[m].add(op)
            if op.terminator:
                self.given = memory
        for argument, value in updated:
            chain = computed(value, block)
            if chain is not None and isinstance(chain[-1], OpResult):
                for maker in makers_of(versions_of(chain[-1], argument)[0].op):
                    self.needs[maker] |= readers_in(argument, block) - {maker}
        for op, needs in self.needs.items():
            for needed in needs:
                self.awaited_by[needed].append(op)

    def _maker(self, value: Value) -> Operation | None:
        """The operation of this block behind a value and its reshapes."""
        while isinstance(op := value.defining_op, tensor.Reshape) and op not in self.needs:
            value = op.x
        return op if op is not None and op.parent is self.block else None

    def apply(self) -> None:
        self.ordered += self.views[None]
        for op in self.ops:
            if not self.needs[op]:  # nothing that is placed later starts these
                self._place(self._paying(op))
        for op in self.ops:
            if op not in self.placed:
                self._place([op])
        if self.ordered != list(self.block.ops):
            for op in self.ordered:
                self.block.append(op)

    def _place(self, ops: Sequence[Operation]) -> None:
        """Append operations, and those that can run then and pay."""
        pending = list(reversed(ops))
        due = set(ops)
        while pending:
            op = pending.pop()
            if op in self.placed:
                continue
            if op not in due:
                run = self._paying(op)
                due.update(run)
                pending += reversed(run)
                continue
            self.placed.add(op)
            self.ordered += (op, *self.views[op])
            following = list(self.awaited_by[op])
            for memory in self.reads[op]:
                left = self.readers[memory] - self.placed
                following += left if len(left) == 1 else ()
            pending[:0] = reversed(following)

    def _paying(self, op: Operation) -> list[Operation]:
        """The operation, or it and its readers, if these can run one after another now and free memory."""
        run: list[Operation] = []
        made: Dim = 0
        freed: Dim = 0
        while op not in self.placed and _is_movable(op) and self.needs[op] <= self.placed.union(run):
            run.append(op)
            sizes = [_bytes(r) for r in op.results if r not in self.given]
            for size in sizes:
                made += 0 if isinstance(size, int) and size <= SMALL else size
            done = self.placed.union(run)
            for memory in self.reads[op] - self.given:
                freed += _bytes(memory) if self.readers[memory] <= done else 0
            if not prove_le(made, freed):
                break
            if made == 0 or not prove_le(freed, made):
                return run
            readers = {x for r in op.results for x in self.readers[r]}
            if len(readers) != 1:
                break
            op = readers.pop()
        return []


def _is_movable(op: Operation) -> bool:
    """Whether an operation may run earlier: calls, such as of collective operations, stay where they are."""
    movable = isinstance(op, tensor.Group) and op.kind != tensor.GroupKind.CALL
    return movable and op.effects == Effect.PURE


def _bytes(value: Value) -> Dim:
    size: Dim = value.type.size * value.type.dtype.itemsize
    return size


__all__ = ["free_early"]
