"""Which data type an operator computes in.

- Numbers written in Python, and `np.float64` scalars, which are Python floats, are *weak*: they take the tensor's type. Only a number of
  a higher kind changes it: an integer makes int64 of bools, a float makes float32 of bools and integers. Other NumPy scalars count as tensors.
- A floating-point tensor keeps its type against integers and bools; of two floating-point types the wider is taken (float32 for
  float16 with bfloat16); of two integer types the one that NumPy takes.
- Where floating point is needed and an integer is given (true division, `sqrt`, `mean`, ...), the result is float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ShapeError
from ...ir.symbolic import Expr
from ...ir.types import DType, boolean, f32, i64

_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2}


def dtype_of(dtype: Any) -> DType:
    """The element type called `dtype`: a NumPy dtype or its name, ``bool``, ``int`` (int64) or ``float`` (float32).

    Raises:
        TypeError: no such type, or one that tensors cannot have.
    """
    if isinstance(dtype, DType):
        return dtype
    plain = {bool: boolean, int: i64, float: f32}.get(dtype) if isinstance(dtype, type) else None
    if plain is not None:
        return plain
    try:
        return DType.named(dtype) if isinstance(dtype, str) else DType.of(dtype)
    except ValueError as error:
        raise TypeError(str(error)) from None


def is_weak(x: Any) -> bool:
    """Whether `x` is a number, which takes the type of the tensors it meets."""
    return isinstance(x, (bool, int, float, Expr))


def weak_dtype(x: Any) -> DType:
    """The type of a number that meets no tensor."""
    if isinstance(x, bool):
        return boolean
    return i64 if isinstance(x, (int, Expr)) else f32


def promote(a: DType, b: DType) -> DType:
    """The type that two tensors meet in.

    Raises:
        ShapeError: 64-bit integers with and without a sign, which no integer type holds.
    """
    if a is b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.is_float:
        return f32 if a.bits == b.bits else max(a, b, key=lambda d: d.bits)
    found = np.promote_types(a.numpy, b.numpy)
    if found.kind == "f":
        raise ShapeError(f"no integer type holds both {a.label} and {b.label}: convert one with .astype")
    return DType.of(found)


def promote_weak(dtype: DType, number: Any) -> DType:
    """The type that tensors of `dtype` and a number meet in."""
    weak = weak_dtype(number)
    return weak if _RANK[weak.kind] > _RANK[dtype.kind] else dtype


def inexact(dtype: DType) -> DType:
    """The floating-point type for a function that needs one."""
    return dtype if dtype.is_float else f32


__all__ = ["dtype_of", "inexact", "is_weak", "promote", "promote_weak", "weak_dtype"]
