"""Writing tensor-level computations as Python: the language in which graph operators state their lowering.

    t = TensorBuilder(builder)
    y = t.compute(shape, lambda i, j: x[i, j] + bias[j])                    # elementwise
    s = t.reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j])    # contraction

`TensorRef` wraps an SSA tensor: indexing it reads an element. An index is a symbolic expression, an ``int``,
or a `Scalar` (a data-dependent i64). `Scalar` wraps an SSA scalar: Python operators and the methods named in
the scalar dialect build operations in the body.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from ..ir.builder import Builder
from ..ir.core import IRError, Value
from ..ir.symbolic import Dim, Expr, symbol
from ..ir.target_info import TargetInfo
from ..ir.types import DType, TensorType, boolean, i64
from . import scalar, tensor

Number = int | float | bool


class Scalar:
    """An element while a body is being built; operators build scalar operations. Numbers take the other
    operand's dtype.

    An element has no value while the body runs. Its truth value, ``==``, ``float(x)`` and ``int(x)`` raise a
    TypeError that says what to write instead.
    """

    __slots__ = ("body", "value")

    def __init__(self, body: Builder, value: Value) -> None:
        self.body = body
        self.value = value

    @property
    def dtype(self) -> DType:
        """The element's type."""
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

        Args:
            name: A name of `dialects.scalar.UNARY` or, with another operand, of `dialects.scalar.BINARY`.
            *others: None or one operand; a number takes this element's type.

        Raises:
            KeyError: There is no such function.
            ValueError: There are several further operands.
        """
        if not others:
            return Scalar(self.body, self.body(scalar.UNARY[name](self.value)))
        (other,) = others
        return Scalar(self.body, self.body(scalar.BINARY[name](self.value, self._lift(other).value)))

    def cast(self, dtype: DType) -> Scalar:
        """The element converted to the type `dtype`; itself where it has that type."""
        if dtype is self.dtype:
            return self
        return Scalar(self.body, self.body(scalar.Cast(self.value, dtype=dtype)))

    def bitcast(self, dtype: DType) -> Scalar:
        """The same bits as the type `dtype` of the same size."""
        return Scalar(self.body, self.body(scalar.Bitcast(self.value, dtype=dtype)))

    def select(self, a: Scalar | Number, b: Scalar | Number) -> Scalar:
        """`a` where this boolean holds, else `b`.

        Args:
            a: An element, or a number that takes the type of `b`.
            b: An element, or a number that takes the type of `a`.

        Raises:
            TypeError: Neither is a `Scalar`.
        """
        like = a if isinstance(a, Scalar) else b
        if not isinstance(like, Scalar):
            raise TypeError("select needs a Scalar among its two values")
        return Scalar(
            self.body, self.body(scalar.Select(self.value, like._lift(a).value, like._lift(b).value))
        )

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        function = name.rstrip("_")  # and_, or_, not_
        if function in scalar.UNARY or function in scalar.BINARY:
            return lambda *others: self.apply(function, *others)
        known = [*scalar.UNARY, *scalar.BINARY]
        like = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {', '.join(like)}?" if like else f"the functions are {', '.join(known)}"
        raise AttributeError(f"elements have no function {name!r}; {hint}")

    def __bool__(self) -> bool:
        raise TypeError(
            "a symbolic element has no truth value: the body runs once, for all elements. Use "
            "condition.select(a, b) instead of `if`; `&`, `|` and `~` instead of `and`, `or` and `not`; "
            "a.max(b) and a.min(b) instead of max, min and NumPy's functions"
        )

    def __float__(self) -> float:
        raise TypeError(
            "a symbolic element is not a number: the body runs once, for all elements. Use the element's "
            "functions, x[i].exp() instead of math.exp(x[i]), and cast(dtype) instead of float and int"
        )

    __int__ = __float__

    def __eq__(self, other: object) -> bool:
        raise TypeError("elements are compared by a.equals(b) and a.differs(b), not by == and !=")

    __hash__ = object.__hash__

    def __add__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("add", o)

    def __sub__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("sub", o)

    def __mul__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("mul", o)

    def __truediv__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("div", o)

    def __floordiv__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("floordiv", o)

    def __mod__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("mod", o)

    def __pow__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("pow", o)

    def __radd__(self, o: Scalar | Number | Expr) -> Scalar:
        return self._lift(o).apply("add", self)

    def __rsub__(self, o: Scalar | Number | Expr) -> Scalar:
        return self._lift(o).apply("sub", self)

    def __rmul__(self, o: Scalar | Number | Expr) -> Scalar:
        return self._lift(o).apply("mul", self)

    def __rtruediv__(self, o: Scalar | Number | Expr) -> Scalar:
        return self._lift(o).apply("div", self)

    def __neg__(self) -> Scalar:
        return self.apply("neg")

    def __and__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("and", o)

    def __or__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("or", o)

    def __xor__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("xor", o)

    def __invert__(self) -> Scalar:
        return self.apply("not")

    def __lt__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("lt", o)

    def __le__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("le", o)

    def __gt__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("gt", o)

    def __ge__(self, o: Scalar | Number | Expr) -> Scalar:
        return self.apply("ge", o)

    def equals(self, o: Scalar | Number | Expr) -> Scalar:
        """Whether this element and `o` are equal, as a bool element (``==`` is refused)."""
        return self.apply("eq", o)

    def differs(self, o: Scalar | Number | Expr) -> Scalar:
        """Whether this element and `o` differ, as a bool element."""
        return self.apply("ne", o)


Index = Dim | Scalar


class TensorRef:
    """A tensor value that bodies index; ``x[i, j]`` reads inside the body being built. `TensorBuilder.wrap`
    makes one.
    """

    __slots__ = ("builder", "value")

    def __init__(self, builder: TensorBuilder, value: Value) -> None:
        """`TensorBuilder.wrap` makes these objects.

        Args:
            builder: The builder of the bodies that index the tensor.
            value: The tensor.
        """
        self.builder = builder
        self.value = value

    @property
    def type(self) -> TensorType:
        """The tensor type of the value."""
        tensor_type: TensorType = self.value.type
        return tensor_type

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The sizes."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return self.type.rank

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Scalar:
        return self.at(*(index if isinstance(index, tuple) else (index,)))

    def at(self, *index: Index, guard: Sequence[Index] = (), otherwise: Number | Scalar = 0) -> Scalar:
        """The element at `index`; where any `guard` expression is negative, `otherwise` instead (nothing is
        read).

        An index outside of its dimension is not detected: the element is then undefined. Guard such an index.

        Raises:
            IRError: Not one index for each dimension, or not inside a body.
        """
        body = self.builder.body
        if len(index) != self.rank:
            count = f"{self.rank} {'dimension' if self.rank == 1 else 'dimensions'}"
            raise IRError(
                f"the tensor has {count}, {self.type.shape}, but {len(index)} "
                f"{'index is' if len(index) == 1 else 'indices are'} given; in a body that takes *i, x[i] "
                "gives one index for each dimension"
            )
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
                otherwise.value
                if isinstance(otherwise, Scalar)
                else self.builder.constant(otherwise, self.dtype).value
            )
        return Scalar(body, body(tensor.Read(self.value, dynamic, default, indices=indices, guard=guards)))


class TensorBuilder:
    """Builds `tensor` operations at a builder's insertion point, for the device that `info` describes."""

    def __init__(self, builder: Builder, info: TargetInfo | None = None) -> None:
        self.builder, self.info = builder, info or TargetInfo()
        self._bodies: list[Builder] = []

    @property
    def body(self) -> Builder:
        """The body being built.

        Raises:
            IRError: Not inside `compute`, `reduce` or `scatter`.
        """
        if not self._bodies:
            raise IRError("elements can only be read inside a computation's body")
        return self._bodies[-1]

    def wrap(self, value: Value) -> TensorRef:
        """A value of the IR as a tensor that can be indexed."""
        return TensorRef(self, value)

    def constant(self, value: Number, dtype: DType) -> Scalar:
        """A literal `value` of type `dtype` in the current body.

        Raises:
            IRError: Not inside `compute`, `reduce` or `scatter`.
        """
        return Scalar(self.body, self.body(scalar.Constant(value=value, dtype=dtype)))

    def index(self, expr: Dim, dtype: DType = i64) -> Scalar:
        """The value of `expr`, an index expression or a dimension, in the current body, converted to `dtype`.

        Raises:
            IRError: Not inside `compute`, `reduce` or `scatter`.
        """
        return Scalar(self.body, self.body(scalar.Index(expr=expr))).cast(dtype)

    def compute(self, shape: Sequence[Dim], body: Callable[..., Scalar]) -> TensorRef:
        """An elementwise computation: ``body(*indices)`` gives each element of a tensor of `shape`.

        The body is called once, with symbolic indices. It returns a `Scalar`, whose dtype is the tensor's.

        Raises:
            IRError: The body does not return a `Scalar`.
        """
        return self._build(None, tuple(shape), (), body)

    def reduce(
        self,
        combiner: str,
        shape: Sequence[Dim],
        reduce_shape: Sequence[Dim | Callable[..., Dim]],
        body: Callable[..., Scalar],
    ) -> TensorRef:
        """A reduction: combines ``body(*indices, *reduce_indices)`` over `reduce_shape`.

        Args:
            combiner: ``sum``, ``prod``, ``max``, ``min``, ``and``, ``or`` or ``xor``.
            shape: The shape of the result, whose indices are the body's first arguments.
            reduce_shape: The extents that are combined. One may be a function of the parallel indices
                (``lambda i: i + 1`` is a prefix); one of 0 gives the combiner's identity.
            body: Called once, with symbolic indices. It returns a `Scalar`, whose dtype is the result's.

        Raises:
            IRError: The body does not return a `Scalar`.
        """
        return self._build(combiner, tuple(shape), tuple(reduce_shape), body)

    def _build(
        self,
        combiner: str | None,
        shape: tuple[Dim, ...],
        reduce_shape: tuple[Any, ...],
        body: Callable[..., Scalar],
    ) -> TensorRef:
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
            if not isinstance(result, Scalar):
                raise IRError(
                    f"the body returns {result!r}, not an element: return an element of a tensor, or "
                    "t.constant(value, dtype), or t.index(expression, dtype)"
                )
            self.body.insert(tensor.Yield([result.value]))
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
                shape,
                lambda *_: self.constant(scalar.combiner_identity(combiner, result.dtype), result.dtype),
            )
        op.result.type = TensorType(result.dtype, shape)
        return TensorRef(self, self.builder(op))

    def reshape(self, x: TensorRef, shape: Sequence[Dim]) -> TensorRef:
        """A view of `x` under another shape of equal size."""
        if tuple(shape) == x.shape:
            return x
        return TensorRef(self, self.builder(tensor.Reshape(x.value, shape=tuple(shape))))

    def bitcast(self, x: TensorRef, dtype: DType, shape: Sequence[Dim]) -> TensorRef:
        """The bytes of `x` as a tensor of type `dtype` and shape `shape`, of equal size in bytes."""
        return TensorRef(self, self.builder(tensor.Bitcast(x.value, shape=tuple(shape), dtype=dtype)))

    def order(self, x: TensorRef, k: Dim, axis: int, largest: bool) -> TensorRef:
        """The places of the first `k` elements of `x` along `axis` in stable order (i64).

        The result has the shape of `x`, with size k along the axis. The order begins with the largest element
        if `largest`, else with the smallest.
        """
        op = tensor.Argsort(x.value, k=k, axis=axis, largest=largest, location=self.builder.location)
        return TensorRef(self, self.builder(op))

    def scatter(
        self,
        dest: TensorRef,
        shape: Sequence[Dim],
        body: Callable[..., tuple[Scalar, ...]],
        combiner: str | None = None,
    ) -> TensorRef:
        """A copy of `dest` with ``body(*indices) -> (value, index, ...)`` written for every point of `shape`.

        Args:
            dest: The tensor that is copied.
            shape: The extents of the indices.
            body: Called once, with symbolic indices. It returns the value and its place, one index for each
                dimension of `dest`.
            combiner: How a value is combined with the element in its place, as for `reduce`; None replaces
                the element.
        """
        axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(shape))
        op = tensor.Scatter(dest.value, axes=axes, combiner=combiner, location=self.builder.location)
        self._bodies.append(Builder(op.body, location=self.builder.location))
        try:
            self.body.insert(tensor.Yield([s.value for s in body(*axes)]))
        except BaseException:
            op.drop_all()
            raise
        finally:
            self._bodies.pop()
        return TensorRef(self, self.builder(op))
