"""Constant tensor data, kept by reference: weights of a model are never copied by the IR."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from .types import DType, TensorType

if TYPE_CHECKING:
    import numpy as np

_counter = itertools.count()


class Constant:
    """An array standing in the IR as an attribute; compared by identity of the array, or by content (its digest) when not large.

    `array` is a NumPy array (possibly memory-mapped) and must not be written to. `name` is the parameter's name in the source
    model and, with a number, the key of its resource in printed text. A constant splat (`Constant.splat`) is a
    broadcast view of one element.
    """

    __slots__ = ("_digest", "array", "key", "name")
    SMALL = 32
    COMPARED = 65536
    """Arrays of up to so many elements are compared by content."""

    def __init__(self, array: Any, name: str = "") -> None:
        import numpy as np

        self.array: np.ndarray[Any, Any] = np.asarray(array)
        self.name = name
        self.key = f"{name or 'constant'}_{next(_counter)}"
        self._digest: bytes | None = None

    @property
    def dtype(self) -> DType:
        return DType.of(self.array)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, tuple(int(d) for d in self.array.shape))

    @property
    def is_splat(self) -> bool:
        """All elements are known to be one value without reading a large array."""
        if self.array.size == 0:
            return False
        if self.array.size == 1 or all(
            s == 0 or d == 1 for s, d in zip(self.array.strides, self.array.shape, strict=True)
        ):
            return True
        if self.array.size > 4096:
            return False
        first = self.array.reshape(-1)[0]
        return bool((self.array == first).all())

    def digest(self) -> bytes:
        """Hash of dtype, shape and content (16 bytes)."""
        if self._digest is None:
            import numpy as np
            import xxhash

            h = xxhash.xxh3_128(f"{self.array.dtype}{self.array.shape}".encode())
            h.update(np.ascontiguousarray(self.array).view(np.uint8).reshape(-1).data)
            self._digest = h.digest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if (
            not isinstance(other, Constant)
            or self.array.dtype != other.array.dtype
            or self.array.shape != other.array.shape
        ):
            return False
        return self.array is other.array or (self.array.size <= self.COMPARED and self.digest() == other.digest())

    def __hash__(self) -> int:
        if self.array.size <= self.COMPARED:
            return hash(self.digest())
        return hash((self.array.shape, id(self.array)))

    def __repr__(self) -> str:
        return f"Constant({self.key}: {self.type})"
