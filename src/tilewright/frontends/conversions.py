"""Conversion of floating point numbers to integers as PyTorch, NumPy and ONNX Runtime do it.

They leave it to the processor what becomes of a number that the integer type does not hold. Where x86 and all three agree, so does what is compiled: a
number is truncated toward zero, and of the whole number the lower bits are taken (``-1.5`` is 255 and ``300.0`` is 44 as uint8), for 8 and 16 bits
where int32 holds it, for uint32 where int64 does. What is beyond these, and beyond int32, int64 and uint64, is the nearest number of that type, and NaN is 0: so do
ARM processors; x86 takes the least number for both, with exceptions that depend on where in a tensor an element lies.
"""

from __future__ import annotations

from ..dialects import graph as g
from ..ir.core import Value
from ..ir.types import DType, i32, i64, u32

_KEEP_LIMITS = (*(g.elementwise.UNARY[name] for name in ("round", "floor", "ceil", "trunc")), g.Reshape, g.Transpose)
"""Operators whose results lie between whole numbers that their operands lie between."""


def conversion_steps(source: DType, wanted: DType, x: Value | None = None) -> tuple[DType, ...]:
    """The types that a tensor of `source` is converted to, one after the other, to become `wanted`: each conversion saturates from floats to integers and
    wraps around from integers to integers. `x`, if given, is the tensor: one that is limited to what `wanted` holds is converted at once."""
    if not (source.is_float and wanted.is_integer) or (x is not None and _is_limited(x, wanted)):
        return (wanted,)
    if wanted.bits <= 16:
        return (i32, wanted)
    return (i64, wanted) if wanted is u32 else (wanted,)


def _is_limited(x: Value, wanted: DType) -> bool:
    """Whether a clamp keeps `x` within the range of an integer type."""
    op = x.defining_op
    while isinstance(op, _KEEP_LIMITS):
        op = op.operands[0].defining_op
    if not isinstance(op, g.Clamp) or op.minimum is None or op.maximum is None:
        return False
    low, high = wanted.limits
    return bool(low <= op.minimum <= op.maximum <= high)


__all__ = ["conversion_steps"]
