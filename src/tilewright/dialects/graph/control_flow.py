"""Control flow at run time: computed sizes, branches, and loops with a condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import (
    Attr,
    Block,
    Effect,
    IRError,
    Operand,
    Operation,
    OptionalOperand,
    Value,
    VariadicOperand,
    operation,
)
from ...ir.interpreter import Array, Frame
from ...ir.symbolic import Dim, symbol
from ...ir.types import TensorType, Type, boolean, i64
from .. import tensor
from ..tensor_builder import TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, tensor_type
from .branch_gradients import branch_gradient
from .elementwise import BINARY, Cast, Select, Symbolic, constant
from .index import ScatterElements
from .loop_gradients import Loop, loop_gradient
from .operands import need_sizes
from .reduce import Cumsum, ReduceSum
from .scan import same_type, step_name
from .shape import BroadcastTo, Iota, Reshape
from .term import Term


@operation
class BindSize(GraphOp):
    """Make a number computed at run time a size: define `symbol` as the value of `count`, an i64 scalar
    within the symbol's bounds.
    """

    name = "graph.bind_size"
    effects = Effect.WRITE
    defines = ("symbol",)
    count: Operand
    symbol: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        if self.count.type is not TensorType(i64, ()):
            raise IRError(f"a size is an i64 scalar, not {self.count.type}", self)

    def interpret(self, env: Frame, count: Array) -> Any:
        return tensor.bind_size(self, env, count)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        t.builder.insert(tensor.BindSize(operands[0].value, symbol=self.symbol))
        return ()


@operation
class Check(GraphOp):
    """End the run with `message` unless `condition`, a bool scalar, holds."""

    name = "graph.check"
    effects = Effect.WRITE
    condition: Operand
    message: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        check_condition(self, self.condition)

    def interpret(self, env: Frame, condition: Array) -> Any:
        return tensor.check(self, condition)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        t.builder.insert(tensor.Check(operands[0].value, message=self.message))
        return ()


@operation
class NonZero(GraphOp):
    """The index vectors of the elements of `x` that are not 0, in row-major order: i64 of shape (`count`,
    rank). Defines `count`.
    """

    name = "graph.non_zero"
    effects = Effect.WRITE
    defines = ("count",)
    x: Operand
    count: Attr

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(i64, (self.count, tensor_type(self.x).rank)),)

    def interpret(self, env: Frame, x: Array) -> Any:
        places = np.argwhere(x).astype(np.int64)
        env.dims[self.count.name] = len(places)
        return places

    def decompose(self, b: Builder) -> Value:
        shape = tensor_type(self.x).shape
        size = tensor_type(self.x).size
        flags = b(Reshape(self.x, shape=(size,)))
        if flags.type.dtype is not boolean:
            flags = b(BINARY["ne"](flags, constant(b, 0, flags)))
        ones = b(Cast(flags, dtype=i64))
        b.insert(BindSize(b(ReduceSum(ones, axes=(0,), keepdims=False)), symbol=self.count))
        # A kept element's position is the number of kept elements before it. The other elements get positions
        # outside, where nothing is written.
        nowhere = b(BroadcastTo(b(Symbolic(values=(self.count,))), shape=(size,)))
        places = b(Select(flags, b(Cumsum(ones, axis=0, exclusive=True)), nowhere))
        empty = b(BroadcastTo(constant(b, 0, ones), shape=(self.count,)))
        vectors = b(ScatterElements(empty, places, b(Iota(shape=(size,))), axis=0))
        strides: list[Dim] = [1]
        for n in shape[:0:-1]:
            strides.insert(0, strides[0] * n)
        columns = b(Reshape(vectors, shape=(self.count, 1)))
        steps = b(Symbolic(values=tuple(strides[: len(shape)]), shape=(len(shape),)))
        counted = b(BINARY["floordiv"](columns, steps))
        return b(BINARY["mod"](counted, b(Symbolic(values=tuple(shape), shape=(len(shape),)))))


@operation
class AssumeShape(GraphOp):
    """`x` reshaped to a shape with as many elements. The run checks the sizes, which are computed at run time
    and not provably equal.
    """

    name = "graph.assume_shape"
    x: Operand
    shape: Attr

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        need_sizes(self, "shape")
        result = TensorType(x.dtype, self.shape)
        if x.is_static and result.is_static and x.size != result.size:
            raise IRError(f"x has shape {x.shape}, which is not as many elements as {result.shape}", self)
        return (result,)

    def fold(self) -> Any:
        return self.x if self.x.type is self.result.type else None

    def reference(self, x: Array, env: Frame) -> Any:
        return tensor.assumed(self, env, x, self.shape)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (at.cotangent.apply("assume_shape", at.cotangent.value, shape=at.operands[0].shape),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        return t.wrap(t.builder(tensor.AssumeShape(operands[0].value, shape=self.shape)))


@operation
class If(GraphOp):
    """The results of the first region if `condition` (a bool scalar) holds, else those of the second.

    Regions take no arguments, capture values of the enclosing blocks, and end in `graph.yield` with the
    results.
    """

    name = "graph.if"
    num_regions = 2
    condition: Operand

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.regions[0].block.terminator.operands)

    def verify(self) -> None:
        check_condition(self, self.condition)
        first, second = ([v.type for v in r.block.terminator.operands] for r in self.regions)
        if len(first) != len(second) or not all(map(same_type, first, second)):
            raise IRError(f"one branch yields {first}, the other {second}", self)

    def interpret(self, env: Frame, condition: Array) -> Any:
        return env.run_block(self.regions[0 if condition.all() else 1].block, ())

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return branch_gradient(self, at)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        op = tensor.If(operands[0].value, result_types=[r.type for r in self.results], location=self.location)
        for source, region in zip(self.regions, op.regions, strict=True):
            block = region.block
            values: dict[Value, Value] = {}
            _move(source.block, block, values)
            inside = TensorBuilder(Builder(block, location=self.location))
            ends = [
                inside.reshape(inside.wrap(values.get(v, v)), r.type.shape).value
                for v, r in zip(source.block.terminator.operands, self.results, strict=True)
            ]
            inside.builder.insert(tensor.Yield(ends))
        t.builder.insert(op)
        return [t.wrap(r) for r in op.results]


@operation
class While(GraphOp):
    """A loop with a condition: ``condition, *carried, *slices = body(step, *carried)`` for ``step = 0, 1,
    ...`` while `condition` holds.

    The carried values start as `initial`, the condition (a bool scalar) as the operand. At most `limit` (an
    i64 scalar) steps run. The body captures other values directly. Results are the carried values after the
    last step, then the slices of all steps stacked along a new leading axis of `count` elements; the
    operation defines the symbol `count` as the number of its steps.
    """

    name = "graph.while"
    effects = Effect.WRITE
    num_regions = 1
    defines = ("count",)
    condition: Operand
    limit: OptionalOperand
    initial: VariadicOperand
    count: Attr

    def infer_types(self) -> Sequence[Type]:
        carried = len(self.initial)
        slices = [v.type for v in self.body.terminator.operands[1 + carried :]]
        return (
            *(v.type for v in self.initial),
            *(TensorType(t.dtype, (self.count, *t.shape)) for t in slices),
        )

    def verify(self) -> None:
        check_condition(self, self.condition)
        check_condition(self, self.body.terminator.operands[0])
        if self.limit is not None and self.limit.type is not TensorType(i64, ()):
            raise IRError(f"the limit is an i64 scalar, not {self.limit.type}", self)
        if [a.type for a in self.body.args] != [TensorType(i64, ()), *(v.type for v in self.initial)]:
            raise IRError(f"the body takes {[a.type for a in self.body.args]}", self)
        ends = self.body.terminator.operands[1:]
        for k, (x, end) in enumerate(zip(self.initial, ends, strict=False)):
            if not same_type(x.type, end.type):
                raise IRError(f"carried value {k} begins as {x.type} and becomes {end.type}", self)

    def interpret(self, env: Frame, *operands: Array) -> Any:
        return tensor.run_while(
            self, env, operands, lambda step, carried: env.run_block(self.body, [np.int64(step), *carried])
        )

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        limited = self.limit is not None
        return loop_gradient(
            Loop(
                self,
                self.count,
                self.body.args[1:],
                self.body.args[:1],
                [lambda like: like.iota(self.count)],
                [False],
                first=1,
                initial=1 + limited,
                scanned=[None],
                out_flags=[False] * (len(self.results) - len(self.initial)),
                extended=lambda: None,
                reverse=False,
            ),
            at,
        )

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        condition, *initial = (x.value for x in operands)
        limit = None if self.limit is None else initial.pop(0)
        step = symbol(step_name(self), 0, None)
        loop = tensor.While(
            condition,
            limit,
            initial,
            step=step,
            count=self.count,
            result_types=[r.type for r in self.results],
            location=self.location,
        )
        values: dict[Value, Value] = {a: loop.body.add_arg(a.type, a.hint) for a in self.body.args[1:]}
        inside = TensorBuilder(Builder(loop.body, location=self.location))
        values[self.body.args[0]] = inside.compute((), lambda: inside.index(step)).value
        _move(self.body, loop.body, values)
        ends = [values.get(v, v) for v in self.body.terminator.operands]
        for k, x in enumerate(self.initial, 1):
            ends[k] = inside.reshape(inside.wrap(ends[k]), x.type.shape).value
        inside.builder.insert(tensor.Yield(ends))
        t.builder.insert(loop)
        return [t.wrap(r) for r in loop.results]


def _move(source: Block, target: Block, values: dict[Value, Value]) -> None:
    """Copy the operations of a block except its terminator."""
    for op in source.ops:
        if not op.terminator:
            target.append(op.clone(values))


def check_condition(op: Operation, value: Value) -> None:
    """Check that a value is a condition, a bool scalar.

    Raises:
        IRError: It is not.
    """
    if value.type is not TensorType(boolean, ()):
        raise IRError(f"a condition is a bool scalar, not {value.type}", op)


__all__ = ["AssumeShape", "BindSize", "Check", "If", "NonZero", "While"]
