"""`Tensor`: an array whose operators run at once, or a value in a function that is being traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from numpy import typing as npt

from ...dialects.scalar import cast_array
from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, TensorType
from .dtypes import DTypeLike, dtype_of, is_weak
from .registry import FUNCTIONS
from .tracing import TraceError, current, user_location

Axis: TypeAlias = int | Sequence[int] | None
"""An axis, several, or None for all. Negative axes count from the last."""

_LOOPS = "for a loop use tw.scan or tw.while_loop, as an index use it as it is: x[i]"


class Tensor:
    """An immutable tensor of any shape with NumPy's operators, methods and broadcasting.

    A *concrete* tensor holds an array: every operator runs at once. A *traced* tensor is a value in a
    function that `jit` or `compile` is tracing: operators are appended to that function, and sizes in its
    `shape` may be symbolic.

    Operators and methods of tensors of several element types follow the promotion rules of
    `frontends.trace.dtypes`. A result has the tensor's element type, unless the method's text says otherwise.
    `ShapeError`: shapes do not broadcast, or the operation is not defined for an element type.

    Args:
        data: An array, a torch tensor, a number, or nested sequences of numbers, which are copied. Python
            floats become float32, Python integers int64.
        dtype: The element type to convert to; None keeps that of `data`.

    Raises:
        TypeError: `data` has no element type that tensors can have, for example strings or objects, or
            `dtype` is no element type.
        ValueError: Nested sequences differ in length.
    """

    __slots__ = ("__weakref__", "_array", "_value")
    _array: Any
    _value: Value | None
    _lazy = False
    """Whether the elements are computed on demand; a trace records such a tensor as a value."""
    __array_priority__ = 1000

    def __init__(self, data: TensorLike, dtype: DTypeLike | None = None) -> None:
        if isinstance(data, Tensor):
            source = data if dtype is None else data.astype(dtype)
            self._array, self._value = source._array, source._value
            return
        array = array_of(data, dtype)
        self._array, self._value = _frozen(array.copy() if array.flags.writeable else array), None

    # -- Properties

    @property
    def is_traced(self) -> bool:
        """Whether the elements become known only when the traced function runs."""
        return self._value is not None

    @property
    def _uses(self) -> NoReturn:
        """Refuses a tensor as an operand of an operator's class, which has the uses of its operands."""
        raise TraceError(
            "an operator's class takes values of the IR, not tensors: instead of Operator(x) write "
            f"tilewright.frontends.trace.apply(Operator, x) (at {user_location('')})"
        )

    @property
    def type(self) -> TensorType:
        """The element type and shape, as the compiler's IR writes them."""
        if self._value is None:
            return TensorType(DType.of(self._array), self._array.shape)
        kind = self._value.type
        assert isinstance(kind, TensorType)
        return kind

    @property
    def shape(self) -> tuple[Any, ...]:
        """The size of each dimension: integers, in a traced tensor also symbolic expressions, which support
        arithmetic."""
        return self._array.shape if self._value is None else self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type as a NumPy dtype; bfloat16 and other narrow types are those of `ml_dtypes`."""
        return np.dtype(self._array.dtype if self._value is None else self.type.dtype.numpy)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements: an integer, or a symbolic expression."""
        return self.type.size

    @property
    def nbytes(self) -> Any:
        """The size of all elements in bytes: an integer, or a symbolic expression."""
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> Tensor:
        """The tensor with its dimensions in reverse order: (a, b, c) becomes (c, b, a)."""
        return call("transpose", self)

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two dimensions exchanged: (..., m, n) becomes (..., n, m).

        Raises:
            ShapeError: The tensor has fewer dimensions than two.
        """
        return call("matrix_transpose", self)

    @property
    def at(self) -> Any:
        """Updated copies: ``x.at[index].set(y)``, ``.add(y)``, ``.multiply(y)``, ``.min(y)``, ``.max(y)``.

        `y` is broadcast to the shape of ``x[index]`` and converted to the type of `x`.
        """
        return FUNCTIONS["Tensor.at"](self)

    @property
    def key(self) -> int:
        """A number that concrete tensors share only if they have the same array."""
        return id(self._array)

    @property
    def _data(self) -> Array | Constant:
        """The data of the constant that a trace records for this tensor."""
        return self._array

    # -- Conversion to other types

    def numpy(self) -> Array:
        """Return the elements as a read-only array of the same shape and type that shares memory with the
        tensor.

        Raises:
            TraceError: The tensor is traced.
        """
        return self._known("an array")

    def item(self) -> Any:
        """Return the only element as a Python number.

        Raises:
            ValueError: The tensor has more or fewer elements than one.
            TraceError: The tensor is traced.
        """
        return self._known("a Python number").item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers.

        Raises:
            TraceError: The tensor is traced.
        """
        return self._known("a list").tolist()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self._known("an array"), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        # NumPy refuses to export read-only arrays, so the consumer gets a copy, which it may write to.
        return self._known("an array").copy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._known("an array").__dlpack_device__()

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return FUNCTIONS["Tensor.__array_namespace__"]()

    def __bool__(self) -> bool:
        return bool(
            self._known(
                "True or False",
                "use tw.where to choose elements, tw.cond to choose a computation, tw.while_loop to repeat "
                "one",
            )
        )

    def __int__(self) -> int:
        return int(self._known("a Python integer", _LOOPS))

    def __float__(self) -> float:
        return float(self._known("a Python float"))

    def __index__(self) -> int:
        return self._known("a Python integer", _LOOPS).__index__()

    def __complex__(self) -> complex:
        return complex(self._known("a Python number"))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        n: Dim = self.shape[0]
        if isinstance(n, Expr):
            raise TraceError(
                f"the length of a tensor of shape {self.shape} is known only at run time; use x.shape[0], "
                f"which supports arithmetic (at {user_location('')})"
            )
        return n

    def __iter__(self) -> Iterator[Tensor]:
        if self.shape and isinstance(self.shape[0], Expr):
            raise TraceError(
                f"Python cannot iterate over the {self.shape[0]} rows of a tensor, a number known only at "
                f"run time: use tw.scan (at {user_location('')})"
            )
        return iter([self[k] for k in range(len(self))])

    def __contains__(self, x: TensorLike) -> bool:
        return bool((self == x).any())

    def __repr__(self) -> str:
        if self._value is not None:
            return f"Tensor(traced, shape=({', '.join(map(str, self.shape))}), dtype={self.dtype})"
        return f"Tensor({np.array2string(self._array, separator=', ', prefix='Tensor(')}, dtype={self.dtype})"

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        return Tensor, (self._known("an array"),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and not self.shape else str(self)

    def _known(
        self, what: str, instead: str = "return it from the function, or compute with it as a tensor"
    ) -> Array:
        """Return the array of a concrete tensor.

        Raises:
            TraceError: The tensor is traced; says that it cannot become `what`, and what to do `instead`.
        """
        trace = current()
        known = self._array
        if self._value is not None:
            known = trace.elements(self._value) if trace is not None else None
        if known is None:
            raise TraceError(
                f"{self!r} is computed at run time and cannot become {what} while the function is traced: "
                f"{instead} (at {user_location('')})"
            )
        return np.asarray(known)

    # -- Indexing and NumPy's protocols

    def __getitem__(self, index: Index) -> Tensor:
        return call("Tensor.__getitem__", self, index)

    def __setitem__(self, index: object, value: object) -> None:
        raise TypeError(
            "a tensor is immutable: write x = x.at[index].set(value), or .add, .multiply, .min, .max"
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Any:
        return FUNCTIONS["Tensor.__array_ufunc__"](ufunc, method, inputs, options)

    def __array_function__(
        self,
        called: Callable[..., Any],
        types: Iterable[object],
        args: Sequence[object],
        options: Mapping[str, object],
    ) -> Any:
        return FUNCTIONS["Tensor.__array_function__"](called, args, options)

    @staticmethod
    def implements(called: Callable[..., Any]) -> bool:
        """Return whether `called`, a function of `numpy`, accepts tensors."""
        return FUNCTIONS["Tensor.implementation"](called) is not None

    # -- Operators

    def __add__(self, other: TensorLike) -> Tensor:
        return _left("add", self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return _right("add", self, other)

    def __sub__(self, other: TensorLike) -> Tensor:
        return _left("subtract", self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return _right("subtract", self, other)

    def __mul__(self, other: TensorLike) -> Tensor:
        return _left("multiply", self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return _right("multiply", self, other)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return _left("divide", self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return _right("divide", self, other)

    def __floordiv__(self, other: TensorLike) -> Tensor:
        return _left("floor_divide", self, other)

    def __rfloordiv__(self, other: TensorLike) -> Tensor:
        return _right("floor_divide", self, other)

    def __mod__(self, other: TensorLike) -> Tensor:
        return _left("remainder", self, other)

    def __rmod__(self, other: TensorLike) -> Tensor:
        return _right("remainder", self, other)

    def __divmod__(self, other: TensorLike) -> tuple[Tensor, Tensor]:
        return (
            (call("floor_divide", self, other), call("remainder", self, other))
            if is_operand(other)
            else NotImplemented
        )

    def __rdivmod__(self, other: TensorLike) -> tuple[Tensor, Tensor]:
        return (
            (call("floor_divide", other, self), call("remainder", other, self))
            if is_operand(other)
            else NotImplemented
        )

    def __pow__(self, other: TensorLike) -> Tensor:
        return _left("power", self, other)

    def __rpow__(self, other: TensorLike) -> Tensor:
        return _right("power", self, other)

    def __matmul__(self, other: TensorLike) -> Tensor:
        return _left("matmul", self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return _right("matmul", self, other)

    def __and__(self, other: TensorLike) -> Tensor:
        return _left("bitwise_and", self, other)

    def __rand__(self, other: TensorLike) -> Tensor:
        return _right("bitwise_and", self, other)

    def __or__(self, other: TensorLike) -> Tensor:
        return _left("bitwise_or", self, other)

    def __ror__(self, other: TensorLike) -> Tensor:
        return _right("bitwise_or", self, other)

    def __xor__(self, other: TensorLike) -> Tensor:
        return _left("bitwise_xor", self, other)

    def __rxor__(self, other: TensorLike) -> Tensor:
        return _right("bitwise_xor", self, other)

    def __lshift__(self, other: TensorLike) -> Tensor:
        return _left("left_shift", self, other)

    def __rlshift__(self, other: TensorLike) -> Tensor:
        return _right("left_shift", self, other)

    def __rshift__(self, other: TensorLike) -> Tensor:
        return _left("right_shift", self, other)

    def __rrshift__(self, other: TensorLike) -> Tensor:
        return _right("right_shift", self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return _left("equal", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return _left("not_equal", self, other)

    def __lt__(self, other: TensorLike) -> Tensor:
        return _left("less", self, other)

    def __le__(self, other: TensorLike) -> Tensor:
        return _left("less_equal", self, other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return _left("greater", self, other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return _left("greater_equal", self, other)

    def __neg__(self) -> Tensor:
        return call("negative", self)

    def __abs__(self) -> Tensor:
        return call("absolute", self)

    def __invert__(self) -> Tensor:
        return call("invert", self)

    def __pos__(self) -> Tensor:
        return call("positive", self)

    def __round__(self, decimals: int | None = None) -> Tensor:
        return call("round", self, decimals or 0)

    # -- Methods: the functions of `tilewright.numpy` of the same names

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return whether all elements along `axis` are true (not 0), as bools.

        Args:
            axis: The dimensions to reduce; None reduces all.
            keepdims: Whether reduced dimensions stay in the result's shape, with size 1.

        Raises:
            ShapeError: There is no such axis.
        """
        return call("all", self, axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return whether any element along `axis` is true (not 0), as bools; arguments, shapes and errors as
        of `all`.
        """
        return call("any", self, axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index (int64) of the first largest element along `axis`; NaN counts as the largest.

        Args:
            axis: One dimension, or None for the position among all elements in row-major order.
            keepdims: Whether reduced dimensions stay in the result's shape, with size 1.

        Raises:
            ShapeError: There is no such axis.
            ValueError: A concrete tensor has no elements along the axis.
        """
        return call("argmax", self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index (int64) of the first smallest element along `axis`; NaN counts as the smallest.

        Arguments, shapes and errors are those of `argmax`.
        """
        return call("argmin", self, axis, keepdims)

    def argsort(self, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
        """Return the indices (int64) that sort along `axis`, in the tensor's shape; equal elements keep their
        order.

        Args:
            axis: One dimension; None sorts all elements in row-major order, and the result has one dimension.
            descending: Whether the largest element comes first.
            stable: Has no effect: the order of equal elements is always kept.

        Raises:
            ShapeError: There is no such axis.
        """
        return call("argsort", self, axis, descending=descending, stable=stable)

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Tensor:
        """Return the elements converted to `dtype`, in the same shape; floating point to integers truncates.

        Args:
            dtype: A NumPy dtype or its name, ``bool``, ``int`` (int64) or ``float`` (float32).
            copy: Has no effect, as a tensor never changes.

        Raises:
            TypeError: There is no such element type.
        """
        return call("astype", self, dtype, copy)

    def clip(
        self,
        min: TensorLike | None = None,
        max: TensorLike | None = None,
        *,
        a_min: TensorLike | None = None,
        a_max: TensorLike | None = None,
    ) -> Tensor:
        """Return the elements limited to ``min`` .. ``max``, in the common element type of all three.

        Args:
            min: The lower limit: a number, a tensor that is broadcast with this one, or None for no limit.
            max: The upper limit, given like `min`.
            a_min: NumPy's older name of `min`.
            a_max: NumPy's older name of `max`.

        Raises:
            ShapeError: A limit does not broadcast with the tensor's shape.
        """
        return call("clip", self, min, max, a_min=a_min, a_max=a_max)

    def copy(self) -> Tensor:
        """Return the tensor itself, of the same shape: it never changes."""
        return call("copy", self)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Return the cumulative products along `axis`; arguments, shapes and errors as of `cumsum`."""
        return call("cumprod", self, axis, dtype)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Return the cumulative sums along `axis`, in the tensor's shape.

        Args:
            axis: One dimension; None takes all elements in row-major order, and the result has one dimension.
            dtype: The type of sums; None is that of floating-point elements, and 64 bits for integers and
                bools.

        Raises:
            ShapeError: There is no such axis.
            TypeError: There is no such element type.
        """
        return call("cumsum", self, axis, dtype)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """Return the diagonals of two dimensions, as the last dimension: (n, n, ...) becomes (..., n).

        Args:
            offset: The diagonal: 0 the main one, positive ones above it, negative ones below it.
            axis1: The dimension of the rows.
            axis2: The dimension of the columns.

        Raises:
            ShapeError: There is no such axis, both are the same, or a size is known only in the run.
        """
        return call("diagonal", self, offset, axis1, axis2)

    def dot(self, b: TensorLike) -> Tensor:
        """Return the sum of products over the last dimension and the last but one of `b`, in their common
        type.

        (..., k) and (..., k, n) give (..., ..., n), (..., k) and (k) give (...). A tensor without dimensions
        is a factor of all elements.

        Raises:
            ShapeError: The sizes of these dimensions differ.
        """
        return call("dot", self, b)

    def flatten(self) -> Tensor:
        """Return the elements in row-major order, in the shape (n)."""
        return call("flatten", self)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return the largest element along `axis`; NaN where there is one. Arguments, shapes, errors as of
        `all`.
        """
        return call("max", self, axis, keepdims)

    def mean(self, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
        """Return the mean along `axis`; arguments, shapes and errors as of `sum`.

        The result has the type of floating-point elements, and float32 for integers and bools.
        """
        return call("mean", self, axis, dtype, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return the smallest element along `axis`; NaN where there is one. Arguments, shapes, errors as of
        `all`.
        """
        return call("min", self, axis, keepdims)

    def nonzero(self) -> tuple[Tensor, ...]:
        """Return, for each dimension, the indices (int64) of the elements that are not 0, in the shape (n).

        In a traced function n is a symbolic size.
        """
        indices: tuple[Tensor, ...] = FUNCTIONS["nonzero"](self)
        return indices

    def prod(self, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
        """Return the product along `axis`; arguments, shapes and errors as of `sum`."""
        return call("prod", self, axis, dtype, keepdims)

    def ravel(self) -> Tensor:
        """Return the elements in row-major order, in the shape (n)."""
        return call("ravel", self)

    def repeat(self, repeats: TensorLike, axis: int | None = None) -> Tensor:
        """Return each element `repeats` times in a row along `axis`.

        Args:
            repeats: One number, or one for each element along the axis, known while tracing.
            axis: One dimension of shape (..., n, ...), which becomes (..., n * repeats, ...); None repeats
                all elements in row-major order, and the result has one dimension.

        Raises:
            ShapeError: There is no such axis.
            ValueError: There is another number of repeats than elements, or one is negative.
        """
        return call("repeat", self, repeats, axis)

    def reshape(self, *shape: ShapeLike) -> Tensor:
        """Return the elements, in row-major order, under another shape; one size may be -1.

        Raises:
            ShapeError: The shape has another number of elements, or several sizes of -1.
        """
        return call("reshape", self, shape[0] if len(shape) == 1 else shape)

    def round(self, decimals: int = 0) -> Tensor:
        """Return the elements rounded to `decimals` decimals, halves to the even neighbour, in the same
        shape.

        Integers and bools stay as they are.
        """
        return call("round", self, decimals)

    def sort(self, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
        """Return the elements sorted along `axis`, NaN last, in the tensor's shape; arguments and errors as
        of `argsort`.
        """
        return call("sort", self, axis, descending=descending, stable=stable)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Return the tensor without the dimensions `axis` of its shape, of size 1, or without all that are
        known to be 1.

        Raises:
            ShapeError: A given dimension is not 1, or there is no such axis.
        """
        return call("squeeze", self, axis)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor:
        """Return the standard deviation along `axis`; arguments, shapes and errors as of `var`."""
        return call("std", self, axis, dtype, ddof, keepdims, correction=correction)

    def sum(self, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
        """Return the sum along `axis`.

        Args:
            axis: The dimensions to reduce; None reduces all.
            dtype: The type of the result; None is that of floating-point elements, and 64 bits for integers
                and bools.
            keepdims: Whether reduced dimensions stay in the result's shape, with size 1.

        Raises:
            ShapeError: There is no such axis.
            TypeError: There is no such element type.
        """
        return call("sum", self, axis, dtype, keepdims)

    def swapaxes(self, a: int, b: int) -> Tensor:
        """Return the tensor with dimensions `a` and `b` of its shape exchanged.

        Raises:
            ShapeError: There is no such axis.
        """
        return call("swapaxes", self, a, b)

    def take(self, indices: TensorLike, axis: int | None = None) -> Tensor:
        """Return the elements at integer `indices` along `axis`.

        (..., n, ...) becomes (..., *indices.shape, ...).

        Args:
            indices: Integers in -n .. n - 1, of any shape.
            axis: One dimension of size n; None takes all elements in row-major order as one dimension.

        Raises:
            IndexError: The indices are floating point, or one that is known while tracing is out of range. In
                a run of a compiled model such an index raises `OutOfRangeError`, which is an IndexError.
            ShapeError: There is no such axis.
        """
        return call("take", self, indices, axis)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """Return the sums of the diagonals of two dimensions: (n, n, ...) becomes (...).

        Arguments and errors are those of `diagonal`; integers and bools are summed in 64 bits.
        """
        return call("trace", self, offset, axis1, axis2)

    def transpose(self, *axes: Axis) -> Tensor:
        """Return the tensor with the dimensions of its shape in the order `axes`, by default reversed.

        Args:
            *axes: All dimensions, each once, as one sequence or as several numbers.

        Raises:
            ShapeError: A dimension is out of range or named twice.
        """
        return call("transpose", self, (axes[0] if len(axes) == 1 else axes) or None)

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor:
        """Return the variance along `axis`: squared deviations divided by the count less `ddof`.

        Args:
            axis: The dimensions to reduce; None reduces all.
            dtype: The type of the computation; None is that of floating-point elements, and float32 for
                others.
            ddof: The number that is subtracted from the count of elements.
            keepdims: Whether reduced dimensions stay in the result's shape, with size 1.
            correction: The array API's name of `ddof`; None uses `ddof`.

        Raises:
            ShapeError: There is no such axis.
            TypeError: There is no such element type.
        """
        return call("var", self, axis, dtype, ddof, keepdims, correction=correction)


class SupportsDlpack(Protocol):
    """An array of another package, such as a torch tensor."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...


TensorLike: TypeAlias = Tensor | SupportsDlpack | np.generic | Expr | complex | Sequence[Any]
"""Anything that becomes a tensor: a tensor, an array, a torch tensor, a number, a symbolic size, nested
sequences.
"""
SizeLike: TypeAlias = Expr | SupportsIndex
"""One size: an integer, a symbolic size, or a tensor of one integer that is known while tracing."""
ShapeLike: TypeAlias = SizeLike | Sequence[SizeLike]
"""One size, or several."""
ScalarLike: TypeAlias = Expr | float | Tensor | Array | np.generic
"""A number, a symbolic size, or a tensor or array of one element that is known while tracing."""
IndexPart: TypeAlias = SizeLike | slice | EllipsisType | Tensor | Array | np.bool_ | list[Any] | None
Index: TypeAlias = IndexPart | tuple[IndexPart, ...]
"""NumPy's index: slices, integers, None, Ellipsis, integer and boolean tensors, arrays or lists."""


def call(name: str, *args: object, **options: object) -> Tensor:
    """Return the tensor that the registered function called `name` returns."""
    result: Tensor = FUNCTIONS[name](*args, **options)
    return result


def _left(name: str, x: Tensor, other: object) -> Tensor:
    """Return the function of (`x`, `other`), or NotImplemented if `other` is no operand."""
    return call(name, x, other) if is_operand(other) else NotImplemented


def _right(name: str, x: Tensor, other: object) -> Tensor:
    """Return the function of (`other`, `x`), or NotImplemented if `other` is no operand."""
    return call(name, other, x) if is_operand(other) else NotImplemented


def is_operand(x: object) -> bool:
    """Return whether an operator of `Tensor` accepts `x` as the other operand."""
    return isinstance(x, (Tensor, np.ndarray, np.generic, list, tuple)) or is_weak(x)


def array_of(data: TensorLike, dtype: DTypeLike | None = None) -> Array:
    """Return an array, torch tensor, number or nested sequence as an array, converted to `dtype`.

    Nothing is copied unless a conversion needs it.

    Raises:
        TypeError: The elements have no type that tensors can have.
    """
    source: Any = data
    if hasattr(source, "detach"):
        source = source.detach().cpu()
        # NumPy has no bfloat16; the exact way leads through float32.
        if str(source.dtype) == "torch.bfloat16":
            dtype, source = dtype or "bfloat16", source.float()
        source = source.numpy()
    elif not isinstance(source, (np.ndarray, np.generic)) and hasattr(source, "__dlpack__"):
        source = np.from_dlpack(source)
    array = np.asarray(source)
    if array.dtype.kind == "O":
        raise TypeError(f"a {type(data).__name__} with elements that are no numbers cannot be a tensor")
    if dtype is None and not hasattr(source, "dtype") and array.dtype == np.float64:
        array = array.astype(np.float32)
    try:
        wanted = DType.of(array) if dtype is None else dtype_of(dtype)
    except ValueError:
        raise TypeError(
            f"a {type(source).__name__} with elements of {array.dtype} cannot be a tensor"
        ) from None
    return array if array.dtype == wanted.numpy else cast_array(array, wanted)


def _frozen(array: Array) -> Array:
    """Return a read-only view."""
    array = array.view()
    array.flags.writeable = False
    return array


TensorT = TypeVar("TensorT", bound=Tensor)


@overload
def concrete(array: npt.ArrayLike) -> Tensor: ...


@overload
def concrete(array: npt.ArrayLike, cls: type[TensorT]) -> TensorT: ...


def concrete(array: npt.ArrayLike, cls: type[Tensor] = Tensor) -> Tensor:
    """Return a tensor, of class `cls`, that shares the memory of an array nobody else writes to."""
    tensor = object.__new__(cls)
    tensor._array, tensor._value = _frozen(np.asarray(array)), None
    return tensor


def traced(value: Value) -> Tensor:
    """Return the tensor of an SSA value in the current trace."""
    tensor = object.__new__(Tensor)
    tensor._array, tensor._value = None, value
    return tensor


__all__ = [
    "Axis",
    "Index",
    "ScalarLike",
    "ShapeLike",
    "SizeLike",
    "Tensor",
    "TensorLike",
    "array_of",
    "call",
    "concrete",
    "traced",
]
