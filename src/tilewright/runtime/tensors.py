"""Conversion of tensors between callers and compiled models: any tensor becomes a NumPy array, and results
become tensors of the caller's kind.

In NumPy bfloat16, 8-bit floats and types of 4 or 2 bits are `ml_dtypes` data types, with at least one byte an
element. A contiguous tensor is not copied.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import ml_dtypes
import numpy as np

from tilewright.errors import ShapeError

if TYPE_CHECKING:
    import torch

DTYPES: dict[np.dtype, tuple[int, int]] = {
    **{np.dtype(f"int{bits}"): (0, bits) for bits in (8, 16, 32, 64)},
    **{np.dtype(f"uint{bits}"): (1, bits) for bits in (8, 16, 32, 64)},
    **{np.dtype(f"float{bits}"): (2, bits) for bits in (16, 32, 64)},
    np.dtype(ml_dtypes.bfloat16): (4, 16),
    **{np.dtype(f"complex{bits}"): (5, bits) for bits in (64, 128)},
    np.dtype(np.bool_): (6, 8),
    np.dtype(ml_dtypes.float8_e3m4): (7, 8),
    np.dtype(ml_dtypes.float8_e4m3): (8, 8),
    np.dtype(ml_dtypes.float8_e4m3b11fnuz): (9, 8),
    np.dtype(ml_dtypes.float8_e4m3fn): (10, 8),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (11, 8),
    np.dtype(ml_dtypes.float8_e5m2): (12, 8),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (13, 8),
    np.dtype(ml_dtypes.float8_e8m0fnu): (14, 8),
    np.dtype(ml_dtypes.float6_e2m3fn): (15, 6),
    np.dtype(ml_dtypes.float6_e3m2fn): (16, 6),
    np.dtype(ml_dtypes.float4_e2m1fn): (17, 4),
    **{np.dtype(getattr(ml_dtypes, f"int{bits}")): (0, bits) for bits in (2, 4)},
    **{np.dtype(getattr(ml_dtypes, f"uint{bits}")): (1, bits) for bits in (2, 4)},
}
"""DLPack's (type code, bits) of every data type that calls accept; elements of fewer than 8 bits are padded
to a byte.
"""

STRING = np.dtype(object)
"""The data type of tensors of Python strings, which only run in Python."""

_BY_NAME = {dtype.name: dtype for dtype in DTYPES} | {"string": STRING}


def dtype_named(name: str) -> np.dtype:
    """The NumPy data type that an artifact's metadata calls `name`, e.g. "float32", "bfloat16", "bool"."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ShapeError(f"data type '{name}' cannot be passed from Python") from None


def is_torch(value: object) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    return hasattr(value, "data_ptr") and hasattr(value, "detach")


def to_numpy(value: object, name: str, dtype: np.dtype) -> np.ndarray:
    """A C-contiguous, aligned array with the contents of `value`, which shares its memory where that is
    possible.

    Python numbers and sequences are converted to `dtype`, the input's data type, which has to represent them:
    a float is no integer. A tensor keeps its data type.

    Raises:
        ShapeError: `value` is not a tensor in the CPU's memory, or is a masked array with hidden elements.
            The message names the input.
    """
    if dtype is STRING:
        return _strings(value, name)
    if type(value) is not np.ndarray:
        value = _convert(value, name, dtype)
    flags = value.flags
    if flags.c_contiguous and flags.aligned:
        return value
    return value.copy(order="C")


def _convert(value: object, name: str, dtype: np.dtype) -> np.ndarray:
    if is_torch(value):
        return _from_torch(value, name)
    refuse_masks(value, name)
    try:
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if hasattr(value, "__array__"):
            return np.asarray(value)
        return _of_numbers(value, name, dtype)
    except ShapeError:
        raise
    except Exception as error:
        raise ShapeError(
            f"input '{name}': a {type(value).__name__} cannot be read as a tensor: {error}"
        ) from error


def refuse_masks(value: object, name: str) -> None:
    """Raises ShapeError: `value` is a masked array with hidden elements, which models do not support."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ShapeError(
            f"input '{name}': a masked array with hidden elements; give .filled(number), or a mask as an "
            "input of its own"
        )


def _of_numbers(value: object, name: str, dtype: np.dtype) -> np.ndarray:
    """Python numbers, or sequences of them, as an array of `dtype`.

    Raises:
        ShapeError: They are not numbers, or `dtype` cannot represent them.
    """
    given = np.asarray(value)
    if not given.size:
        return given.astype(dtype)
    integers = (
        all(isinstance(x, int) for x in given.flat) if given.dtype.kind == "O" else given.dtype.kind in "iu"
    )
    if not integers and given.dtype.kind not in "bfcV":
        raise ShapeError(f"input '{name}': expected numbers, got {type(next(given.flat)).__name__}")
    code = DTYPES[dtype][0] if dtype in DTYPES else None
    if code in (0, 1, 6) and not (integers or given.dtype.kind == "b"):
        raise ShapeError(
            f"input '{name}': expected {dtype.name}, got floating point numbers; round them, or give them "
            f"as an array of {dtype.name}"
        )
    array = np.asarray(value, dtype=dtype)
    if code in (0, 1, 6) and not np.array_equal(array.astype(given.dtype), given):
        raise ShapeError(f"input '{name}': {dtype.name} does not hold all of the numbers given")
    return array


def _strings(value: object, name: str) -> np.ndarray:
    """Strings as an array: from an array of any kind, a list, or one string."""
    array = np.array(value, object) if not isinstance(value, np.ndarray) else value.astype(object)
    for x in array.reshape(-1):
        if not isinstance(x, str):
            raise ShapeError(f"input '{name}': expected strings, got {type(x).__name__}")
    return array


def _from_torch(tensor: torch.Tensor, name: str) -> np.ndarray:
    if tensor.device.type != "cpu":
        raise ShapeError(
            f"input '{name}': expected a tensor on the CPU, got one on '{tensor.device}': use .cpu()"
        )
    tensor = tensor.detach()
    kind = str(tensor.dtype).removeprefix("torch.")
    try:
        if kind in _TORCH_BY_BITS:
            import torch

            integer = torch.int16 if kind == "bfloat16" else torch.int8
            return tensor.contiguous().view(integer).numpy().view(_BY_NAME[kind])
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise ShapeError(f"input '{name}': this torch tensor cannot be read: {error}") from error


def strided_view(value: Any) -> np.ndarray:
    """A NumPy array that shares the memory of a NumPy array or torch tensor of any strides. Its elements have
    the same size, not always the same type.
    """
    if not is_torch(value):
        return np.asarray(value)
    value = value.detach()
    if str(value.dtype).removeprefix("torch.") in _TORCH_BY_BITS:
        import torch

        value = value.view(torch.int16 if value.element_size() == 2 else torch.int8)
    array: np.ndarray = value.numpy()
    return array


_NARROW = [d.name for d in DTYPES if re.match(r"float[468]_", d.name)]
_TORCH_BY_BITS = ("bfloat16", *(f"float8_{n}" for n in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")))
"""torch data types that NumPy lacks: they are converted as integers of their size."""
_TORCH_WITHOUT: dict[str, np.dtype] = {
    **{name: np.dtype(np.float32) for name in _NARROW if name not in _TORCH_BY_BITS},
    **{f"int{bits}": np.dtype(np.int8) for bits in (2, 4)},
    **{f"uint{bits}": np.dtype(np.uint8) for bits in (2, 4)},
}
"""Data types that torch cannot compute with, and the data types that such results are converted to."""


def torch_has(dtype: np.dtype) -> bool:
    """Whether torch has a data type; it lacks those of fewer than 8 bits and some of 8."""
    return dtype.name not in _TORCH_WITHOUT


def like(result: np.ndarray, model: Any) -> Any:
    """`result` as a tensor of the kind of `model` (NumPy, torch, or another array library), sharing
    memory.
    """
    if type(model) is np.ndarray:
        return result
    if is_torch(model):
        without = _TORCH_WITHOUT.get(result.dtype.name)
        return torch_view(result if without is None else result.astype(without))
    if hasattr(model, "__array_namespace__") and not isinstance(model, np.ndarray | np.generic):
        return model.__array_namespace__().from_dlpack(result)
    return result


def torch_view(array: np.ndarray) -> torch.Tensor:
    """A torch tensor that shares the memory of an array of a type that torch has."""
    import torch

    name = array.dtype.name
    if name in _TORCH_BY_BITS:
        integer = np.int16 if name == "bfloat16" else np.int8
        return torch.from_numpy(array.view(integer)).view(getattr(torch, name))
    return torch.from_numpy(array)


class Border(Protocol):
    """The operations of one array library that fast calls need. A tensor is *plain* if native code can read
    it in place.
    """

    def plain_shapes(
        self, values: Sequence[Any], dtypes: Sequence[np.dtype]
    ) -> tuple[tuple[int, ...], ...] | None:
        """The tensors' shapes; None unless all are plain: of this library, of these data types, contiguous,
        aligned, in the CPU's memory.
        """

    def writable(self, values: Sequence[Any]) -> bool:
        """Whether all are tensors of this library that may be written."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A new plain tensor with undefined contents."""

    def around(self, array: np.ndarray) -> Any:
        """A plain tensor that shares the memory of a contiguous array."""

    def write_addresses(self, where: ctypes.Array[ctypes.c_uint64], values: Sequence[Any]) -> None:
        """Write the addresses of the plain tensors' elements to an array of 64-bit integers."""


_word_at = ctypes.c_size_t.from_address


def _data_offset() -> int | None:
    """The offset in an array object at which NumPy stores the address of its elements
    (`PyArrayObject_fields`); None where a test of it fails.
    """
    probe, offset = np.empty(3), object.__basicsize__
    right = sys.implementation.name == "cpython" and _word_at(id(probe) + offset).value == probe.ctypes.data
    return offset if right else None


_DATA_OFFSET = _data_offset()


class _NumpyBorder:
    empty: Any = staticmethod(np.empty)

    def around(self, array: np.ndarray) -> np.ndarray:
        return array

    def plain_shapes(
        self, values: Sequence[Any], dtypes: Sequence[np.dtype]
    ) -> tuple[tuple[int, ...], ...] | None:
        shapes: tuple[tuple[int, ...], ...] = ()
        for value, dtype in zip(values, dtypes):  # noqa: B905  # as many
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return None
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
            shapes += (value.shape,)
        return shapes

    def writable(self, values: Sequence[Any]) -> bool:
        return all(type(value) is np.ndarray and value.flags.writeable for value in values)

    def write_addresses(self, where: ctypes.Array[ctypes.c_uint64], values: Sequence[np.ndarray]) -> None:
        offset = _DATA_OFFSET
        for index, value in enumerate(values):
            # The documented way takes ten times as long.
            where[index] = value.ctypes.data if offset is None else _word_at(id(value) + offset).value


class _TorchBorder:
    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.dtypes = {d: None if d.name in _TORCH_WITHOUT else getattr(torch, d.name, None) for d in DTYPES}

    def plain_shapes(
        self, values: Sequence[Any], dtypes: Sequence[np.dtype]
    ) -> tuple[tuple[int, ...], ...] | None:
        strided = self.torch.strided
        for value, dtype in zip(values, dtypes, strict=True):
            if (
                type(value) is not self.torch.Tensor
                or value.dtype is not self.dtypes[dtype]
                or not value.is_cpu
                or value.layout is not strided
                or not value.is_contiguous()
                or value.is_neg()
                or value.is_conj()
            ):
                return None
        return tuple([value.shape for value in values])

    def writable(self, values: Sequence[Any]) -> bool:
        return all(type(value) is self.torch.Tensor for value in values)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if dtype.isbuiltin == 1:
            return self.torch.from_numpy(np.empty(shape, dtype))  # takes half the time of torch.empty
        return self.torch.empty(shape, dtype=self.dtypes[dtype])

    def around(self, array: np.ndarray) -> Any:
        return torch_view(array)

    def write_addresses(self, where: ctypes.Array[ctypes.c_uint64], values: Sequence[Any]) -> None:
        for index, value in enumerate(values):
            where[index] = value.data_ptr()


NUMPY: Border = _NumpyBorder()
_BORDERS: dict[type, Border | None] = {np.ndarray: NUMPY}


def border_of(kind: type) -> Border | None:
    """The array library of values of exactly this type; None: they have to be converted first."""
    try:
        return _BORDERS[kind]
    except KeyError:
        torch = sys.modules.get("torch")
        border = _TorchBorder(torch) if torch is not None and kind is torch.Tensor else None
        _BORDERS[kind] = border
        return border
