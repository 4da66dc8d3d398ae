"""Conversion of torch tensors and dtypes to NumPy arrays and IR dtypes. Arrays are views of the torch
storages, never copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CompileError
from ...ir import types
from ...ir.types import DType

if TYPE_CHECKING:
    import torch

_NAMES = {
    "bool": types.boolean,
    "uint8": types.u8,
    "uint16": types.u16,
    "uint32": types.u32,
    "uint64": types.u64,
    "int8": types.i8,
    "int16": types.i16,
    "int32": types.i32,
    "int64": types.i64,
    "float16": types.f16,
    "bfloat16": types.bf16,
    "float32": types.f32,
    "float64": types.f64,
}


def is_known(dtype: torch.dtype) -> bool:
    """Return whether `dtype_of` has an IR dtype for a ``torch.dtype``."""
    return str(dtype).removeprefix("torch.") in _NAMES


def dtype_of(dtype: torch.dtype, where: str = "") -> DType:
    """Return the IR dtype of a ``torch.dtype``.

    Raises:
        CompileError: There is none (complex, quantized, float8); `where` names the owner in the message.
    """
    name = str(dtype).removeprefix("torch.")
    dtype_name = _NAMES.get(name)
    if dtype_name is None:
        raise CompileError(
            f"{where or 'a tensor'} has the element type {name}, which is not supported (known: "
            f"{', '.join(_NAMES)})"
        )
    return dtype_name


def torch_dtype_of(dtype: DType) -> torch.dtype:
    """Return the ``torch.dtype`` of an IR dtype.

    Raises:
        CompileError: There is none.
    """
    import torch

    name = next((name for name, known in _NAMES.items() if known is dtype), None)
    if name is None:
        raise CompileError(f"torch has no element type for {dtype.label} (known: {', '.join(_NAMES)})")
    found: torch.dtype = getattr(torch, name)
    return found


def part_dtype_of(dtype: torch.dtype, where: str = "") -> DType:
    """Return the IR dtype of a ``torch.dtype``, for complex numbers that of their parts; see `dtype_of`."""
    return dtype_of(dtype.to_real() if dtype.is_complex else dtype, where)


def array_of(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    """Return the data of a torch tensor as an array that shares its memory if it is on the CPU.

    Raises:
        CompileError: The tensor has no data (meta or fake) or no plain strided layout.
    """
    import torch

    tensor = tensor.detach()
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        raise CompileError(
            f"'{name}' has no data (device {tensor.device}); load the weights before compiling"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise CompileError(
            f"'{name}' is not a plain dense tensor ({tensor.layout}); convert it with .to_dense() or "
            ".dequantize()"
        )
    dtype = dtype_of(tensor.dtype, f"'{name}'")
    tensor = tensor.cpu().resolve_neg().resolve_conj()
    if dtype is types.bf16:
        return tensor.view(torch.int16).numpy().view(dtype.numpy)
    return tensor.numpy()
