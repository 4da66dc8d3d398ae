"""Lowers contractions to 16-bit factors with float32 sums, when the user asked for that precision.

It runs after elementwise fusion. The factors of each contraction that `lowers` are then read in the 16-bit
type and widened, ``cast(a16[m, k]) * cast(b16[k, n])``. Sums, epilogues, statistics, losses and results stay
float32. The number of conversions depends on where the 16-bit values come from:

- A constant is rounded here, once.
- A computation whose consumers all take 16 bits yields a rounded value: contractions round in their
  epilogues, a softmax in its row group.
- Other consumers of an elementwise result (the residual connection of a convolutional network) take the
  rounded value, too.
- If several contractions are added and the sum is rounded (the shortcut of that connection), one stays in
  float32 and the others are rounded.
- A value that a normalization or a statistic also needs in float32 (the residual stream of a transformer) is
  stored in both types, by a computation that joins the producer's row group.
- An input of the function, a value that a loop carries and one that waits for others (`tensor.after`) are
  converted by computations of their own.

Depthwise convolutions, transforms of tiles (`graph.winograd_conv`), and computations that only rearrange
elements or take maxima, read 16 bits where their source has them, but do not cause a conversion. Activations
thus stay in 16 bits between the layers of a convolutional network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.contraction import Contraction, match_contraction
from ...analysis.index_maps import symbols_of
from ...analysis.recurrence import match_recurrence
from ...dialects import graph, scalar, tensor
from ...dialects.tensor import extent
from ...dialects.tensor_builder import TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import Block, Module, Operation, Value
from ...ir.target_info import TargetInfo
from ...ir.types import DType, bf16, f16, f32
from ...ir.walk import post_order, reachable
from .fuse_elementwise import fuse_elementwise
from .pad_reductions import LEAST_DEPTH

CONVERSION = "narrow"
"""The note `ORIGIN` of conversions that this pass inserts."""

_EXACT = ("scalar.max", "scalar.min", "scalar.neg", "scalar.abs", "scalar.select")
"""Operations that commute with rounding; for a selection, rounding of its two values."""


def lower_precision(module: Module, precision: DType) -> None:
    """Let every float32 contraction that `lowers` read its factors as `precision`, bf16 or f16."""
    _lower(module, precision, lowers, all_values=True)


def round_factors(module: Module, info: TargetInfo) -> None:
    """Let products whose operator allows it (the note `FACTORS`) read factors of 16 bits: attention of 16-bit
    queries, keys and values, which no kernel widens in memory then.

    Factors of more digits, the weights, are rounded only if a matrix instruction of the device takes them.
    """
    for dtype in (bf16, f16):
        taken = info.gpu is not None and any(atom.left_type is dtype for atom in info.gpu.atoms)

        def allows(c: Contraction, dtype: DType = dtype) -> bool:
            return c.dtype is f32 and notes.FACTORS.get(c.compute) == dtype.name

        _lower(module, dtype, allows, all_values=False, rounds=taken)
    fuse_elementwise(module, info)


def _lower(
    module: Module,
    precision: DType,
    chosen: Callable[[Contraction], bool],
    *,
    all_values: bool,
    rounds: bool = True,
) -> None:
    """Let the `chosen` contractions read their factors in another type, without `rounds` those alone that
    were widened from it. With `all_values`, other computations read 16 bits, too, where that is free.
    """
    blocks = tensor.blocks_of_computations(module)
    # Values that one kernel carries from step to step are read from registers: the bodies of such loops stay
    # as they are.
    recurrent = {
        op.body
        for b in blocks
        for op in b.ops
        if isinstance(op, tensor.Scan) and match_recurrence(op) is not None
    }
    _Lowering([b for b in blocks if b not in recurrent], precision, chosen, all_values, rounds).lower()
    dce(module)


def lowers(c: Contraction) -> bool:
    """Whether a contraction takes 16-bit factors.

    It must sum in float32, have at least `LEAST_DEPTH` terms in its innermost sum, and not be noted as one
    whose factors stay exact.
    """
    if c.dtype is not f32 or notes.FACTORS.get(c.compute) == f32.name:
        return False
    strides = [s if isinstance(s := c.a.coefficients[axis], int) else 1 << 62 for axis in c.k]
    depth = extent(c.k[strides.index(min(strides))])
    return not isinstance(depth, int) or depth >= LEAST_DEPTH


class _Lowering:
    """One run of the pass over the blocks of a module, from the last operation to the first: consumers before
    producers.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        dtype: DType,
        chosen: Callable[[Contraction], bool],
        all_values: bool,
        rounds: bool,
    ) -> None:
        self.blocks, self.dtype = blocks, dtype
        self.chosen, self.all_values, self.rounds = chosen, all_values, rounds
        self.needed: set[Operation] = set()
        """Reads that must become 16-bit reads."""
        self.welcome: set[Operation] = set()
        """Reads that become 16-bit reads if that needs no conversion kernel."""
        self.views: dict[Value, Value] = {}

    def lower(self) -> None:
        for block in self.blocks:
            for op in block.ops:
                if isinstance(op, tensor.Compute):
                    self._note(op)
        for block in reversed(self.blocks):  # the body of a loop before the values that it captures
            for op in reversed(list(block.ops)):
                if isinstance(op, graph.Constant):
                    self._constant(op)
                elif isinstance(op, (tensor.Compute, tensor.Scatter)) and op.result.type.dtype is f32:
                    self._produced(op)
                elif isinstance(op, (tensor.Nested, tensor.After)):
                    for result in op.results:
                        self._given(result, Builder.after(op))
            for arg in block.args:
                self._given(arg, Builder(block, block.first))

    def _given(self, value: Value, builder: Builder) -> None:
        """Convert a value that no computation of the block produces (an argument, a result of a loop, a
        value after others) if
        16-bit reads need it.
        """
        reads = [r for r in tensor.readers(value) if r in self.needed]
        if reads:
            self._redirect(reads, value, self._copy(value, builder))

    def _note(self, op: tensor.Compute) -> None:
        contraction = match_contraction(op)
        if contraction is not None:
            if self.chosen(contraction):
                reads = [x.read for x in (contraction.a, contraction.b) if x.type.dtype is f32]
                self.needed |= {r for r in reads if self.rounds or _widened(r, self.dtype)}
            if notes.TRANSFORMED.present(op):
                tiles = _source(contraction.a.read)
                assert isinstance(tiles, tensor.Compute)
                self.welcome |= {r for r in tiles.reads if r.source.type.dtype is f32}
        elif self.all_values:
            self.welcome |= {r for r in _weighed(op) if r.source.type.dtype is f32}

    # -- Producers --

    def _constant(self, op: graph.Constant) -> None:
        reads = [r for r in tensor.readers(op.result) if r in self.needed]
        if not reads:
            return
        source, dtype = op.value, self.dtype.numpy
        name = f"{source.name}.{self.dtype.name}" if source.name else self.dtype.name
        rounded = Constant.made(source.shape, dtype, _Rounded(source, dtype), name)
        rounded.made_of([source], f"rounded to {self.dtype.name}")
        self._redirect(
            reads, op.result, Builder.after(op)(graph.Constant(value=rounded, location=op.location))
        )

    def _produced(self, op: tensor.Compute | tensor.Scatter) -> None:
        readers = list(tensor.readers(op.result))
        needed = [r for r in readers if r in self.needed]
        wanted = [r for r in readers if r in self.needed or r in self.welcome or self._adds_up(op, r)]
        if not wanted:
            return
        everyone = len(wanted) == len(readers) or self._may_round(op, readers, wanted)
        if everyone and isinstance(op, tensor.Compute) and op.combiner in (None, "max", "min"):
            low = self._round(op)
        elif needed or (everyone and isinstance(op, tensor.Compute) and match_contraction(op) is not None):
            low = self._copy(op.result, Builder.after(op))
        else:
            return
        self._redirect(readers if everyone else wanted, op.result, low)

    def _may_round(self, op: Operation, readers: list[Operation], wanted: list[Operation]) -> bool:
        """Whether consumers that did not ask for the rounded value may read it as well."""
        others = [r for r in readers if r not in wanted]
        if not self.all_values:
            return False
        if not all(isinstance(r, tensor.Read) for r in others) or _normalizes(op):
            return False
        around = [r.parent_op for r in others]
        return not any(isinstance(c, tensor.Compute) and c.is_reduction for c in around)

    def _adds_up(self, op: Operation, read: Operation) -> bool:
        """Whether `read` adds the contraction `op` to another contraction, in elementwise work that is
        rounded.

        That work becomes the other contraction's epilogue, so `op` is stored: the shortcut of a convolutional
        network.
        """
        reader = read.parent_op
        if not self.all_values:
            return False
        if not isinstance(read, tensor.Read) or not isinstance(reader, tensor.Compute) or reader.is_reduction:
            return False
        added = [
            s for s in map(_source, reader.reads) if isinstance(s, tensor.Compute) and match_contraction(s)
        ]
        return op in added[1:] and op is not added[0] and reader.result.type.dtype is self.dtype

    def _round(self, op: tensor.Compute) -> Value:
        """Let a computation yield the rounded value."""
        end = op.body.terminator
        value = end.operands[0]
        for read in _exact_reads(value):
            if read.source.type.dtype is f32:
                self.welcome.add(read)
        end.set_operand(0, self._narrow(Builder.before(end), value))
        op.result.type = op.result.type.with_dtype(self.dtype)
        return op.result

    def _copy(self, value: Value, builder: Builder) -> Value:
        """Insert a computation that rounds a tensor; return its result."""
        t = TensorBuilder(builder)
        x = t.wrap(value)
        low = t.compute(value.type.shape, lambda *i: x[i].cast(self.dtype)).value
        assert low.defining_op is not None
        notes.ORIGIN.set(low.defining_op, CONVERSION)
        return low

    # -- Consumers --

    def _redirect(self, reads: list[Operation], value: Value, low: Value) -> None:
        """Let reads of `value`, directly or through views, read `low` and widen the element."""
        self.views[value] = low
        for read in reads:
            assert isinstance(read, tensor.Read)
            builder = Builder.before(read)
            otherwise = None if read.otherwise is None else self._narrow(builder, read.otherwise)
            narrow = builder(
                tensor.Read(
                    self._view(read.source),
                    list(read.dynamic),
                    otherwise,
                    indices=read.indices,
                    guard=read.guard,
                    location=read.location,
                )
            )
            for user in list(read.result.users):
                if isinstance(user, scalar.Cast) and user.dtype is self.dtype:
                    user.result.replace_by(narrow)
                    user.erase()
            if read.result.has_uses:
                read.replace_by(builder(scalar.Cast(narrow, dtype=f32)))
            read.erase()

    def _narrow(self, builder: Builder, value: Value) -> Value:
        """The rounded form of a value in a body; a selection chooses among rounded values."""
        narrow: dict[Value, Value] = {}
        for v in post_order([value], _selected):
            op = v.defining_op
            if isinstance(op, scalar.Cast) and op.x.type is self.dtype and not self.all_values:
                narrow[v] = op.x
            elif isinstance(op, scalar.Constant):
                narrow[v] = builder(scalar.Constant(value=op.value, dtype=self.dtype))
            elif isinstance(op, scalar.Select) and _selected(v):
                narrow[v] = builder(scalar.Select(op.condition, narrow[op.a], narrow[op.b]))
            else:
                narrow[v] = builder(scalar.Cast(v, dtype=self.dtype))
        return narrow[value]

    def _view(self, value: Value) -> Value:
        """The 16-bit tensor that replaces a float32 one, behind the same reshapes."""
        above: list[Value] = []
        while value not in self.views:
            view = value.defining_op
            assert isinstance(view, tensor.Reshape)
            above.append(value)
            value = view.x
        for value in reversed(above):
            view = value.defining_op
            assert isinstance(view, tensor.Reshape)
            source = self.views[view.x]
            self.views[value] = Builder.after(view)(
                tensor.Reshape(source, shape=view.shape, location=view.location)
            )
        return self.views[value]


def _weighed(op: tensor.Compute) -> list[tensor.Read]:
    """The reads of the weighted elements, if `op` sums elements weighted by constants and is not a
    contraction.

    A depthwise convolution is such a sum.
    """
    product = op.body.terminator.operands[0].defining_op
    if op.combiner != "sum" or not isinstance(product, scalar.BINARY["mul"]):
        return []
    left, right = (_exact_reads(v) for v in product.operands)
    if not left or not right:
        return []
    moving = [
        reads for reads in (left, right) if not any(isinstance(_source(r), graph.Constant) for r in reads)
    ]
    return moving[0] if len(moving) == 1 else []


def _source(read: Operation) -> Operation | None:
    """The operation that computes the tensor behind a read, through views."""
    op = read.operands[0].defining_op
    while isinstance(op, tensor.Reshape):
        op = op.x.defining_op
    return op


def _widened(read: Operation, dtype: DType) -> bool:
    """Whether a read gives numbers that were converted from a type."""
    op = _source(read)
    if not isinstance(op, tensor.Compute) or op.is_reduction:
        return False
    value = op.body.terminator.operands[0].defining_op
    return isinstance(value, scalar.Cast) and value.x.type is dtype


def _normalizes(op: Operation) -> bool:
    """Whether an elementwise computation uses statistics: sums that are not contractions, or values broadcast
    from them.
    """

    def broadcast(op: Operation) -> list[Operation]:
        """The computations with fewer elements than an elementwise computation that it reads."""
        if not isinstance(op, tensor.Compute) or op.is_reduction:
            return []
        moving = {a for a in op.axes if not (isinstance(extent(a), int) and extent(a) == 1)}
        sources = ((r, _source(r)) for r in op.reads)
        return [
            s
            for r, s in sources
            if isinstance(s, tensor.Compute) and (s.is_reduction or not moving <= symbols_of(r.indices))
        ]

    return any(
        isinstance(source, tensor.Compute)
        and source.is_reduction
        and source is not op
        and source.combiner == "sum"
        and match_contraction(source) is None
        and not _weighed(source)
        for source in reachable([op], broadcast)
    )


def _selected(value: Value) -> tuple[Value, ...]:
    """The two values of a selection without other consumers; empty for any other value."""
    op = value.defining_op
    return (op.a, op.b) if isinstance(op, scalar.Select) and value.has_one_use else ()


def _exact_reads(value: Value) -> list[tensor.Read]:
    """The reads that a value in a body comes from by moving, selecting and extremes alone; empty if other
    operations take part.
    """
    reads: list[tensor.Read] = []
    for v in reachable([value], _moved_values):
        op = v.defining_op
        if isinstance(op, scalar.Constant):
            continue
        if op is None or len(list(v.users)) != 1:
            return []
        if isinstance(op, tensor.Read):
            reads.append(op)
        elif op.name not in _EXACT:
            return []
    return reads


def _moved_values(value: Value) -> Sequence[Value]:
    op = value.defining_op
    if op is None or isinstance(op, tensor.Read):
        return ()
    return op.operands[1:] if isinstance(op, scalar.Select) else op.operands


@dataclass(frozen=True)
class _Rounded:
    """Writes a constant rounded to a type."""

    source: Constant
    dtype: np.dtype[Any]

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        out[...] = self.source.array  # rounds to nearest, ties to even


__all__ = ["CONVERSION", "lower_precision", "lowers", "round_factors"]
