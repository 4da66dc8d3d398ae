"""Values of an ONNX graph while it is imported.

A `Tensor` is known in up to three forms: an SSA value, constant data, and *content*: an object array of symbolic integers (or
booleans), which is how shape computations are followed without any of them reaching the graph. An SSA value is made only when
an operator asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, TensorType, boolean, i32, i64

MAX_CONTENT = 1024
"""Elements up to which integers are followed symbolically; larger tensors are plain data."""
MAX_CONTENT_DEPTH = 24
"""Divisions, minima and maxima nested in each other up to which they are; the run computes what is deeper."""

CONTENT_DTYPES = (i32, i64, boolean)
"""Element types that shapes are computed in."""

Content = np.ndarray[Any, Any]


class Tensor:
    """One value. At least one of `value`, `data` and `content` is present; the others are derived when asked for.

    `make` builds the SSA value from constant data or content (given by the importer, which knows where to insert it).
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
        """Be constant data from now on."""
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
        """The elements as symbolic integers or booleans, if they are known and few."""
        if (
            self._content is None
            and self.data is not None
            and self.dtype in CONTENT_DTYPES
            and self.data.array.size <= MAX_CONTENT
        ):
            self._content = to_content(self.data.array)
        if self._content is None and self.dtype in CONTENT_DTYPES and all(isinstance(d, int) for d in self.shape):
            sizes = [d for d in self.shape if isinstance(d, int)]
            if 0 in sizes:
                self._content = np.empty(sizes, object)
        return self._content

    @property
    def array(self) -> np.ndarray[Any, Any] | None:
        """The elements as plain numbers, if they are all known now."""
        if self.data is not None:
            return self.data.array
        if self._content is not None and is_concrete(self._content):
            return self._content.astype(self.dtype.numpy)
        return None

    @property
    def value(self) -> Value:
        """The SSA value, made on first use."""
        if self._value is None:
            assert self._make is not None
            self._value = self._make(self)
        return self._value


class TensorList:
    """An ONNX sequence whose length is known: it exists only while importing."""

    __slots__ = ("items",)
    content = None
    array = None
    shape: tuple[Dim, ...] = ()

    def __init__(self, items: Sequence[Tensor]) -> None:
        self.items = list(items)


class Absent:
    """An optional value that holds nothing."""

    __slots__ = ()
    content = None
    array = None
    shape: tuple[Dim, ...] = ()


def to_content(array: Any) -> Content:
    """An array of integers or booleans as an object array of Python numbers."""
    source = np.asarray(array)
    result = np.empty(source.shape, object)
    result.reshape(-1)[:] = source.reshape(-1).tolist()
    return result


def is_concrete(content: Content) -> bool:
    """Whether no element is symbolic."""
    return not any(isinstance(e, Expr) for e in content.reshape(-1))
