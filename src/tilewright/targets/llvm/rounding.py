"""Conversions from float32 to small integers that round to nearest even, as one instruction of Arm's and of
Hexagon.

Quantized models compute ``u8(round(x) + zero)``. Cortex-M4 has no instruction that rounds to a whole float,
and ``vcvtr`` converts to an integer in the mode of rounding, which is to nearest even; so does Hexagon's
``convert_sf2w``, which converts NaN to -1. Saturation at 32 bits, at the addition, and at 8 bits gives what a
clamp of floats gives.
"""

from __future__ import annotations

from typing import Any

from ...dialects import scalar
from ...ir.core import Operation, Value
from ...ir.types import DType, boolean, f32
from .isa import Isa
from .values import KernelContext, register

LARGEST_OFFSET = 1 << 15
"""The largest zero point; the sum of a number beyond 32 bits and a zero point is beyond small types, too."""


def rounds_to_integers(isa: Isa) -> bool:
    """Whether an instruction converts float32 to integers and rounds to nearest even."""
    return isa.has("dsp") or _is_hexagon(isa)


def _is_hexagon(isa: Isa) -> bool:
    return isa.triple.startswith("hexagon")


def rounded_operand(op: scalar.Cast) -> tuple[Value, int] | None:
    """``x`` and ``zero`` of ``cast(round(x) + zero)`` to an integer of 8 or 16 bits; None for others.

    A maximum with zero is looked through where the type has no negative numbers.
    """
    dtype, zero, value = op.dtype, 0, op.x
    if dtype.is_float or dtype.bits not in (8, 16) or value.type is not f32:
        return None
    added = value.defining_op
    if added is not None and added.name == "scalar.add" and (constant := _constant(added)) is not None:
        offset = float(constant)
        if not offset.is_integer() or abs(offset) > LARGEST_OFFSET:
            return None
        zero, value = int(offset), added.operands[0]
    rounded = value.defining_op
    if rounded is None or rounded.name != "scalar.round":
        return None
    (value,) = rounded.operands
    least = value.defining_op
    unsigned = dtype.kind == "uint" and zero == 0
    if unsigned and least is not None and least.name == "scalar.max" and _constant(least) == 0:
        value = least.operands[0]
    return value, zero


def _constant(op: Operation) -> Any:
    """The second operand of an operation, if it is a constant; otherwise None."""
    maker = op.operands[1].defining_op
    return maker.value if isinstance(maker, scalar.Constant) else None


def to_rounded_integer(g: KernelContext, x: str, zero: int, dtype: DType, lanes: int) -> str:
    """``cast(round(x) + zero)`` of float32 in `lanes` lanes; NaN becomes 0, as in any cast."""
    e, wide = g.e, f"<{lanes} x i32>" if lanes > 1 else "i32"
    low, high = dtype.limits
    if lanes == 4 and g.isa.has("mve.fp"):
        y = e.op(f"call {wide} @llvm.arm.mve.vcvtn.v4i32.v4f32(i32 0, <4 x float> {x})")
    elif lanes == 1:
        y = _one(g, x)
    else:
        y = "poison"
        for k in range(lanes):
            one = _one(g, e.op(f"extractelement <{lanes} x float> {x}, i64 {k}"))
            y = e.op(f"insertelement {wide} {y}, i32 {one}, i64 {k}")
    suffix = f"v{lanes}i32" if lanes > 1 else "i32"

    def call(name: str, a: str, limit: int) -> str:
        value = str(limit) if lanes == 1 else f"splat (i32 {limit})"
        return e.op(f"call {wide} @llvm.{name}.{suffix}({wide} {a}, {wide} {value})")

    if zero or _is_hexagon(g.isa):
        # LLVM 22 takes an unordered comparison of MVE for its opposite: the bits are compared instead.
        def each(n: int) -> str:
            return str(n) if lanes == 1 else f"splat (i32 {n})"

        bits = e.op(f"bitcast {register(f32, lanes)} {x} to {wide}")
        size = e.op(f"and {wide} {bits}, {each(0x7FFFFFFF)}")
        nan = e.op(f"icmp ugt {wide} {size}, {each(0x7F800000)}")
        y = call("sadd.sat", y, zero)
        y = e.op(f"select {register(boolean, lanes)} {nan}, {wide} {each(0)}, {wide} {y}")
    y = call("smin", call("smax", y, low), high)
    return e.op(f"trunc {wide} {y} to {register(dtype, lanes)}")


def _one(g: KernelContext, x: str) -> str:
    if _is_hexagon(g.isa):
        return g.e.op(f"call i32 @llvm.hexagon.F2.conv.sf2w(float {x})")
    return g.e.op(f"bitcast float {g.e.op(f'call float @llvm.arm.vcvtr.f32(float {x})')} to i32")


__all__ = ["rounded_operand", "rounds_to_integers", "to_rounded_integer"]
