"""Writing tensor-level computations as Python: the language in which graph operators state their lowering.

    t = TensorBuilder(builder)
    y = t.compute(shape, lambda i, j: x[i, j] + bias[j])                    # elementwise
    s = t.reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j])    # contraction

`Tensor` wraps an SSA tensor: indexing it reads an element. An index is a symbolic expression, an ``int``, or a `Scalar` (a
data-dependent i64). `Scalar` wraps an SSA scalar: Python operators and the methods named in the scalar dialect build
operations in the body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir.builder import Builder
from ..ir.core import IRError, Value
from ..ir.symbolic import Dim, Expr, symbol
from ..ir.types import DType, TensorType, boolean, i64
from . import scalar, tensor

Number = int | float | bool


class Scalar:
    """An element while a body is being built; operators build scalar operations. Numbers take the other operand's dtype."""

    __slots__ = ("body", "value")

    def __init__(self, body: Builder, value: Value) -> None:
        self.body = body
        self.value = value

    @property
    def dtype(self) -> DType:
        dtype: DType = self.value.type
        return dtype

    def _lift(self, other: Scalar | Number | Expr) -> Scalar:
        if isinstance(other, Scalar):
            return other
        if isinstance(other, Expr):
            index = Scalar(self.body, self.body(scalar.Index(expr=other)))
            return index if self.dtype is i64 else index.cast(self.dtype)
        return Scalar(self.body, self.body(scalar.Constant(value=other, dtype=self.dtype)))

    def apply(self, name: str, *others: Scalar | Number | Expr) -> Scalar:
        """The scalar function `name` of this and further operands.

        Raises:
            KeyError: no such function.
        """
        if not others:
            return Scalar(self.body, self.body(scalar.UNARY[name](self.value)))
        (other,) = others
        return Scalar(self.body, self.body(scalar.BINARY[name](self.value, self._lift(other).value)))

    def cast(self, dtype: DType) -> Scalar:
        if dtype is self.dtype:
            return self
        return Scalar(self.body, self.body(scalar.Cast(self.value, dtype=dtype)))

    def bitcast(self, dtype: DType) -> Scalar:
        return Scalar(self.body, self.body(scalar.Bitcast(self.value, dtype=dtype)))

    def select(self, a: Scalar | Number, b: Scalar | Number) -> Scalar:
        """`a` where this boolean holds, else `b`; at least one of them is a `Scalar`."""
        like = a if isinstance(a, Scalar) else b
        if not isinstance(like, Scalar):
            raise TypeError("select needs a Scalar among its two values")
        return Scalar(self.body, self.body(scalar.Select(self.value, like._lift(a).value, like._lift(b).value)))

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        function = name.rstrip("_")  # and_, or_, not_
        if function in scalar.UNARY or function in scalar.BINARY:
            return lambda *others: self.apply(function, *others)
        raise AttributeError(f"no scalar function {name!r}")

    def __add__(self, o: Any) -> Scalar:
        return self.apply("add", o)

    def __sub__(self, o: Any) -> Scalar:
        return self.apply("sub", o)

    def __mul__(self, o: Any) -> Scalar:
        return self.apply("mul", o)

    def __truediv__(self, o: Any) -> Scalar:
        return self.apply("div", o)

    def __floordiv__(self, o: Any) -> Scalar:
        return self.apply("floordiv", o)

    def __mod__(self, o: Any) -> Scalar:
        return self.apply("mod", o)

    def __pow__(self, o: Any) -> Scalar:
        return self.apply("pow", o)

    def __radd__(self, o: Any) -> Scalar:
        return self._lift(o).apply("add", self)

    def __rsub__(self, o: Any) -> Scalar:
        return self._lift(o).apply("sub", self)

    def __rmul__(self, o: Any) -> Scalar:
        return self._lift(o).apply("mul", self)

    def __rtruediv__(self, o: Any) -> Scalar:
        return self._lift(o).apply("div", self)

    def __neg__(self) -> Scalar:
        return self.apply("neg")

    def __and__(self, o: Any) -> Scalar:
        return self.apply("and", o)

    def __or__(self, o: Any) -> Scalar:
        return self.apply("or", o)

    def __xor__(self, o: Any) -> Scalar:
        return self.apply("xor", o)

    def __invert__(self) -> Scalar:
        return self.apply("not")

    def __lt__(self, o: Any) -> Scalar:
        return self.apply("lt", o)

    def __le__(self, o: Any) -> Scalar:
        return self.apply("le", o)

    def __gt__(self, o: Any) -> Scalar:
        return self.apply("gt", o)

    def __ge__(self, o: Any) -> Scalar:
        return self.apply("ge", o)

    def equals(self, o: Any) -> Scalar:
        return self.apply("eq", o)

    def differs(self, o: Any) -> Scalar:
        return self.apply("ne", o)


Index = Dim | Scalar


class Tensor:
    """A tensor value that bodies index; ``x[i, j]`` reads inside the body being built."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: TensorBuilder, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> TensorType:
        found: TensorType = self.value.type
        return found

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return self.type.rank

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Scalar:
        return self.at(*(index if isinstance(index, tuple) else (index,)))

    def at(self, *index: Index, guard: Sequence[Index] = (), otherwise: Number | Scalar = 0) -> Scalar:
        """The element at `index`; where any `guard` expression is negative, `otherwise` instead (nothing is read)."""
        body = self.builder.body
        dynamic: list[Value] = []

        def expression(i: Index) -> Dim:
            if not isinstance(i, Scalar):
                return i
            wide = i.cast(i64).value
            if wide not in dynamic:
                dynamic.append(wide)
            return symbol(f"v{dynamic.index(wide)}", None, None)

        indices = tuple(expression(i) for i in index)
        guards = tuple(expression(g) for g in guard)
        default = None
        if guards:
            default = (
                otherwise.value if isinstance(otherwise, Scalar) else self.builder.constant(otherwise, self.dtype).value
            )
        return Scalar(body, body(tensor.Read(self.value, dynamic, default, indices=indices, guard=guards)))


class TensorBuilder:
    """Builds `tensor` operations at a builder's insertion point."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._bodies: list[Builder] = []

    @property
    def body(self) -> Builder:
        """The body being built.

        Raises:
            IRError: not inside `compute`, `reduce` or `scatter`.
        """
        if not self._bodies:
            raise IRError("elements can only be read inside a computation's body")
        return self._bodies[-1]

    def wrap(self, value: Value) -> Tensor:
        return Tensor(self, value)

    def constant(self, value: Number, dtype: DType) -> Scalar:
        """A literal in the current body."""
        return Scalar(self.body, self.body(scalar.Constant(value=value, dtype=dtype)))

    def index(self, expr: Dim, dtype: DType = i64) -> Scalar:
        """The value of an index expression (or of a dimension) in the current body."""
        return Scalar(self.body, self.body(scalar.Index(expr=expr))).cast(dtype)

    def compute(self, shape: Sequence[Dim], body: Callable[..., Scalar]) -> Tensor:
        """An elementwise computation: ``body(*indices)`` gives each element of a tensor of `shape`."""
        return self._build(None, tuple(shape), (), body)

    def reduce(
        self,
        combiner: str,
        shape: Sequence[Dim],
        reduce_shape: Sequence[Dim | Callable[..., Dim]],
        body: Callable[..., Scalar],
    ) -> Tensor:
        """A reduction: combines ``body(*indices, *reduce_indices)`` over `reduce_shape`.

        An extent in `reduce_shape` may be a function of the parallel indices (``lambda i: i + 1`` is a prefix).
        """
        return self._build(combiner, tuple(shape), tuple(reduce_shape), body)

    def _build(
        self, combiner: str | None, shape: tuple[Dim, ...], reduce_shape: tuple[Any, ...], body: Callable[..., Scalar]
    ) -> Tensor:
        axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(shape))
        reduce_axes = tuple(
            symbol(f"r{k}", 0, (n(*axes) if callable(n) and not isinstance(n, Expr) else n) - 1)
            for k, n in enumerate(reduce_shape)
        )
        op = tensor.Compute(
            axes=axes,
            reduce_axes=reduce_axes,
            combiner=combiner,
            result_types=[TensorType(boolean, shape)],
            location=self.builder.location,
        )
        self._bodies.append(Builder(op.body, location=self.builder.location))
        try:
            result = body(*axes, *reduce_axes)
            self.body(tensor.Yield([result.value]))
        except BaseException:
            op.drop_all()
            raise
        finally:
            self._bodies.pop()
        if (
            combiner is not None and 0 in reduce_shape
        ):  # nothing is combined, and an axis of no elements cannot be divided
            op.drop_all()
            return self.compute(
                shape, lambda *_: self.constant(scalar.combiner_identity(combiner, result.dtype), result.dtype)
            )
        op.result.type = TensorType(result.dtype, shape)
        return Tensor(self, self.builder(op))

    def reshape(self, x: Tensor, shape: Sequence[Dim]) -> Tensor:
        """A view of `x` under another shape of equal size."""
        if tuple(shape) == x.shape:
            return x
        return Tensor(self, self.builder(tensor.Reshape(x.value, shape=tuple(shape))))

    def bitcast(self, x: Tensor, dtype: DType, shape: Sequence[Dim]) -> Tensor:
        """The same bytes as elements of another type and shape."""
        return Tensor(self, self.builder(tensor.Bitcast(x.value, shape=tuple(shape), dtype=dtype)))

    def order(self, x: Tensor, k: Dim, axis: int, largest: bool) -> Tensor:
        """The places of the first `k` elements of `x` along `axis` in stable order (i64)."""
        op = tensor.Order(x.value, k=k, axis=axis, largest=largest, location=self.builder.location)
        return Tensor(self, self.builder(op))

    def scatter(
        self, dest: Tensor, shape: Sequence[Dim], body: Callable[..., tuple[Scalar, ...]], combiner: str | None = None
    ) -> Tensor:
        """A copy of `dest` with ``body(*indices) -> (value, index, ...)`` written for every point of `shape`."""
        axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(shape))
        op = tensor.Scatter(dest.value, axes=axes, combiner=combiner, location=self.builder.location)
        self._bodies.append(Builder(op.body, location=self.builder.location))
        try:
            self.body(tensor.Yield([s.value for s in body(*axes)]))
        except BaseException:
            op.drop_all()
            raise
        finally:
            self._bodies.pop()
        return Tensor(self, self.builder(op))
