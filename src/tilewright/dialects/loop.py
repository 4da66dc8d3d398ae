"""The loop dialect: when and where elements are computed.

A `loop.kernel` takes buffers and shape symbols. It contains perfect or imperfect nests of `loop.for`, whose
induction variables are index symbols: extents, addresses and bindings are symbolic expressions rather than
SSA chains. A `loop.block` is the unit of scheduling: its body is written over its own `axes`, and `bindings`
express these in the surrounding loop variables. Schedule primitives rewrite loops and bindings, never bodies.
`schedule.finalize` removes blocks before code generation.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import notes
from ..ir.core import Attr, Effect, IRError, Operand, Operation, OptionalOperand, VariadicOperand, operation
from ..ir.interpreter import Array, Frame
from ..ir.substitution import evaluate
from ..ir.symbolic import Dim
from ..ir.types import BufferType, DType, Type
from .elements import Elements, Statement
from .scalar import BINARY, COMBINER_OP, combiner_identity
from .tensor import extent


class LoopKind(enum.StrEnum):
    """How the iterations of a `For` run. Every kind computes the same values."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    """Outermost loop only: the kernel's iterations are divided among worker threads."""
    VECTORIZE = "vectorize"
    """Iterations run in vector lanes. Any extent: the code generator strip-mines the loop and masks the
    tail.
    """
    UNROLL = "unroll"
    BLOCK_X = "block.x"
    """Index of a GPU workgroup; so are the next two."""
    BLOCK_Y = "block.y"
    BLOCK_Z = "block.z"
    THREAD_X = "thread.x"
    """Index of a GPU invocation within its workgroup; so are the next two."""
    THREAD_Y = "thread.y"
    THREAD_Z = "thread.z"

    __repr__ = str.__repr__  # Schedules and texts show a kind as the string that it is.


LOOP_KINDS = tuple(LoopKind)


@operation
class Kernel(Operation):
    """A function over buffers. Block arguments are the buffers, inputs before outputs (`num_outputs` of
    them); `dims` are the shape symbols it needs.
    """

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

    def interpret(self, env: Frame) -> tuple[()]:
        """A definition does nothing; `host.launch` (or ``Frame.run_block`` with arrays) runs the body."""
        return ()


@operation
class For(Operation):
    """``for iv in 0 .. iv.upper``; `iv` is an index symbol, possibly bounded by outer ones. `kind` is a
    `LoopKind`.

    `step` is the lane count of a vectorized loop or the factor of an unrolled one; 0 leaves it to the target.

    Values in registers may be carried around the loop: `inits` are their first values, the body's block
    arguments the current ones, `loop.yield` gives the next ones and the results are the last ones.
    `combiners` names how each is combined (``sum``, ``max``, ...), so that a vectorized loop may keep one
    partial result per lane.
    """

    name = "loop.for"
    effects = Effect.READ | Effect.WRITE
    num_regions = 1
    binds = ("iv",)
    inits: VariadicOperand
    iv: Attr
    combiners: Attr = ()
    kind: Attr = LoopKind.SERIAL
    step: Attr = 0

    @property
    def extent(self) -> Dim:
        return extent(self.iv)

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.inits)

    def verify(self) -> None:
        if len(self.combiners) != len(self.inits):
            raise IRError(f"{len(self.combiners)} combiners for {len(self.inits)} carried values", self)
        if self.kind not in LOOP_KINDS:
            raise IRError(f"unknown kind {self.kind!r}; known: {', '.join(LOOP_KINDS)}", self)

    def interpret(self, env: Frame, *inits: Array) -> tuple[Any, ...]:
        """Run the iterations in order, whatever the kind, unless `Frame.run_loop` runs them."""
        if env.run_loop is not None and not inits and env.run_loop(self, env):
            return ()
        values: Sequence[Any] = inits
        name, body = self.iv.name, self.body
        frame = env.child({name: 0})
        for i in range(int(env.evaluate(self.extent))):
            frame.dims[name] = i
            values = frame.run_block(body, values)
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

    def interpret(self, env: Frame) -> tuple[()]:
        if all(env.evaluate(e) >= 0 for e in self.conditions):
            env.run_block(self.body, ())
        return ()


@operation
class Runs(Statement):
    """Run the body for each run of equal elements in ``range[1]`` elements of the flat buffer `index`, from
    ``range[0]`` on.

    In the body, `first` is the position of the run's first element, counted from ``range[0]``, `length` the
    number of its elements, and `value` their value. Grouped matrix products use it: the data determine how
    many rows are multiplied with which matrix.
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

    def touched(self) -> tuple[Elements, ...]:
        return (self.box(self.index, self.range[0], [(self.range[1], 1)]),)

    def interpret(self, env: Frame, index: Array) -> tuple[()]:
        start, count = (int(env.evaluate(e)) for e in self.range)
        elements = index.reshape(-1)[start : start + max(count, 0)]
        ends = [*np.flatnonzero(elements[1:] != elements[:-1]) + 1, len(elements)] if len(elements) else []
        for first, end in zip([0, *ends], ends, strict=False):
            point = {self.first.name: int(first), self.length.name: int(end - first)}
            env.child({**point, self.value.name: int(elements[first])}).run_block(self.body, ())
        return ()


@operation
class Block(Operation):
    """A schedulable statement: `axes` (parallel) and `reduce_axes` index symbols with `bindings` to the
    surrounding loops.
    """

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
            raise IRError(
                f"{len(self.bindings)} bindings for {len(self.axes) + len(self.reduce_axes)} axes", self
            )

    def interpret(self, env: Frame) -> tuple[()]:
        axes = (*self.axes, *self.reduce_axes)
        dims = env.dims
        point = {a.name: evaluate(e, dims) for a, e in zip(axes, self.bindings, strict=True)}
        frame = env.child(point)
        if not any(point[a.name] for a in self.reduce_axes):
            self._initialize(frame)
        frame.run_block(self.body, ())
        return ()

    def _initialize(self, frame: Frame) -> None:
        """Store the identity at the first point of a reduction that has no initializing block."""
        if notes.INITIALIZED.get(self) or notes.KEEPS_CONTENTS.get(self):
            return
        for op in self.body.ops:
            if isinstance(op, Accumulate):
                target = frame.values[op.buffer]
                where = op.element(frame, target.shape, ())
                if where is not None:
                    target[where] = combiner_identity(op.combiner, op.dtype)


@operation
class Alloc(Operation):
    """A buffer that lives for one run of the enclosing region, in its type's memory space."""

    name = "loop.alloc"
    effects = Effect.ALLOCATE
    buffer: Attr  # BufferType

    def infer_types(self) -> Sequence[Type]:
        return (self.buffer,)

    def interpret(self, env: Frame) -> Any:
        shape = tuple(int(env.evaluate(d)) for d in self.buffer.shape)
        fill: Any = np.nan if self.buffer.dtype.is_float else 0
        return np.full(shape, fill, self.buffer.dtype.numpy)


class _Access(Operation):
    """Base of load, store and accumulate: one index per dimension in `indices`; ``v0``, ``v1``, ... in them
    stand for the operands `dynamic`.
    """

    indices: Any
    guard: Any

    def element(self, env: Frame, shape: tuple[int, ...], dynamic: Sequence[Any]) -> tuple[int, ...] | None:
        """The index of the access in an array of `shape`; None if the guard forbids the access.

        Raises:
            IRError: The index is outside the array.
        """
        dims, attributes = env.dims, self.attributes
        if dynamic:
            dims = dims | {f"v{k}": int(v) for k, v in enumerate(dynamic)}
        for e in attributes["guard"]:
            if evaluate(e, dims) < 0:
                return None
        index = tuple([e if type(e) is int else int(evaluate(e, dims)) for e in attributes["indices"]])
        for i, n in zip(index, shape, strict=True):
            if not 0 <= i < n:
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

    def interpret(self, env: Frame, source: Array, *rest: Array) -> Any:
        where = self.element(env, source.shape, rest[: len(self.dynamic)])
        return rest[-1] if where is None else source[where]


@operation
class Store(_Access):
    """``buffer[indices] = value``; no effect where an expression of `guard` is negative."""

    name = "loop.store"
    effects = Effect.WRITE
    value: Operand
    buffer: Operand
    dynamic: VariadicOperand
    indices: Attr
    guard: Attr = ()

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Frame, value: Array, target: Array, *dynamic: Array) -> tuple[()]:
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

    def interpret(self, env: Frame, value: Array, target: Array, *dynamic: Array) -> tuple[()]:
        where = self.element(env, target.shape, dynamic)
        if where is not None:
            target[where] = BINARY[self.combine].function(target[where], value)
        return ()
