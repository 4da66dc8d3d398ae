"""Quantized element types of MLIR tensors, such as ``!quant.uniform<i8:f32, 0.1:-30>``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.types import DType
from ..unsupported import Unsupported
from .reading import dtype_of, element_dtype

if TYPE_CHECKING:
    from jaxlib.mlir import ir as mlir


@dataclass(frozen=True)
class Quantization:
    """A quantized number is ``scale * (stored - zero_point)``; the parameters broadcast with the tensor."""

    storage: DType
    limits: tuple[int, int]
    """The smallest and the largest stored integer."""
    expressed: DType
    scales: np.ndarray[Any, Any]
    zero_points: np.ndarray[Any, Any]


def is_quantized(type: mlir.Type) -> bool:
    """Whether an MLIR type is a tensor of quantized numbers."""
    return str(getattr(type, "element_type", "")).startswith("!quant.")


def quantization(type: mlir.RankedTensorType) -> Quantization:
    """Return the quantization of an MLIR tensor type: per tensor, or per index of one axis.

    Raises:
        CompileError: its expressed type is not supported.
        Unsupported: it is quantized in another way.
    """
    text = str(type.element_type)
    match = re.fullmatch(r"!quant\.uniform<\w+(?:<(-?\d+):(-?\d+)>)?:(\w+)(?::(\d+))?, (.*)>", text)
    if match is None:
        raise Unsupported(f"numbers of type {text}")
    low, high, expressed, axis, listed = match.groups()
    storage, dtype = dtype_of(type), element_dtype(expressed)
    smallest, largest = (int(low), int(high)) if low is not None else storage.limits
    pairs = re.findall(r"([-+.\deE]+)(?::(-?\d+))?", listed)
    shape = [-1 if d == int(axis) else 1 for d in range(type.rank)] if axis is not None else ()
    scales = np.array([float(scale) for scale, _ in pairs], dtype.numpy).reshape(shape)
    zero_points = np.array([int(zero or 0) for _, zero in pairs]).reshape(shape)
    return Quantization(storage, (smallest, largest), dtype, scales, zero_points)


__all__ = ["Quantization", "is_quantized", "quantization"]
