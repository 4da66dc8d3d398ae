"""torch tensors and dtypes as NumPy arrays and IR dtypes. Arrays are views of the torch storages, never copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import CompileError
from ...ir import types
from ...ir.types import DType

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


def is_known(dtype: Any) -> bool:
    """Whether `dtype_of` has an IR dtype for a ``torch.dtype``."""
    return str(dtype).removeprefix("torch.") in _NAMES


def dtype_of(dtype: Any, where: str = "") -> DType:
    """The IR dtype of a ``torch.dtype``.

    Raises:
        CompileError: there is none (complex, quantized, float8); `where` says whose it is.
    """
    name = str(dtype).removeprefix("torch.")
    found = _NAMES.get(name)
    if found is None:
        raise CompileError(
            f"{where or 'a tensor'} has the element type {name}, which is not supported (known: {', '.join(_NAMES)})"
        )
    return found


def part_dtype_of(dtype: Any, where: str = "") -> DType:
    """As `dtype_of`; for complex numbers the IR dtype of their parts."""
    return dtype_of(dtype.to_real() if dtype.is_complex else dtype, where)


def array_of(tensor: Any, name: str) -> np.ndarray[Any, Any]:
    """The data of a torch tensor, sharing its memory where it lies on the CPU.

    Raises:
        CompileError: the tensor has no data (meta or fake) or no plain strided layout.
    """
    import torch

    tensor = tensor.detach()
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        raise CompileError(f"'{name}' has no data (device {tensor.device}); load the weights before compiling")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise CompileError(
            f"'{name}' is not a plain dense tensor ({tensor.layout}); convert it with .to_dense() or .dequantize()"
        )
    dtype = dtype_of(tensor.dtype, f"'{name}'")
    tensor = tensor.cpu().resolve_neg().resolve_conj()
    if dtype is types.bf16:
        return tensor.view(torch.int16).numpy().view(dtype.numpy)  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]
