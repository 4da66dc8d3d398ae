"""Conversion of floating-point numbers to integers as in PyTorch, NumPy and ONNX Runtime.

These libraries leave the result to the processor if the integer type does not hold the number. Compiled code
agrees with all three on x86 where they agree: a number is truncated toward zero, and the integer's lower bits
are kept (``-1.5`` is 255 and ``300.0`` is 44 as uint8), for 8 and 16 bits if int32 holds the integer, for
uint32 if int64 does. A number beyond these, or beyond int32, int64 and uint64, becomes the nearest number of
that type, and NaN becomes 0, as on ARM processors; x86 gives the least number for both, with exceptions that
depend on an element's position in a tensor.
"""

from __future__ import annotations

from ..dialects import graph as g
from ..ir.core import Value
from ..ir.types import DType, i32, i64, u32

_KEEP_LIMITS = (
    *(g.elementwise.UNARY[name] for name in ("round", "floor", "ceil", "trunc")),
    g.Reshape,
    g.Transpose,
)
"""Operators whose results stay between integers that bound their operands."""


def conversion_steps(source: DType, wanted: DType, x: Value | None = None) -> tuple[DType, ...]:
    """Return the types that a tensor of `source` is converted to, in order, to become `wanted`.

    Each conversion saturates from floats to integers and wraps around from integers to integers. `x`, if
    given, is the tensor; if a clamp limits it to the range of `wanted`, one conversion suffices.
    """
    if not (source.is_float and wanted.is_integer) or (x is not None and _is_limited(x, wanted)):
        return (wanted,)
    if wanted.bits <= 16:
        return (i32, wanted)
    return (i64, wanted) if wanted is u32 else (wanted,)


def _is_limited(x: Value, wanted: DType) -> bool:
    """Return whether a clamp keeps `x` within the range of an integer type."""
    op = x.defining_op
    while isinstance(op, _KEEP_LIMITS):
        op = op.operands[0].defining_op
    if not isinstance(op, g.Clamp) or op.minimum is None or op.maximum is None:
        return False
    low, high = wanted.limits
    return bool(low <= op.minimum <= op.maximum <= high)


__all__ = ["conversion_steps"]
