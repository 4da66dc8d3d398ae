"""The tensor dialect: how each element of a result is computed.

`tensor.compute` is a pull-style, index-mapped computation: for every point of its parallel `axes` and, in a
reduction, of its `reduce_axes`, the body yields one scalar from the elements that it reads. Bodies capture
tensors of the enclosing function directly. `tensor.group` isolates the computations of one kernel. Fusion
composes index maps, so that slicing, padding, transposing, gathering and broadcasting are all the same
operation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, SupportsInt

import numpy as np

from ..errors import DivisionError, OutOfRangeError
from ..ir.core import (
    Attr,
    Block,
    Effect,
    IRError,
    Module,
    Operand,
    Operation,
    OptionalOperand,
    Value,
    VariadicOperand,
    operation,
)
from ..ir.interpreter import Array, Frame
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, bounds, free_symbols, prove_eq
from ..ir.types import DType, Shape, TensorType, Type, i64
from ..ir.walk import reachable
from . import scalar
from .func import Func
from .scalar import combiner_identity


def extent(axis: Expr) -> Dim:
    """Number of values of an index symbol (its inclusive upper bound plus one)."""
    return axis.upper + 1


@operation
class Read(Operation):
    """One element of a tensor.

    `indices` are expressions over the axes of the enclosing computation; ``v0``, ``v1``, ... in them stand
    for the operands `dynamic` (i64 scalars: data-dependent indices). When any expression of `guard` is
    negative the element is not touched and the result is `otherwise`.
    """

    name = "tensor.read"
    effects = Effect.PURE
    source: Operand
    dynamic: VariadicOperand
    otherwise: OptionalOperand
    indices: Attr
    guard: Attr = ()

    def infer_types(self) -> Sequence[Type]:
        return (self.source.type.dtype,)

    def verify(self) -> None:
        if len(self.indices) != self.source.type.rank:
            raise IRError(f"{len(self.indices)} indices into {self.source.type}", self)
        if any(v.type is not i64 for v in self.dynamic):
            raise IRError("data-dependent indices must be i64", self)
        if self.guard and (self.otherwise is None or self.otherwise.type is not self.source.type.dtype):
            raise IRError("a guarded read needs 'otherwise' of the tensor's dtype", self)

    def interpret(self, env: Frame, source: Array, *rest: Array) -> Any:
        values = {f"v{k}": np.asarray(v) for k, v in enumerate(rest[: len(self.dynamic)])}
        index = tuple(np.asarray(env.evaluate(e, values)) for e in self.indices)
        inside: Any = np.True_
        for e in self.guard:
            inside = inside & (np.asarray(env.evaluate(e, values)) >= 0)
        if not self.guard:
            # A masked element or one of an empty axis may be addressed here; its value is never used.
            if all(source.shape):
                index = tuple(np.clip(i, 0, n - 1) for i, n in zip(index, source.shape, strict=True))
            return source[index] if index else source[()]
        if not all(source.shape):
            return rest[-1]
        safe = tuple(np.clip(i, 0, n - 1) for i, n in zip(index, source.shape, strict=True))
        return np.where(inside, source[safe] if safe else source[()], rest[-1])


@operation
class Yield(Operation):
    """Ends a body: the scalar value of the point, or the results of a group."""

    name = "tensor.yield"
    effects = Effect.CONTROL
    terminator = True
    values: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return ()


def reads_of(op: Operation) -> list[Read]:
    """The reads in a computation's body."""
    return [child for child in op.body.ops if isinstance(child, Read)]


@operation
class Compute(Operation):
    """``result[axes] = combine over reduce_axes of body``.

    `axes` and `reduce_axes` are index symbols whose inclusive upper bounds give the extents (a reduce axis
    may be bounded by a parallel one: triangular domains). `combiner` is None without reduce axes, else ``sum
    prod max min and or``.
    """

    name = "tensor.compute"
    effects = Effect.PURE
    num_regions = 1
    binds = ("axes", "reduce_axes")
    axes: Attr
    reduce_axes: Attr = ()
    combiner: Attr = None

    @property
    def is_reduction(self) -> bool:
        return self.combiner is not None

    @property
    def reads(self) -> list[Read]:
        return reads_of(self)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(extent(a) for a in self.axes)

    @property
    def dtype(self) -> DType:
        return self.result.type.dtype

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(self.body.terminator.operands[0].type, self.shape),)

    def verify(self) -> None:
        end = self.body.terminator
        if len(end.operands) != 1 or end.operands[0].type is not self.dtype:
            raise IRError(f"body must yield one {self.dtype}", self)
        if len(self.axes) != self.result.type.rank:
            raise IRError(f"{len(self.axes)} axes for a result of rank {self.result.type.rank}", self)
        for axis, dim in zip(self.axes, self.result.type.shape, strict=True):
            if not prove_eq(extent(axis), dim):
                raise IRError(f"axis {axis} has extent {extent(axis)}, the result's dimension is {dim}", self)
        if self.is_reduction and self.dtype.is_sub_byte and self.dtype.is_integer:
            raise IRError(
                f"does not support arithmetic on {self.dtype.label}: convert it to a wider integer first",
                self,
            )
        if (self.combiner is None) != (not self.reduce_axes):
            raise IRError("a combiner needs reduce axes, and reduce axes a combiner", self)

    def interpret(self, env: Frame) -> Any:
        out_shape = tuple(int(env.evaluate(d)) for d in self.shape)
        result = np.empty(out_shape, self.dtype.numpy)
        identity = np.asarray(
            combiner_identity(self.combiner, self.dtype) if self.is_reduction else 0, self.dtype.numpy
        )
        if 0 in out_shape:
            return result
        axes = (*self.axes, *self.reduce_axes)
        rank = len(axes)
        extents = list(out_shape)
        for axis in self.reduce_axes:
            widest = _largest(axis.upper, dict(zip(self.axes, out_shape, strict=True)), env)
            extents.append(widest + 1)
        if self.is_reduction and 0 in extents[len(out_shape) :]:
            result[...] = identity
            return result
        # Slabs of the first axis bound the memory: a contraction's full domain is never materialized.
        per_row = int(np.prod(extents[1:], dtype=np.int64)) if rank else 1
        step = max(1, (1 << 22) // max(per_row, 1)) if out_shape else 1
        for start in range(0, out_shape[0] if out_shape else 1, step):
            stop = min(start + step, out_shape[0]) if out_shape else 1
            frame, mask = {}, None
            for position, (axis, n) in enumerate(zip(axes, extents, strict=True)):
                values = np.arange(start, stop) if position == 0 and out_shape else np.arange(n)
                frame[axis.name] = values.reshape([-1 if p == position else 1 for p in range(rank)])
            child = env.child(frame)
            for axis in self.reduce_axes:
                if free_symbols_of(axis.upper) & set(axes):
                    inside = frame[axis.name] <= np.asarray(child.evaluate(axis.upper))
                    mask = inside if mask is None else mask & inside
            (value,) = child.run_block(self.body, ())
            slab = [stop - start, *extents[1:]] if out_shape else extents
            value = np.broadcast_to(value, slab)
            if mask is not None:
                value = np.where(mask, value, identity)
            if self.is_reduction:
                value = reduce_array(self.combiner, value, tuple(range(len(out_shape), rank)))
            if out_shape:
                result[start:stop] = value
            else:
                result[()] = value
        return result


def is_dynamic_symbol(s: Expr) -> bool:
    """Whether a symbol stands for a data-dependent index (``v0``, ``v1``, ... in the expressions of an
    access).
    """
    name = s.name
    return name[0] == "v" and name[1:].isdigit()


def free_symbols_of(e: Dim) -> frozenset[Expr]:
    """The symbols in a dimension that may be a plain integer."""
    return frozenset() if isinstance(e, int) else free_symbols(e)


def substitute_indices(op: Operation, mapping: Mapping[Expr, Dim]) -> None:
    """Substitute symbols in the index expressions of an operation in a body: indices, guards, an index used
    as a value.
    """
    for key in ("indices", "guard"):
        if key in op.attributes:
            op.attributes[key] = tuple(substitute(e, mapping) for e in op.attributes[key])
    if isinstance(op, scalar.Index):
        op.expr = substitute(op.expr, mapping)


def clone_body(source: Compute, target: Compute, mapping: Mapping[Expr, Dim]) -> None:
    """Copy the body of a computation to another one, with symbols substituted in its index expressions."""
    copies: dict[Value, Value] = {}
    for child in source.body.ops:
        copy = child.clone(copies)
        substitute_indices(copy, mapping)
        target.body.append(copy)


def _largest(upper: Dim, axes: dict[Expr, int], env: Frame) -> int:
    """The greatest value of an axis bound over the corners of the parallel axes it depends on."""
    bound = [a for a in axes if a in free_symbols_of(upper)]
    best = None
    for corner in range(1 << len(bound)):
        values = {a.name: (axes[a] - 1 if corner >> k & 1 else 0) for k, a in enumerate(bound)}
        value = int(env.evaluate(upper, values))
        best = value if best is None else max(best, value)
    assert best is not None
    return best


def reduce_array(combiner: str, x: Array, axis: tuple[int, ...]) -> Any:
    """NumPy reduction of the combiner; float16, bfloat16 and float32 sums accumulate in float64."""
    if combiner == "sum":
        wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x
        return (
            np.logical_or.reduce(x, axis=axis)
            if x.dtype == bool
            else wide.sum(axis=axis, dtype=wide.dtype).astype(x.dtype)
        )
    function = {
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[combiner]
    # NumPy's maximum and minimum have no identity, which an empty reduction needs.
    empty = {} if x.size else {"initial": combiner_identity(combiner, DType.of(x))}
    # The result keeps the data type: NumPy's own product widens small integers.
    return function.reduce(x, axis=axis, dtype=x.dtype, **empty)


@operation
class Reshape(Operation):
    """The same elements in row-major order under another shape: a view, never a copy. The numbers of elements
    are equal.
    """

    name = "tensor.reshape"
    effects = Effect.PURE
    x: Operand
    shape: Attr

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(self.x.type.dtype, self.shape),)

    def verify(self) -> None:
        if not prove_eq(self.x.type.size, self.result.type.size):
            raise IRError(
                f"cannot prove that {self.x.type} and {self.result.type} have as many elements", self
            )

    def interpret(self, env: Frame, x: Array) -> Any:
        return np.reshape(x, [int(env.evaluate(d)) for d in self.shape])


@operation
class Bitcast(Operation):
    """The same bytes in row-major order as elements of another type, under another shape: a view, never a
    copy.
    """

    name = "tensor.bitcast"
    effects = Effect.PURE
    x: Operand
    shape: Attr
    dtype: Attr

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(self.dtype, self.shape),)

    def verify(self) -> None:
        before, after = self.x.type, self.result.type
        if not prove_eq(before.size * before.dtype.itemsize, after.size * after.dtype.itemsize):
            raise IRError(f"cannot prove that {before} and {after} have as many bytes", self)

    def interpret(self, env: Frame, x: Array) -> Any:
        return (
            np.ascontiguousarray(x)
            .reshape(-1)
            .view(self.dtype.numpy)
            .reshape([int(env.evaluate(d)) for d in self.shape])
        )


@operation
class AssumeShape(Operation):
    """The elements of `x` in row-major order under another shape: a view. The run compares the sizes, since
    they are not provably equal.
    """

    name = "tensor.assume_shape"
    effects = Effect.PURE
    x: Operand
    shape: Attr

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(self.x.type.dtype, self.shape),)

    def interpret(self, env: Frame, x: Array) -> Any:
        return assumed(self, env, x, self.shape)


def assumed(op: Operation, env: Frame, x: Array, shape: Shape) -> Any:
    """`x` reshaped to `shape`.

    Raises:
        IRError: `x` has another number of elements.
    """
    sizes = [int(env.evaluate(d)) for d in shape]
    if min(sizes, default=0) < 0 or int(np.prod(sizes, dtype=np.int64)) != x.size:
        raise IRError(f"{x.size} elements do not have the shape {tuple(sizes)}", op)
    return np.reshape(x, sizes)


@operation
class After(Operation):
    """`x` itself, once `others` are computed: a view. No kernel joins computations before and after it."""

    name = "tensor.after"
    effects = Effect.PURE
    x: Operand
    others: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return (self.x.type,)

    def interpret(self, env: Frame, x: Array, *others: Array) -> Any:
        return x


View = Reshape | Bitcast | AssumeShape | After
"""Operations whose result shares the memory of their operand."""


@operation
class Concat(Operation):
    """Concatenate tensors along `axis` in one memory: the operation that computes a part writes it directly
    into its slice (`places.place_of`).
    """

    name = "tensor.concat"
    effects = Effect.PURE
    parts: VariadicOperand
    axis: Attr

    def infer_types(self) -> Sequence[Type]:
        first = self.parts[0].type
        total: Dim = 0
        for part in self.parts:
            total = total + part.type.shape[self.axis]
        return (TensorType(first.dtype, (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :])),)

    def verify(self) -> None:
        first = self.parts[0].type
        for t in (part.type for part in self.parts):
            same = all(
                prove_eq(a, b)
                for d, (a, b) in enumerate(zip(t.shape, first.shape, strict=True))
                if d != self.axis
            )
            if t.dtype is not first.dtype or not same:
                raise IRError(f"joins {t} with {first} along dimension {self.axis}", self)

    def interpret(self, env: Frame, *parts: Array) -> Any:
        return np.concatenate(parts, self.axis)


def readers(value: Value, views: type[Operation] | UnionType = Reshape) -> Iterator[Operation]:
    """The operations that read a tensor, directly or through `views` of it, each once. A view that waits for
    it reads other memory.
    """

    def below(use: tuple[Operation, int]) -> Iterable[tuple[Operation, int]]:
        op, number = use
        return op.results[0].uses if isinstance(op, views) and number == 0 else ()

    uses = reachable(value.uses, below)
    return iter(dict.fromkeys(op for op, _ in uses if not isinstance(op, views)))


@operation
class Scatter(Operation):
    """A copy of `dest` with elements replaced (or combined): push-style, for data-dependent output positions.

    For every point of `axes` the body yields ``(value, index_0, ..., index_n)``, the indices i64 and
    non-negative; points with an index outside are dropped. `combiner` is None (later points win, in row-major
    order of the axes), ``sum``, ``prod``, ``max`` or ``min``.
    """

    name = "tensor.scatter"
    effects = Effect.PURE
    num_regions = 1
    binds = ("axes",)
    dest: Operand
    axes: Attr
    combiner: Attr = None

    @property
    def reads(self) -> list[Read]:
        return reads_of(self)

    def infer_types(self) -> Sequence[Type]:
        return (self.dest.type,)

    def verify(self) -> None:
        if len(self.body.terminator.operands) != 1 + self.dest.type.rank:
            raise IRError("body must yield a value and one index per dimension", self)

    def interpret(self, env: Frame, dest: Array) -> Any:
        result = np.array(dest)
        extents = [int(env.evaluate(extent(a))) for a in self.axes]
        rank = len(extents)
        if 0 in extents:
            return result
        frame = {
            a.name: np.arange(n).reshape([-1 if p == k else 1 for p in range(rank)])
            for k, (a, n) in enumerate(zip(self.axes, extents, strict=True))
        }
        value, *index = (
            np.broadcast_to(v, extents).reshape(-1) for v in env.child(frame).run_block(self.body, ())
        )
        inside = np.ones(value.shape, bool)
        for i, n in zip(index, result.shape, strict=True):
            inside &= (i >= 0) & (i < n)
        where = tuple(i[inside] for i in index)
        if self.combiner is None:
            for point, v in zip(zip(*where, strict=True), value[inside], strict=True):
                result[point] = v
        else:
            ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[self.combiner]
            ufunc.at(result, where, value[inside])
        return result


@operation
class Argsort(Operation):
    """Positions (i64) of the first `k` elements of the sorted `x` along `axis`. The sort is stable; NaN
    counts as the largest number.
    """

    name = "tensor.argsort"
    effects = Effect.PURE
    x: Operand
    k: Attr
    axis: Attr
    largest: Attr = False

    def infer_types(self) -> Sequence[Type]:
        shape = self.x.type.shape
        return (TensorType(i64, (*shape[: self.axis], self.k, *shape[self.axis + 1 :])),)

    def verify(self) -> None:
        if not 0 <= self.axis < self.x.type.rank:
            raise IRError(f"axis {self.axis} of a tensor of rank {self.x.type.rank}", self)

    def interpret(self, env: Frame, x: Array) -> Any:
        places = sorted_places(x, self.largest, self.axis)
        return np.take(places, np.arange(int(env.evaluate(self.k))), self.axis).astype(np.int64)


def sorted_places(x: Array, largest: bool, axis: int = -1) -> Any:
    """Positions of an array's sorted elements along an axis, in stable order; NaN counts as the largest
    number.
    """
    if x.dtype.kind in "iub":
        key = x if x.dtype.kind == "u" else x.astype(np.int64)
        return np.argsort(~key if largest else key, axis=axis, kind="stable")
    number = np.where(np.isnan(x), np.inf, x.astype(np.float64))
    sign = -1 if largest else 1
    return np.lexsort((sign * np.isnan(x).astype(np.int64), sign * number), axis=axis)


class GroupKind(enum.StrEnum):
    """The kinds of groups that the compiler forms itself. The kind selects the schedule rule of the kernel.

    A `Group` accepts any string, so that a pass of another package can form groups for a schedule rule of its
    own.
    """

    CONTRACTION = "contraction"
    """A matrix product or convolution that `tensorize` can take, with its epilogue."""
    CHAIN = "chain"
    """Two contractions with a row-wise computation in between: attention."""
    TILES = "tiles"
    """A transform of tiles of an image, their products with transformed kernels, and the transform of the
    results with its epilogue (`graph.winograd_conv`).
    """
    ROWS = "rows"
    """Computations that share their leading axes (`ir.notes.ROW_AXES`), reductions along the others
    included.
    """
    CUMULATIVE = "cumulative"
    """A scan along an axis with an associative operation, such as a cumulative sum."""
    RECURRENCE = "recurrence"
    """A `Scan` whose steps depend on each other element by element."""
    ARGSORT = "argsort"
    SCATTER = "scatter"
    CALL = "call"
    """A kernel of the user's (`dialects.kernels`)."""
    PLAIN = "plain"
    """Nothing is known about the members: a rule may at most vectorize the innermost loops. The fallback
    where the rule of another kind refuses a kernel.
    """

    __repr__ = str.__repr__  # as the string that it is, in error texts


@operation
class Group(Operation):
    """A set of computations that becomes one kernel: an isolated region over its inputs.

    `kind`, a `GroupKind` or a string of an extension, names the rule that schedules the kernel.
    """

    name = "tensor.group"
    effects = Effect.PURE
    num_regions = 1
    inputs: VariadicOperand
    kind: Attr = GroupKind.PLAIN

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.body.terminator.operands)

    def verify(self) -> None:
        if [a.type for a in self.body.args] != [v.type for v in self.inputs]:
            raise IRError("block arguments and inputs differ in type", self)

    def interpret(self, env: Frame, *inputs: Array) -> Any:
        return tuple(env.child({}).run_block(self.body, inputs))


@operation
class Scan(Operation):
    """A loop: ``*carried, *slices = body(*carried)`` for every value of the symbol `step`.

    The body captures the surrounding tensors directly and reads slices of them at indices over `step`.
    Results are the carried values after the last step, then the slices stacked along a leading axis as long
    as the loop. `places` gives, over `step`, the position of each step's slice in each of them.
    """

    name = "tensor.scan"
    effects = Effect.PURE
    num_regions = 1
    binds = ("step",)
    initial: VariadicOperand
    step: Attr
    places: Attr = ()

    @property
    def carried(self) -> tuple[Value, ...]:
        """The values that a step passes to the next one."""
        return tuple(self.body.terminator.operands[: len(self.initial)])

    @property
    def slices(self) -> tuple[Value, ...]:
        """The parts of the stacked results that a step computes."""
        return tuple(self.body.terminator.operands[len(self.initial) :])

    def verify(self) -> None:
        ends = [v.type for v in self.body.terminator.operands]
        carried = [v.type for v in self.initial]
        count = len(carried)
        stacked = [TensorType(t.dtype, (extent(self.step), *t.shape)) for t in ends[count:]]
        if [a.type for a in self.body.args] != carried or ends[:count] != carried:
            raise IRError(
                f"carries {carried}, the body takes {[a.type for a in self.body.args]} and yields {ends}",
                self,
            )
        if len(self.places) != len(stacked) or not _equal_types(
            [r.type for r in self.results], [*carried, *stacked]
        ):
            raise IRError(f"yields slices for {stacked}, which are not its results", self)

    def interpret(self, env: Frame, *initial: Array) -> Any:
        carried = list(initial)
        types = [r.type for r in self.results[len(carried) :]]
        stacked = [np.empty([int(env.evaluate(d)) for d in t.shape], t.dtype.numpy) for t in types]
        for k in range(int(env.evaluate(extent(self.step)))):
            child = env.child({self.step.name: k})
            ends = child.run_block(self.body, carried)
            carried = ends[: len(initial)]
            for y, place, part in zip(stacked, self.places, ends[len(initial) :], strict=True):
                y[int(child.evaluate(place))] = part
        return [*carried, *stacked]


@operation
class BindSize(Operation):
    """Define `symbol` as the number `count` (an i64 scalar) for all operations that follow."""

    name = "tensor.bind_size"
    effects = Effect.WRITE
    defines = ("symbol",)
    count: Operand
    symbol: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Frame, count: Array) -> Any:
        return bind_size(self, env, count)


def bind_size(op: Operation, env: Frame, count: SupportsInt) -> Any:
    """Give the symbol of `op` the value `count` in a frame of the interpreter."""
    symbol, value = op.attributes["symbol"], int(count)
    low, high = bounds(symbol)
    if (low is not None and value < low) or (high is not None and value > high):
        raise IRError(f"'{symbol.name}' is {value}, outside of its bounds", op)
    env.dims[symbol.name] = value
    return ()


ERRORS = ("program", "index", "division")
"""Errors that a check reports: a condition of the model's own, an index out of range, a division by zero."""


@operation
class Check(Operation):
    """End the run with `message`, reported as `error` (one of `ERRORS`), unless `condition`, a bool scalar,
    holds.
    """

    name = "tensor.check"
    effects = Effect.WRITE
    condition: Operand
    message: Attr
    error: Attr = ERRORS[0]

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Frame, condition: Array) -> Any:
        return check(self, condition, self.error)


def check(op: Operation, condition: Array, error: str = ERRORS[0]) -> Any:
    """Raise the message of `op` unless the condition holds."""
    if condition.all():
        return ()
    message = op.attributes["message"]
    if error == "index":
        raise OutOfRangeError(message)
    raise DivisionError(message) if error == "division" else IRError(message, op)


@operation
class If(Operation):
    """The results of the first region if `condition` (a bool scalar) holds, else those of the second. Regions
    capture tensors directly.
    """

    name = "tensor.if"
    effects = Effect.PURE
    num_regions = 2
    condition: Operand

    def verify(self) -> None:
        for region in self.regions:
            ends = [v.type for v in region.block.terminator.operands]
            if not _equal_types([r.type for r in self.results], ends):
                raise IRError(f"a branch yields {ends}", self)

    def interpret(self, env: Frame, condition: Array) -> Any:
        return env.run_block(self.regions[0 if condition.all() else 1].block, ())


@operation
class While(Operation):
    """A loop with a condition: ``condition, *carried, *slices = body(*carried)``, while `condition` (a bool
    scalar) holds, at most `limit` (an i64 scalar) times. The symbol `step` counts from 0.

    Results are the carried values after the last step, then the slices stacked along a leading axis of
    `count` elements. The operation defines the symbol `count` as the number of steps.
    """

    name = "tensor.while"
    effects = Effect.WRITE
    num_regions = 1
    binds = ("step",)
    defines = ("count",)
    condition: Operand
    limit: OptionalOperand
    initial: VariadicOperand
    step: Attr
    count: Attr

    @property
    def carried(self) -> tuple[Value, ...]:
        """The values that a step passes to the next one."""
        return tuple(self.body.terminator.operands[1 : 1 + len(self.initial)])

    @property
    def slices(self) -> tuple[Value, ...]:
        """The parts of the stacked results that a step computes."""
        return tuple(self.body.terminator.operands[1 + len(self.initial) :])

    def verify(self) -> None:
        ends = [v.type for v in self.body.terminator.operands][1:]
        carried = [v.type for v in self.initial]
        stacked = [TensorType(t.dtype, (self.count, *t.shape)) for t in ends[len(carried) :]]
        if [a.type for a in self.body.args] != carried or ends[: len(carried)] != carried:
            raise IRError(
                f"carries {carried}, the body takes {[a.type for a in self.body.args]} and yields {ends}",
                self,
            )
        if not _equal_types([r.type for r in self.results], [*carried, *stacked]):
            raise IRError(f"yields slices for {stacked}, which are not its results", self)

    def interpret(self, env: Frame, *operands: Array) -> Any:
        return run_while(
            self,
            env,
            operands,
            lambda step, carried: env.child({self.step.name: step}).run_block(self.body, carried),
        )


def run_while(
    op: Any, env: Frame, operands: Sequence[Any], body: Callable[[int, list[Any]], list[Any]]
) -> list[Any]:
    """Interpret a while loop of any level: return its results and bind its `count`.

    `operands` are the condition, the limit if the operation has one, and the initial values. ``body(step,
    carried)`` returns the condition, the next carried values and the slices of the step.
    """
    condition, *rest = operands
    limit = None if op.limit is None else int(rest.pop(0))
    carried = rest
    types = [r.type for r in op.results[len(carried) :]]
    slices: list[list[Any]] = [[] for _ in types]
    step = 0
    while condition.all() and (limit is None or step < limit):
        condition, *ends = body(step, carried)
        for column, part in zip(slices, ends[len(carried) :], strict=True):
            column.append(part)
        carried = ends[: len(carried)]
        step += 1
    env.dims[op.count.name] = step
    return [*carried, *(_stacked(column, t, env) for column, t in zip(slices, types, strict=True))]


def _stacked(slices: Sequence[Any], type_: TensorType, env: Frame) -> Any:
    """The slices stacked to an array of the given type; there may be none."""
    if slices:
        return np.stack(slices)
    return np.empty([0, *(int(env.evaluate(d)) for d in type_.shape[1:])], type_.dtype.numpy)


Nested = Scan | While | If
"""Operations between kernels whose regions contain computations."""


def _equal_types(a: Sequence[TensorType], b: Sequence[TensorType]) -> bool:
    """Whether types are equal, symbolic dimensions compared by proof."""
    return len(a) == len(b) and all(
        x.dtype is y.dtype and x.rank == y.rank and all(map(prove_eq, x.shape, y.shape))
        for x, y in zip(a, b, strict=True)
    )


def blocks_of_computations(module: Module) -> list[Block]:
    """The blocks that contain computations and groups: each function's body, followed by the bodies of its
    loops and branches.
    """
    blocks: list[Block] = []

    def visit(block: Block) -> None:
        blocks.append(block)
        for op in block.ops:
            if isinstance(op, Nested):
                for region in op.regions:
                    visit(region.block)

    for op in module.body.ops:
        if isinstance(op, Func):
            visit(op.body)
    return blocks
