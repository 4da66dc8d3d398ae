"""Types of the IR: element types, tensors, buffers, tokens. All are interned: equality is identity.

An element type (`DType`) doubles as the type of a scalar value. Shapes are tuples of `Dim` (a plain ``int``,
or a symbolic `Expr`), so a type knows the names and bounds of its dynamic dimensions.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..errors import SizeError
from .symbolic import Dim, Expr, bounds, symbol
from .symbolic_text import parse

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[Dim, ...]


class Type:
    """Base of all types; subclasses intern their instances, so ``is`` and ``==`` agree."""

    __slots__ = ()


class DType(Type):
    """Element type of tensors and type of scalar values.

    ``name`` is MLIR's (``f32``, ``i64``, ``ui8``, ``i1``, ``f8E4M3FN``). ``kind`` is one of ``float``,
    ``int``, ``uint``, ``bool`` or ``string``; only the interpreter supports strings, as Python strings in
    object arrays. ``bits`` is the width of the value and ``itemsize`` its storage in bytes; booleans and
    types of 4 or 2 bits take one byte.
    """

    __slots__ = ("bits", "kind", "name")
    _by_name: ClassVar[dict[str, DType]] = {}

    def __init__(self, name: str, kind: str, bits: int) -> None:
        self.name, self.kind, self.bits = name, kind, bits
        DType._by_name[name] = self

    @property
    def itemsize(self) -> int:
        """The bytes of an element in memory."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer type; bool is none."""
        return self.kind in ("int", "uint")

    @property
    def is_sub_byte(self) -> bool:
        """Whether it is a type of fewer than 8 bits. Such integers are stored, moved, compared and converted;
        arithmetic is not supported.
        """
        return self.bits < 8 and self.kind != "bool"

    @property
    def is_signed(self) -> bool:
        """Whether it is a signed integer type."""
        return self.kind in ("int", "float")

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of the same storage; ``ml_dtypes`` supplies the types that NumPy lacks."""
        return _numpy_of(self)

    @property
    def label(self) -> str:
        """The name users know, NumPy's: ``float32``, ``int64``, ``bool``, ``float8_e4m3fn``."""
        if self is boolean or self is string:
            return self.kind
        if self.is_float and self.bits <= 8:
            return f"float{self.bits}_{self.name[2:].lower()}"
        return "bfloat16" if self is bf16 else f"{self.kind}{self.bits}"

    @property
    def limits(self) -> tuple[Any, Any]:
        """The least and the largest finite number of an integer or float type, as Python's own."""
        import ml_dtypes

        if self.is_integer:
            low = -(1 << (self.bits - 1)) if self.is_signed else 0
            return low, low + (1 << self.bits) - 1
        info = ml_dtypes.finfo(self.numpy)
        return float(info.min), float(info.max)

    def holds(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether all elements of an array of integers, of any shape, are numbers of this integer type."""
        low, high = self.limits
        return array.size == 0 or bool(array.min() >= low and array.max() <= high)

    @staticmethod
    def named(name: str) -> DType:
        """The dtype called `name`, in MLIR's spelling (``f32``) or NumPy's (``float32``).

        Raises:
            ValueError: No such dtype.
        """
        dtype = DType._by_name.get(name)
        if dtype is None:
            dtype = next((d for d in DType._by_name.values() if d.label == name), None)
        if dtype is None:
            raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DType._by_name)}")
        return dtype

    @staticmethod
    def of(array_or_dtype: Any) -> DType:
        """The dtype of `array_or_dtype`, a NumPy array or anything that ``numpy.dtype`` accepts.

        Raises:
            ValueError: The array's dtype has no counterpart (complex, dates, ...).
            TypeError: NumPy knows no such dtype.
        """
        import numpy as np

        # NumPy's scalar classes also have an attribute `dtype`, which is a descriptor.
        described = (
            array_or_dtype
            if isinstance(array_or_dtype, type)
            else getattr(array_or_dtype, "dtype", array_or_dtype)
        )
        return _dtype_of(np.dtype(described))

    def __getitem__(self, sizes: int | str | tuple[int | str, ...]) -> TensorSpec:
        """The declared type of a tensor: ``f32["n", "d"]``; see `TensorSpec`.

        Raises:
            ValueError: A size is neither a number nor a formula of names.
        """
        return TensorSpec(self, sizes if isinstance(sizes, tuple) else (sizes,))

    __iter__ = None  # `__getitem__` alone would make an endless sequence of it
    __contains__ = None

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return DType.named, (self.name,)


@cache
def _numpy_of(dtype: DType) -> np.dtype[Any]:
    import numpy as np

    if dtype is bf16 or dtype.is_sub_byte or (dtype.is_float and dtype.bits == 8):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype.label))
    if dtype is boolean:
        return np.dtype(np.bool_)
    if dtype is string:
        return np.dtype(object)
    return np.dtype({"float": "f", "int": "i", "uint": "u"}[dtype.kind] + str(dtype.itemsize))


@cache
def _dtype_of(dtype: np.dtype[Any]) -> DType:
    return string if dtype.kind == "O" else DType.named(dtype.name)


boolean = DType("i1", "bool", 1)
i8, i16, i32, i64 = (DType(f"i{n}", "int", n) for n in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"ui{n}", "uint", n) for n in (8, 16, 32, 64))
f16, f32, f64 = (DType(f"f{n}", "float", n) for n in (16, 32, 64))
bf16 = DType("bf16", "float", 16)
i2, i4 = (DType(f"i{n}", "int", n) for n in (2, 4))
u2, u4 = (DType(f"ui{n}", "uint", n) for n in (2, 4))
FLOAT8 = tuple(
    DType(f"f8{n}", "float", 8)
    for n in ("E3M4", "E4M3", "E4M3B11FNUZ", "E4M3FN", "E4M3FNUZ", "E5M2", "E5M2FNUZ", "E8M0FNU")
)
FLOAT6 = tuple(DType(f"f6{n}", "float", 6) for n in ("E2M3FN", "E3M2FN"))
string = DType("string", "string", 64)
f4 = DType("f4E2M1FN", "float", 4)


SizeText = int | str
"""A declared size: a number, or a formula of names in Python's syntax, such as ``"2*n + 1"``."""


@dataclass(frozen=True)
class TensorSpec:
    """An element type and a shape with names, written ``f32["n", "d"]``; ``f32[()]`` is a scalar tensor.

    A first size ``"*n"`` stands for any number of leading dimensions, and `n` for the product of their sizes.

    Raises:
        ValueError: A size is neither a number nor a formula of names.
    """

    dtype: DType
    """The element type."""
    sizes: tuple[SizeText, ...]
    """The sizes as written."""

    def __post_init__(self) -> None:
        for place, size in enumerate(self.sizes):
            if isinstance(size, bool) or not isinstance(size, (int, str)):
                raise ValueError(
                    f"{self}: size {place} is {size!r}; give a number, a name or a formula of names"
                )
            if isinstance(size, int) and size < 0:
                raise ValueError(f"{self}: size {place} is negative")
            if isinstance(size, str) and size.strip().startswith("*"):
                if place or not re.fullmatch(r"\*[A-Za-z_]\w*", size.strip(), re.ASCII):
                    raise ValueError(
                        f'{self}: \'*\' and a name may only be the first size, as in ["*n", "d"]'
                    )

    @property
    def lead(self) -> str | None:
        """The name behind the ``*`` of the first size; None where there is none."""
        first = self.sizes[0] if self.sizes else None
        return first.strip()[1:] if isinstance(first, str) and first.strip().startswith("*") else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the sizes, in the order in which they first appear."""
        found: dict[str, None] = {}
        for size in self.sizes:
            if isinstance(size, str):
                found.update(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", size, re.ASCII)))
        return tuple(name for name in found if name not in ("min", "max"))

    def shape(self, symbols: dict[str, Expr]) -> tuple[Dim, ...]:
        """The sizes as expressions over `symbols`, the ``*`` left out; unknown names are added to `symbols`.

        Raises:
            ValueError: A size is no formula; the message shows it.
        """
        for name in self.names:
            symbols.setdefault(name, symbol(name, 0, None))
        return tuple(
            size if isinstance(size, int) else _parsed(self, size.strip().lstrip("*"), symbols)
            for size in self.sizes
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(repr, self.sizes)) or '()'}]"


def _parsed(spec: TensorSpec, text: str, symbols: dict[str, Expr]) -> Dim:
    try:
        ast.parse(text, mode="eval")
        return parse(text, symbols)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{spec}: {text!r} is not a size: {error}") from None


class _Interned(Type):
    __slots__ = ("_key", "_text")
    _instances: ClassVar[dict[tuple[Any, ...], Type]] = {}
    _key: tuple[Any, ...]
    _text: str | None

    @classmethod
    def _intern(cls, *key: Any) -> Any:
        full = (cls, *key)
        instance = _Interned._instances.get(full)
        if instance is None:
            self = object.__new__(cls)
            self._key, self._text = key, None
            self._set(*key)  # type: ignore[attr-defined]
            instance = _Interned._instances.setdefault(full, self)  # one object for all threads
        return instance

    def __reduce__(self) -> Any:
        return type(self), self._key

    def __repr__(self) -> str:
        if self._text is None:
            self._text = self._format()
        return cast(str, self._text)

    def _format(self) -> str:
        raise NotImplementedError


def _shape_text(shape: Shape) -> str:
    return "".join((str(d) if isinstance(d, int) else "?") + "x" for d in shape)


def _is_static(shape: Shape) -> bool:
    return all(isinstance(d, int) for d in shape)


class _Shaped(_Interned):
    """A type with a shape."""

    __slots__ = ()
    shape: Shape

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        total: Dim = 1
        for d in self.shape:
            total = total * d
        return total


class TensorType(_Shaped):
    """An immutable tensor value: element type, symbolic shape and, if not row-major, the physical order of
    dimensions.

    ``layout`` lists the dimensions from outermost to innermost in memory (``(0, 2, 3, 1)`` stores NCHW as
    NHWC); ``None`` is row-major.
    """

    __slots__ = ("dtype", "layout", "shape")
    dtype: DType
    shape: Shape
    layout: tuple[int, ...] | None

    def __new__(cls, dtype: DType, shape: Iterable[Dim], layout: tuple[int, ...] | None = None) -> TensorType:
        shape = tuple(shape)
        if layout is not None:
            layout = tuple(layout)
            if sorted(layout) != list(range(len(shape))):
                raise ValueError(f"layout {layout} is not a permutation of the {len(shape)} dimensions")
            if layout == tuple(range(len(shape))):
                layout = None
        return cast(TensorType, cls._intern(dtype, shape, layout))

    def _set(self, dtype: DType, shape: Shape, layout: tuple[int, ...] | None) -> None:
        if math.prod(d for d in shape if isinstance(d, int)) * dtype.itemsize >= 1 << 63:
            raise SizeError(f"a tensor of shape {shape} has more bytes than 64 bits can address")
        self.dtype, self.shape, self.layout = dtype, shape, layout

    @property
    def is_static(self) -> bool:
        """Whether all sizes are constant."""
        return _is_static(self.shape)

    @property
    def max_size(self) -> int | None:
        """Number of elements at the upper bounds of the symbols; None when unbounded."""
        return bounds(self.size)[1]

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape with another element type `dtype`."""
        return TensorType(dtype, self.shape, self.layout)

    def _format(self) -> str:
        notes = [] if self.is_static else [", ".join(str(d) for d in self.shape)]
        if self.layout is not None:
            notes.append("layout " + " ".join(map(str, self.layout)))
        encoding = f', "{"; ".join(notes)}"' if notes else ""
        return f"tensor<{_shape_text(self.shape)}{self.dtype.name}{encoding}>"


class BufferType(_Shaped):
    """A mutable, row-major block of memory in a memory space.

    ``space`` is ``global`` (arguments, arena), ``local`` (private to a worker or thread), ``register`` or
    ``shared`` (a GPU workgroup's).
    """

    __slots__ = ("dtype", "shape", "space")
    dtype: DType
    shape: Shape
    space: str

    def __new__(cls, dtype: DType, shape: Iterable[Dim], space: str = "global") -> BufferType:
        return cast(BufferType, cls._intern(dtype, tuple(shape), space))

    def _set(self, dtype: DType, shape: Shape, space: str) -> None:
        self.dtype, self.shape, self.space = dtype, shape, space

    @property
    def strides(self) -> Shape:
        """Row-major strides in elements."""
        strides: list[Dim] = []
        step: Dim = 1
        for d in reversed(self.shape):
            strides.append(step)
            step = step * d
        return tuple(reversed(strides))

    def _format(self) -> str:
        shape = ", ".join(str(d) for d in self.shape)
        return f'!tw.buffer<"{self.dtype.name}", "{shape}", "{self.space}">'


class TokenType(_Interned):
    """The type of tokens, which order side effects that no data dependence orders."""

    __slots__ = ()

    def __new__(cls) -> TokenType:
        return cast(TokenType, cls._intern())

    def _set(self) -> None:
        pass

    def _format(self) -> str:
        return "!tw.token"


token = TokenType()
