"""Values of an ONNX graph while it is imported.

A `Tensor` is known in up to three forms: an SSA value, constant data, and *content*, an object array of
symbolic integers (or booleans). Content follows shape computations at import, so that they do not reach the
graph. An SSA value is created only when an operator needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, TensorType, boolean, i32, i64

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_CONTENT = 1024
"""Maximum number of elements of an integer tensor that is followed symbolically; larger tensors are data."""
MAX_CONTENT_DEPTH = 24
"""Maximum nesting of divisions, minima and maxima in a symbolic integer; deeper ones are computed at run
time. A larger limit makes proofs about sizes slower.
"""

CONTENT_DTYPES = (i32, i64, boolean)
"""Element types of shape computations."""

Content = np.ndarray[Any, Any]


class Tensor:
    """One value. At least one of `value`, `data` and `content` is present; the rest is derived on demand.

    `make` builds the SSA value from constant data or content; the `ModuleBuilder` passes it.
    """

    __slots__ = ("_content", "_make", "_value", "data", "type")

    def __init__(
        self,
        type: TensorType,
        value: Value | None = None,
        data: Constant | None = None,
        content: Content | None = None,
        make: Callable[[Tensor], Value] | None = None,
    ) -> None:
        self.type = type
        self.data = data
        self._value = value
        self._content = content
        self._make = make

    def become(self, data: Constant, make: Callable[[Tensor], Value]) -> None:
        """Turn into constant data."""
        self.type, self.data, self._make = data.type, data, make
        self._value = self._content = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def content(self) -> Content | None:
        """The elements as symbolic integers or booleans, if they are known and few, else None."""
        if (
            self._content is None
            and self.data is not None
            and self.dtype in CONTENT_DTYPES
            and self.data.array.size <= MAX_CONTENT
        ):
            self._content = to_content(self.data.array)
        if (
            self._content is None
            and self.dtype in CONTENT_DTYPES
            and all(isinstance(d, int) for d in self.shape)
        ):
            sizes = [d for d in self.shape if isinstance(d, int)]
            if 0 in sizes:
                self._content = np.empty(sizes, object)
        return self._content

    @property
    def array(self) -> np.ndarray[Any, Any] | None:
        """The elements as plain numbers, if all are known at compile time, else None."""
        if self.data is not None:
            return self.data.array
        if self._content is not None and is_concrete(self._content):
            return self._content.astype(self.dtype.numpy)
        return None

    @property
    def value(self) -> Value:
        """The SSA value, created on first use."""
        if self._value is None:
            assert self._make is not None
            self._value = self._make(self)
        return self._value


class TensorList:
    """An ONNX sequence of known length. It exists only during import."""

    __slots__ = ("items",)
    content = None
    array = None
    shape: tuple[Dim, ...] = ()

    def __init__(self, items: Sequence[Tensor]) -> None:
        self.items = list(items)


class Absent:
    """An optional value without content."""

    __slots__ = ()
    content = None
    array = None
    shape: tuple[Dim, ...] = ()


def to_content(array: npt.ArrayLike) -> Content:
    """Convert an array of integers or booleans to an object array of Python numbers."""
    source = np.asarray(array)
    result = np.empty(source.shape, object)
    result.reshape(-1)[:] = source.reshape(-1).tolist()
    return result


def is_concrete(content: Content) -> bool:
    """Whether no element is symbolic."""
    return not any(isinstance(e, Expr) for e in content.reshape(-1))
