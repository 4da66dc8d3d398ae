"""Computes values of a forward pass again in the backward pass, instead of keeping them (rematerialization).

A value that both passes read waits in memory from its one use to the other. Two sets of such values are worth
computing again: those of cheap operators (selective recomputation), and those between places of the forward
pass where few bytes are alive, from which a whole segment is computed again (Chen et al., "Training Deep Nets
with Sublinear Memory Cost", 2016). `plans` lists combinations of both, each with less estimated memory and
more work than the one before.

`recompute_attention` is the pass that does so without a budget, where the price is small: attention's result
is as large as its queries, which are kept anyway, and takes few operations beside the products around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt, prod
from typing import TypeVar

from ...dialects import graph as g
from ...dialects.graph.base import GraphOp
from ...dialects.graph.norm import SameType
from ...dialects.graph.reduce import Reduction
from ...dialects.graph.residuals import inner_uses, values_of
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import cse, dce
from ...ir.core import Block, Effect, Module, Operation, Value
from ...ir.symbolic import Dim, bounds
from ...ir.types import TensorType
from .drop_derivative_marks import drop_derivative_marks
from .match import ELEMENTWISE

SMALL = 1024
"""Bytes of a value that is kept in any case. A larger value keeps statistics of rows; a smaller one computes
scalars again for nothing.
"""
SEGMENTS = (32, 24, 16, 12, 8, 6, 4, 3, 2)
"""Numbers of segments that are tried. More numbers give plans between those of fewer, for more estimates."""
STEPS = 4
"""Parts of the cheap values, or of the segments of one number, that are taken one after another. A larger
value comes closer to a budget with less work, and more plans are lowered to find the first that fits.
"""
PART = 0.01
"""The most work, as a part of that of both passes, that is spent on computing attention again without a
budget. A larger value saves memory of models with long sequences, and takes more time.
"""
UNBOUNDED = 1024
"""The size that estimates take for a dimension without an upper bound."""
UNKNOWN_WORK = 64
"""Operations for an element that operators count for whose work is not known, such as sorting."""

_VIEWS = (g.Reshape, g.Identity, g.After)
_CHEAP = (
    *(*ELEMENTWISE, *_VIEWS, g.Bitcast, g.BroadcastTo, g.Transpose, g.Slice, g.Concat, g.Pad, g.Tile),
    *(g.Flip, g.Iota, g.Triangular, g.OneHot, g.Threefry, SameType, Reduction),
)

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """Values of a block to compute again.

    `kept` are values that the computation starts from. `work` is an estimate of the operations, `memory` of
    the bytes that are alive between the passes, with those of the largest segment that is computed again.
    """

    block: Block
    again: frozenset[Value]
    kept: frozenset[Value]
    work: int
    memory: int


def recompute_attention(module: Module) -> None:
    """Let the backward pass compute results of attention again from its queries, keys and values, which its
    gradient reads as well, as many as `PART` allows.

    ``y = attention(q, k, v); z = y @ w; ...; dw = y^T @ dz; dq = f(q, k, v, y, dy)`` ->
    ``y = attention(q, k, v); z = y @ w; ...; u = attention(q, k, v); dw = u^T @ dz; dq = f(q, k, v, u, dy)``
    """
    for passes in _passes_of(module):
        left = PART * sum(map(_work, passes.block.ops))
        again: set[Value] = set()
        queries: set[Value] = set()
        for op in passes.forward:
            if isinstance(op, g.Attention) and op.result in passes.choices:
                if passes.read_late.issuperset(passes.uses[op]) and _work(op) <= left:
                    left -= _work(op)
                    again.add(op.result)
                    queries.add(op.q)
            elif isinstance(op, (*_VIEWS, g.Transpose)) and op.operands[0] in again:
                again.update(op.results)
        if again:
            # Keys and values that waited, too, would be kept as attention reads them, with their biases.
            _Clones(passes.block, passes.forward, again, passes.read_late - again, queries).insert()


class Rematerialization:
    """The plans of a module, in which no pass has run.

    The module is cleaned up in place: marks of differentiation and common subexpressions are removed.
    """

    def __init__(self, module: Module) -> None:
        drop_derivative_marks(module)
        passes = _passes_of(module)
        cse(module)
        dce(module)
        self.module = module
        self._passes = [_Passes(p.block, [op for op in p.block.ops if op in p.place]) for p in passes]

    def plans(self) -> list[Plan]:
        """The plans of the block that keeps most, by increasing work and decreasing memory."""
        if not self._passes:
            return []
        largest = max(self._passes, key=lambda p: p.memory_of(p.read_late))
        found: list[Plan] = []
        least = largest.memory_of(largest.read_late)
        for plan in sorted(largest.candidates(), key=lambda p: (p.work, p.memory)):
            if plan.memory < least:
                found.append(plan)
                least = plan.memory
        return found

    def applied(self, plan: Plan) -> Module:
        """A copy of the module that computes the plan's values again."""
        mapping: dict[Value, Value] = {}
        copy = self.module.clone(mapping)
        passes = next(p for p in self._passes if p.block is plan.block)
        some = mapping[next(iter(plan.again))].defining_op
        assert some is not None and some.parent is not None
        copied = zip(plan.block.ops, some.parent.ops, strict=True)
        forward = [new for old, new in copied if old in passes.place]
        values = [{mapping[v] for v in group} for group in (plan.again, plan.kept)]
        _Clones(some.parent, forward, *values).insert()
        return copy


def _passes_of(module: Module) -> list[_Passes]:
    """The forward and the backward pass of each block that has both."""
    marks: dict[Block, Operation] = {}
    for op in module.walk():
        if notes.BACKWARD.present(op) and op.parent is not None:
            # In a function that is differentiated twice the last mark stands behind all others.
            marks[op.parent] = op
    return [_Passes(block, block.between(None, mark)) for block, mark in marks.items()]


class _Passes:
    """The forward and the backward pass in one block."""

    def __init__(self, block: Block, forward: Sequence[Operation]) -> None:
        self.block = block
        self.forward = forward
        self.place = {op: k for k, op in enumerate(forward)}
        late = [op for op in block.ops if op not in self.place]
        self.uses = _uses(forward)
        own = {r for op in forward for r in op.results if not isinstance(op, g.Constant)}
        returned = {_viewed(v) for op in late if op.terminator for v in op.operands}
        self.read_late: set[Value] = {v for op in late for v in inner_uses(op) if v in own}
        """Values of the forward pass that the backward pass reads."""
        self.choices = [
            r
            for op in forward
            for r in op.results
            if r in self.read_late and _is_pure(op) and _bytes(r) > SMALL and _viewed(r) not in returned
        ]
        """Values of `read_late` that may be computed again, in order."""

    def memory_of(self, values: Iterable[Value]) -> int:
        """The bytes of values; several views of one value count once."""
        return sum(_bytes(v) for v in {_viewed(v) for v in values})

    def candidates(self) -> Iterator[Plan]:
        """Plans of cheap values alone, and with them of segments."""
        cheap = self._cheap()
        for part in _parts(cheap):
            yield self._plan(part, (), ())
        tried: set[tuple[int, ...]] = set()
        for count in SEGMENTS:
            cuts = self._cuts(count, set(cheap))
            if cuts and cuts not in tried:
                tried.add(cuts)
                for chosen in _parts(range(len(cuts))):  # the last segment is needed at once
                    yield self._plan(cheap, cuts, chosen)

    def _cheap(self) -> list[Value]:
        """Values that cheap operators compute from values that are read late anyway, or from outside; those
        that save most bytes for their work first.
        """
        work: dict[Value, int] = {}
        for op in self.forward:
            cost = _work(op)
            if not isinstance(op, _CHEAP) or op.regions or not _is_pure(op):
                continue
            for v in self.uses[op]:
                if v not in self.read_late:
                    if v not in work:
                        break
                    cost += work[v]
            else:
                work.update((r, cost) for r in op.results)
        found = [v for v in self.choices if v in work]
        return sorted(found, key=lambda v: work[v] / _bytes(v))

    def _cuts(self, count: int, cheap: set[Value]) -> tuple[int, ...]:
        """Places of the forward pass that divide the kept bytes into about `count` segments: each one where,
        near such a place, the forward pass has the fewest bytes alive.
        """
        last = {v: k for k, op in enumerate(self.forward) for v in self.uses[op]}
        change = [0] * (len(self.forward) + 1)
        for v, end in last.items():
            change[self.place[v.defining_op]] += _bytes(v)  # type: ignore[index]
            change[end] -= _bytes(v)
        alive = list(accumulate(change))
        chosen = {v for v in self.choices if v not in cheap}
        kept = list(accumulate(sum(_bytes(r) for r in op.results if r in chosen) for op in self.forward))
        if not kept or not kept[-1]:
            return ()
        places: set[int] = set()
        for k in range(1, count):
            target, width = kept[-1] * k / count, kept[-1] / (2 * count)
            near = [p for p, b in enumerate(kept) if abs(b - target) <= width]
            places.update([min(near, key=lambda p: (alive[p], abs(kept[p] - target)))] if near else ())
        return tuple(sorted(places))

    def _plan(self, cheap: Sequence[Value], cuts: Sequence[int], segments: Sequence[int]) -> Plan:
        """The plan that computes cheap values again, and the `segments` between some of the `cuts`."""
        begins = [0, *(p + 1 for p in cuts)]
        crossing: set[Value] = set()
        for k in {x for s in segments for x in (s, s + 1)} - {0}:
            crossing |= self._crossing(begins[k])
        inside = [self.forward[begins[s] : begins[s + 1]] for s in segments]
        chosen = set(self.choices)
        again = {*cheap, *(r for ops in inside for op in ops for r in op.results if r in chosen)} - crossing
        kept = (self.read_late | crossing) - again
        ops, reads = _closure(again, kept, self.uses)
        heavy = again.difference(cheap)
        sizes = [self.memory_of(r for op in part for r in op.results if r in heavy) for part in inside]
        transient = max(sizes, default=0)
        memory = self.memory_of((self.read_late - again) | reads) + transient
        return Plan(self.block, frozenset(again), frozenset(kept), sum(map(_work, ops)), memory)

    def _crossing(self, begin: int) -> set[Value]:
        """Values from in front of a place that the forward pass reads behind it."""
        return {
            v
            for op in self.forward[begin:]
            for v in self.uses[op]
            if self.place[v.defining_op] < begin  # type: ignore[index]
        }


class _Clones:
    """Copies of operators of the forward pass, each in front of its first reader in the backward pass.

    They wait for a value of the backward pass where they read those in `awaiting`, by default all they read.
    """

    def __init__(
        self,
        block: Block,
        forward: Sequence[Operation],
        again: set[Value],
        kept: set[Value],
        awaiting: set[Value] | None = None,
    ) -> None:
        self.block = block
        self.place = {op: k for k, op in enumerate(forward)}
        self.again, self.kept, self.awaiting = again, kept, awaiting
        self.uses = _uses(forward)
        self.copies: dict[Value, Value] = {}

    def insert(self) -> None:
        """Copy the operators, and let the backward pass read the copies."""
        stored: set[Value] = set()
        latest: list[Value] = []
        for op in list(self.block.ops):
            if op in self.place or op.terminator:
                continue
            reads = set(inner_uses(op))
            if wanted := reads & self.again:
                self._copy(wanted, op, [v for v in op.operands if v in stored] or latest)
                for inside in op.walk():
                    for k, v in enumerate(inside.operands):
                        if v in wanted:
                            inside.set_operand(k, self.copies[v])
            # Waiting for a cheap value would store it, which else is part of a kernel.
            if op.results and op.effects == Effect.PURE and (not latest or not isinstance(op, _CHEAP)):
                stored.update(op.results)
                latest = [op.results[0]] if reads else []

    def _copy(self, wanted: Iterable[Value], anchor: Operation, after: Sequence[Value]) -> None:
        """Copy what computes the `wanted` values. It runs once the values `after` are known."""
        ops, _ = _closure([v for v in wanted if v not in self.copies], {*self.kept, *self.copies}, self.uses)
        b = Builder.before(anchor)
        mapping = dict(self.copies)
        for op in sorted(ops, key=self.place.__getitem__):
            inner = {v for x in op.walk() for k in x.regions for y in k.blocks for v in values_of(y)}
            for v in dict.fromkeys(inner_uses(op)):
                if v in inner or v in mapping or isinstance(v.defining_op, g.Constant):
                    continue
                if self.awaiting is None or v in self.awaiting:
                    mapping[v] = b(g.After(v, after))
            self.block.insert_before(anchor, op.clone(mapping))
            self.copies.update((r, mapping[r]) for r in op.results)


def _uses(ops: Sequence[Operation]) -> dict[Operation, list[Value]]:
    """The results of `ops` that each of them reads, without constants."""
    own = {r for op in ops for r in op.results if not isinstance(op, g.Constant)}
    return {op: [v for v in dict.fromkeys(inner_uses(op)) if v in own] for op in ops}


def _closure(
    again: Iterable[Value], kept: Iterable[Value], uses: Mapping[Operation, Sequence[Value]]
) -> tuple[set[Operation], set[Value]]:
    """The operators that compute values again, and the kept values that they read."""
    kept = set(kept)
    ops: set[Operation] = set()
    reads: set[Value] = set()
    pending = list(again)
    while pending:
        op = pending.pop().defining_op
        assert op is not None
        if op in ops:
            continue
        ops.add(op)
        for v in uses[op]:
            if v in kept or not _is_pure(v.defining_op):
                reads.add(v)
            else:
                pending.append(v)
    return ops, reads


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The first quarter of a sequence, its first half, and so on; each once."""
    ends = dict.fromkeys(-(-len(values) * k // STEPS) for k in range(1, STEPS + 1))
    return (values[:end] for end in ends if end)


def _is_pure(op: Operation | None) -> bool:
    """Whether an operator may be computed again."""
    return isinstance(op, GraphOp) and all(
        inner.terminator or (inner.effects == Effect.PURE and not inner.defines) for inner in op.walk()
    )


def _viewed(value: Value) -> Value:
    while isinstance(op := value.defining_op, _VIEWS):
        value = op.operands[0]
    return value


def _size(d: Dim) -> int:
    if isinstance(d, int):
        return d
    top = bounds(d)[1]
    return UNBOUNDED if top is None else int(top)


def _elements(value: Value) -> int:
    return prod(map(_size, value.type.shape)) if isinstance(value.type, TensorType) else 0


def _bytes(value: Value) -> int:
    return _elements(value) * value.type.dtype.itemsize if isinstance(value.type, TensorType) else 0


def _work(op: Operation) -> int:
    """An estimate of the operations of an operator."""
    made = sum(map(_elements, op.results))
    if isinstance(op, _VIEWS):
        return 0
    if isinstance(op, g.Matmul):
        return 2 * made * _size(op.operands[0].type.shape[-1])
    if isinstance(op, g.Conv):
        return 2 * made * prod(map(_size, op.operands[1].type.shape[1:]))
    if isinstance(op, g.Einsum):  # exact for two matrices
        return 2 * isqrt(prod(map(_elements, (*op.operands, op.result))))
    if isinstance(op, g.Attention):
        return 4 * made * _size(op.operands[1].type.shape[2])
    if op.regions:
        inner = sum(_work(x) for k in op.regions for y in k.blocks for x in y.ops if not x.terminator)
        return inner * max((_size(v.type.shape[0]) for v in op.operands if v.type.shape), default=1)
    read = sum(map(_elements, op.operands))
    return made + read if isinstance(op, _CHEAP) else UNKNOWN_WORK * (made + read)


__all__ = ["Plan", "Rematerialization"]
