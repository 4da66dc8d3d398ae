"""Constant tensor data, kept by reference. The IR never copies a model's weights; their elements are
rearranged only when they are written to their final memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from .types import DType, TensorType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_counter = itertools.count()


class Constant:
    """An array as an attribute of the IR. Large arrays are equal if they are the same memory, small ones if
    their contents (digests) are.

    `array` is a NumPy array (possibly memory-mapped) and must not be written to. `name` is the parameter's
    name in the source model and, with a number, the key of its resource in printed text. `Constant.made` is a
    constant whose data are computed from other constants on request and not kept.
    """

    __slots__ = (
        "_array",
        "_digest",
        "_recipe",
        "_write",
        "again",
        "key",
        "name",
        "numpy_dtype",
        "origins",
        "shape",
        "steps",
    )
    SMALL = 32
    WRITTEN = 4096
    """Size in bytes from which on an array is not pickled if it can be computed again. A larger value makes
    cached models larger and loading faster.
    """
    COMPARED = 65536
    """Arrays of up to this many elements are compared by content. A larger value finds more equal constants
    and reads more data.
    """

    def __init__(self, array: npt.ArrayLike, name: str = "") -> None:
        import numpy as np

        self._array: np.ndarray[Any, Any] | None = np.asarray(array)
        self._write: Callable[[np.ndarray[Any, Any]], None] | None = None
        self._recipe: Hashable = None
        self.numpy_dtype, self.shape = self._array.dtype, tuple(int(d) for d in self._array.shape)
        self.name = name
        self.key = f"{name or 'constant'}_{next(_counter)}"
        self._digest: bytes | None = None
        self.again: Callable[[np.ndarray[Any, Any]], None] | None = None
        """Computes the data of an array that is kept here, as `write` of `Constant.made` does. It is pickled
        instead of the data.
        """
        self.origins: tuple[tuple[str, TensorType], ...] = ()
        """Names and types of the parameters that this constant was computed from, unless it is a parameter
        itself.
        """
        self.steps: tuple[str, ...] = ()
        """The steps that computed it from them, in order."""

    def made_of(self, sources: Iterable[Constant], step: str) -> Constant:
        """Record that `step` computed this constant from `sources`; return the constant. Only texts are kept,
        none of the sources' data.
        """
        named = [s for s in sources if s.parameters]
        self.origins = tuple(dict.fromkeys(p for s in named for p in s.parameters))
        self.steps = (*dict.fromkeys(done for s in named for done in s.steps), step)
        return self

    @property
    def parameters(self) -> tuple[tuple[str, TensorType], ...]:
        """Names and types of the parameters that this constant is or was computed from."""
        return self.origins or (((self.name, self.type),) if self.name else ())

    @classmethod
    def made(
        cls,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        write: Callable[[np.ndarray[Any, Any]], None],
        name: str = "",
        *,
        recipe: Hashable = None,
    ) -> Constant:
        """A constant whose data are computed each time they are needed; a small one is computed at once and
        kept.

        A compiled model can be cached if `write` can be pickled: an object of a frozen class that holds the
        constants it reads.

        Args:
            shape: The size of each dimension.
            dtype: The element type, as NumPy takes it.
            write: Computes the data into an array of this shape and type. It may run in any thread.
            name: The name of the model's parameter.
            recipe: Identifies the computation and its operands: two constants of one recipe are equal. None
                is `write` itself.
        """
        import numpy as np

        if math.prod(shape) <= cls.COMPARED:
            array = np.empty(shape, dtype)
            write(array)
            few = cls(array, name)
            few.again = write if is_dataclass(write) else None
            return few
        return cls._later(shape, dtype, write, name, write if recipe is None else recipe)

    @classmethod
    def _later(
        cls,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        write: Callable[[np.ndarray[Any, Any]], None],
        name: str,
        recipe: Hashable,
    ) -> Constant:
        import numpy as np

        constant = cls(np.broadcast_to(np.zeros((), dtype), shape), name)
        constant._array, constant._write, constant._recipe = None, write, recipe
        return constant

    def __reduce__(self) -> Any:
        """Pickle the data, or the recipe that computes them; not their origin."""
        array, write = self._array, self._write
        if array is not None and array.size > 1 and not any(array.strides):  # one element, shown often
            array = array[(slice(0, 1),) * array.ndim]
        elif self.again is not None and self.nbytes >= self.WRITTEN:
            array, write = None, self.again
        return _restored, (array, write, self.numpy_dtype, self.shape, self.name)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The data as a NumPy array of the constant's shape and type, computed now if it is made on
        demand.
        """
        import numpy as np

        if self._array is not None:
            return self._array
        array = np.empty(self.shape, self.numpy_dtype)
        self.write_to(array)
        return array

    def write_to(self, out: np.ndarray[Any, Any]) -> None:
        """Copy the data into `out`, an array of the same shape and dtype."""
        if self._write is not None:
            self._write(out)
        else:
            out[...] = self._array

    @property
    def is_made(self) -> bool:
        """Whether `array` computes the data anew."""
        return self._write is not None

    @property
    def source(self) -> object:
        """The object that the data come from."""
        return self._array if self._write is None else self._write

    def _origin(self) -> Hashable:
        """The key by which large constants of one dtype and shape are equal: their recipe, or the address of
        their elements.
        """
        if self._array is None:
            return self._recipe
        return self._array.__array_interface__["data"][0], self._array.strides

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the data in bytes."""
        return self.size * int(self.numpy_dtype.itemsize)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return DType.of(self.numpy_dtype)

    @property
    def type(self) -> TensorType:
        """The tensor type of the data."""
        return TensorType(self.dtype, self.shape)

    @property
    def is_splat(self) -> bool:
        """All elements are known to be one value without reading a large array."""
        array = self._array
        if array is None or array.size == 0:
            return False
        if array.size == 1 or all(s == 0 or d == 1 for s, d in zip(array.strides, array.shape, strict=True)):
            return True
        if array.size > 4096:
            return False
        first = array.reshape(-1)[0]
        return bool((array == first).all())

    def digest(self) -> bytes:
        """Hash of dtype, shape and content (16 bytes)."""
        if self._digest is None:
            import numpy as np
            import xxhash

            h = xxhash.xxh3_128(f"{self.numpy_dtype}{self.shape}".encode())
            array = (
                self.array
                if self.numpy_dtype.kind != "O"
                else np.frombuffer(repr(self.array.tolist()).encode(), np.uint8)
            )
            if array.size > self.COMPARED and not any(array.strides):  # one element, shown often
                array = array[(slice(0, 1),) * array.ndim]
            h.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
            self._digest = h.digest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if (
            not isinstance(other, Constant)
            or self.numpy_dtype != other.numpy_dtype
            or self.shape != other.shape
        ):
            return False
        if self.size <= self.COMPARED:
            return self.source is other.source or self.digest() == other.digest()
        return self._origin() == other._origin()

    def __hash__(self) -> int:
        if self.size <= self.COMPARED:
            return hash(self.digest())
        return hash((self.shape, self._origin()))

    def __repr__(self) -> str:
        return f"Constant({self.key}: {self.type})"


def _restored(
    array: np.ndarray[Any, Any],
    write: Callable[[np.ndarray[Any, Any]], None] | None,
    dtype: npt.DTypeLike,
    shape: tuple[int, ...],
    name: str,
) -> Constant:
    import numpy as np

    if write is not None:
        return Constant._later(shape, dtype, write, name, write)
    return Constant(np.broadcast_to(array, shape), name)
