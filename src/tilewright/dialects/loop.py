"""The loop dialect: when and where elements are computed.

A `loop.kernel` takes buffers and shape symbols. Inside it stand perfect or imperfect nests of `loop.for` whose induction
variables are index symbols, so that extents, addresses and bindings are symbolic expressions rather than SSA chains. A
`loop.block` is the unit of scheduling: its body is written over its own `axes`, which `bindings` express in the surrounding
loop variables; schedule primitives rewrite loops and bindings, never bodies. `inline-blocks` removes blocks before code
generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.core import Attr, Effect, IRError, Operand, Operation, OptionalOperand, VariadicOperand, operation
from ..ir.symbolic import Dim
from ..ir.types import BufferType, DType, Type
from .scalar import BINARY, COMBINER_OP, combiner_identity
from .tensor import extent

GRAIN = "tw.grain"
"""Attribute of a kernel: how many iterations of its parallel loop are worth a thread (a `Dim` over its dims)."""

STEPS = "tw.steps"
"""Attribute of a loop whose iterations hand values on in memory."""

FOR_KINDS = (
    "serial",
    "parallel",  # outermost only: the kernel's iterations are divided over worker threads
    "vectorize",  # iterations run in vector lanes; any extent, the code generator strip-mines and masks the tail
    "unroll",
    "block.x",  # GPU workgroup indices
    "block.y",
    "block.z",
    "thread.x",  # GPU invocation indices within the workgroup
    "thread.y",
    "thread.z",
)


@operation
class Kernel(Operation):
    """A function over buffers. Block arguments are the buffers, inputs before outputs (`num_outputs` of them); `dims` are the shape symbols it needs."""

    name = "loop.kernel"
    effects = Effect.CONTROL
    num_regions = 1
    binds = ("dims",)
    sym_name: Attr
    dims: Attr = ()
    num_outputs: Attr = 1

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        if not all(isinstance(a.type, BufferType) for a in self.body.args):
            raise IRError("arguments must be buffers", self)

    def interpret(self, env: Any) -> tuple[()]:
        """A definition does nothing; `host.launch` (or ``Frame.run_block`` with arrays) runs the body."""
        return ()


@operation
class For(Operation):
    """``for iv in 0 .. iv.upper``; `iv` is an index symbol, possibly bounded by outer ones. `kind` is one of `FOR_KINDS`.

    `step` is the lane count of a vectorized loop or the factor of an unrolled one; 0 leaves it to the target.

    Values in registers may be carried around the loop: `inits` are their first values, the body's block arguments the current
    ones, `loop.yield` gives the next ones and the results are the last ones. `combiners` names how each is combined (``sum``, ``max``, ...),
    so that a vectorized loop may keep one partial result per lane.
    """

    name = "loop.for"
    effects = Effect.READ | Effect.WRITE
    num_regions = 1
    binds = ("iv",)
    inits: VariadicOperand
    iv: Attr
    combiners: Attr = ()
    kind: Attr = "serial"
    step: Attr = 0

    @property
    def extent(self) -> Dim:
        return extent(self.iv)

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.inits)

    def verify(self) -> None:
        if len(self.combiners) != len(self.inits):
            raise IRError(f"{len(self.combiners)} combiners for {len(self.inits)} carried values", self)
        if self.kind not in FOR_KINDS:
            raise IRError(f"unknown kind {self.kind!r}; known: {', '.join(FOR_KINDS)}", self)

    def interpret(self, env: Any, *inits: Any) -> tuple[Any, ...]:
        """Every kind means the same: the iterations one after the other."""
        values: Sequence[Any] = inits
        for i in range(int(env.evaluate(self.extent))):
            values = env.child({self.iv.name: i}).run_block(self.body, values)
        return tuple(values)


@operation
class Yield(Operation):
    """Ends the body of a loop that carries values: their next values."""

    name = "loop.yield"
    effects = Effect.CONTROL
    terminator = True
    values: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return ()


@operation
class If(Operation):
    """Runs its body where every expression of `conditions` is >= 0."""

    name = "loop.if"
    effects = Effect.READ | Effect.WRITE
    num_regions = 1
    conditions: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Any) -> tuple[()]:
        if all(env.evaluate(e) >= 0 for e in self.conditions):
            env.run_block(self.body, ())
        return ()


@operation
class Runs(Operation):
    """For each run of equal elements among those of the flat buffer `index` from ``range[0]`` on, ``range[1]`` in all: its body, in which `first` is the place of the
    run's first element counted from there, `length` how many there are, and `value` what they are.

    What data decide in a kernel: how many rows are multiplied with which matrix.
    """

    name = "loop.runs"
    effects = Effect.READ | Effect.WRITE
    num_regions = 1
    binds = ("first", "length", "value")
    index: Operand
    first: Attr
    length: Attr
    value: Attr
    range: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Any, index: Any) -> tuple[()]:
        start, count = (int(env.evaluate(e)) for e in self.range)
        elements = index.reshape(-1)[start : start + max(count, 0)]
        ends = [*np.flatnonzero(elements[1:] != elements[:-1]) + 1, len(elements)] if len(elements) else []
        for first, end in zip([0, *ends], ends, strict=False):
            point = {self.first.name: int(first), self.length.name: int(end - first)}
            env.child({**point, self.value.name: int(elements[first])}).run_block(self.body, ())
        return ()


@operation
class Block(Operation):
    """A schedulable statement: `axes` (parallel) and `reduce_axes` index symbols with `bindings` to the surrounding loops."""

    name = "loop.block"
    effects = Effect.READ | Effect.WRITE
    num_regions = 1
    binds = ("axes", "reduce_axes")
    sym_name: Attr
    axes: Attr = ()
    reduce_axes: Attr = ()
    bindings: Attr = ()  # one expression per axis, parallel axes first

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        if len(self.bindings) != len(self.axes) + len(self.reduce_axes):
            raise IRError(f"{len(self.bindings)} bindings for {len(self.axes) + len(self.reduce_axes)} axes", self)

    def interpret(self, env: Any) -> tuple[()]:
        axes = (*self.axes, *self.reduce_axes)
        point = {a.name: env.evaluate(e) for a, e in zip(axes, self.bindings, strict=True)}
        frame = env.child(point)
        if not any(point[a.name] for a in self.reduce_axes):
            self._initialize(frame)
        frame.run_block(self.body, ())
        return ()

    def _initialize(self, frame: Any) -> None:
        """A reduction that no schedule has given an initializing block starts from the neutral element at its first point."""
        if self.attributes.get("tw.initialized") or self.attributes.get("tw.in_place"):
            return
        for op in self.body.ops:
            if isinstance(op, Accumulate):
                target = frame.values[op.buffer]
                where = op.element(frame, target.shape, ())
                if where is not None:
                    target[where] = combiner_identity(op.combiner, op.dtype)


@operation
class Alloc(Operation):
    """A buffer living for one run of the enclosing region; its type's space says where."""

    name = "loop.alloc"
    effects = Effect.ALLOCATE
    buffer: Attr  # BufferType

    def infer_types(self) -> Sequence[Type]:
        return (self.buffer,)

    def interpret(self, env: Any) -> Any:
        shape = tuple(int(env.evaluate(d)) for d in self.buffer.shape)
        fill: Any = np.nan if self.buffer.dtype.is_float else 0
        return np.full(shape, fill, self.buffer.dtype.numpy)


class _Access(Operation):
    """Shared by load, store and accumulate: `indices` per dimension; ``v0``... stand for the operands `dynamic`."""

    indices: Any
    guard: Any

    def element(self, env: Any, shape: tuple[int, ...], dynamic: Sequence[Any]) -> tuple[int, ...] | None:
        """Where in an array of `shape` the access goes, None where the guard forbids it.

        Raises:
            IRError: outside the array.
        """
        values = {f"v{k}": int(v) for k, v in enumerate(dynamic)}
        if any(env.evaluate(e, values) < 0 for e in self.guard):
            return None
        index = tuple(int(env.evaluate(e, values)) for e in self.indices)
        if any(not 0 <= i < n for i, n in zip(index, shape, strict=True)):
            raise IRError(f"addresses element {index} of a buffer of shape {shape}", self)
        return index


@operation
class Load(_Access):
    """One element of a buffer; `guard` and `otherwise` as in `tensor.read`."""

    name = "loop.load"
    effects = Effect.READ
    buffer: Operand
    dynamic: VariadicOperand
    otherwise: OptionalOperand
    indices: Attr
    guard: Attr = ()

    def infer_types(self) -> Sequence[Type]:
        return (self.buffer.type.dtype,)

    def interpret(self, env: Any, source: Any, *rest: Any) -> Any:
        where = self.element(env, source.shape, rest[: len(self.dynamic)])
        return rest[-1] if where is None else source[where]


@operation
class Store(_Access):
    """``buffer[indices] = value``; nothing where an expression of `guard` is negative."""

    name = "loop.store"
    effects = Effect.WRITE
    value: Operand
    buffer: Operand
    dynamic: VariadicOperand
    indices: Attr
    guard: Attr = ()

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Any, value: Any, target: Any, *dynamic: Any) -> tuple[()]:
        where = self.element(env, target.shape, dynamic)
        if where is not None:
            target[where] = value
        return ()


@operation
class Accumulate(_Access):
    """``buffer[indices] = combine(buffer[indices], value)`` with the operation of `combiner`."""

    name = "loop.accumulate"
    effects = Effect.READ | Effect.WRITE
    value: Operand
    buffer: Operand
    dynamic: VariadicOperand
    combiner: Attr
    indices: Attr
    guard: Attr = ()

    @property
    def combine(self) -> str:
        """Name of the scalar function that combines."""
        return COMBINER_OP[self.combiner]

    @property
    def dtype(self) -> DType:
        dtype: DType = self.value.type
        return dtype

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Any, value: Any, target: Any, *dynamic: Any) -> tuple[()]:
        where = self.element(env, target.shape, dynamic)
        if where is not None:
            with np.errstate(all="ignore"):
                target[where] = BINARY[self.combine].function(target[where], value)
        return ()
