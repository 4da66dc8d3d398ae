"""Element types: how operands of several types are promoted.

- Python numbers, symbolic sizes, and `np.float64` scalars (which are Python floats) are *weak*: they take the
  tensor's type. Only a number of a higher kind changes it: an integer makes bools int64, a float makes bools
  and integers float32. Other NumPy scalars count as tensors.
- A floating-point tensor keeps its type beside integers and bools. Two floating-point types promote to the
  wider (float32 for float16 with bfloat16), two integer types as in NumPy.
- A function that needs floating point (true division, `sqrt`, `mean`, ...) converts integers to float32.
"""

from __future__ import annotations

from typing import TypeAlias, TypeGuard

import numpy as np
from numpy import typing as npt

from ...errors import ShapeError
from ...ir.symbolic import Expr
from ...ir.types import DType, boolean, f32, i64

DTypeLike: TypeAlias = npt.DTypeLike | DType
"""An element type: a NumPy dtype or its name, ``bool``, ``int`` (int64) or ``float`` (float32)."""
Weak: TypeAlias = bool | int | float | Expr
"""A number that takes the element type of the tensors it is combined with."""

_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2}


def dtype_of(dtype: DTypeLike) -> DType:
    """Return the element type called `dtype`.

    Raises:
        TypeError: There is no such type, or tensors cannot have it.
    """
    if isinstance(dtype, DType):
        return dtype
    plain = {bool: boolean, int: i64, float: f32}.get(dtype) if isinstance(dtype, type) else None
    if plain is not None:
        return plain
    try:
        return DType.named(dtype) if isinstance(dtype, str) else DType.of(dtype)
    except (ValueError, TypeError) as error:
        raise TypeError(str(error)) from None


def is_weak(x: object) -> TypeGuard[Weak]:
    """Return whether `x` is a number, which takes the element type of the tensors it is combined with."""
    return isinstance(x, (bool, int, float, Expr))


def weak_dtype(x: Weak) -> DType:
    """Return the element type of a number that is combined with no tensor."""
    if isinstance(x, bool):
        return boolean
    return i64 if isinstance(x, (int, Expr)) else f32


def promote(a: DType, b: DType) -> DType:
    """Return the common element type of two tensors.

    Raises:
        ShapeError: No integer type holds both, as for int64 and uint64.
    """
    if a is b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.is_float:
        return f32 if a.bits == b.bits else max(a, b, key=lambda d: d.bits)
    common = np.promote_types(a.numpy, b.numpy)
    if common.kind == "f":
        raise ShapeError(f"no integer type holds both {a.label} and {b.label}: convert one with .astype")
    return DType.of(common)


def promote_weak(dtype: DType, number: Weak) -> DType:
    """Return the common element type of tensors of `dtype` and a number."""
    weak = weak_dtype(number)
    return weak if _RANK[weak.kind] > _RANK[dtype.kind] else dtype


def inexact(dtype: DType) -> DType:
    """Return `dtype` if it is floating point, else float32."""
    return dtype if dtype.is_float else f32


__all__ = ["DTypeLike", "Weak", "dtype_of", "inexact", "is_weak", "promote", "promote_weak", "weak_dtype"]
