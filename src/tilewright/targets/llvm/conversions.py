"""Conversions between element types, and between registers and memory.

Floats narrower than float32 are float32 in registers; integers narrower than a byte are bytes, sign- or
zero-extended. Rounding is to nearest, ties to even. The bfloat16 conversion instruction (AVX512-BF16), like
the bfloat16 multiplication, treats subnormal numbers (below 1.2e-38) as zero; values that are known to be
bfloat16 numbers are stored without it and keep every bit.
"""

from __future__ import annotations

from ...ir.types import DType, bf16, boolean, f16, f32, f64, i8, i32
from . import minifloats
from .emitter import Emitter
from .isa import Isa
from .values import KernelContext, number, register, storage, width


def cast(g: KernelContext, x: str, source: DType, target: DType, lanes: int) -> str:
    """``scalar.cast`` between registers."""
    old, new = register(source, lanes), register(target, lanes)
    e = g.e
    if source is target:
        return x
    if target is boolean:
        return e.op(f"{'fcmp une' if source.is_float else 'icmp ne'} {old} {x}, {number(0, source, lanes)}")
    if target.is_float:
        if source.is_float:
            if old != new:
                x = e.op(f"{'fptrunc' if source is f64 else 'fpext'} {old} {x} to {new}")
        else:
            x = e.op(f"{'sitofp' if source.kind == 'int' else 'uitofp'} {old} {x} to {new}")
        return from_storage(g, to_storage(g, x, target, lanes), target, lanes) if target.bits < 32 else x
    if source.is_float:
        return _to_integer(g, x, source, target, lanes)
    if width(target) < width(source):
        x = e.op(f"trunc {old} {x} to {new}")
    elif width(target) > width(source):
        x = e.op(f"{'sext' if source.kind == 'int' else 'zext'} {old} {x} to {new}")
    return _extended(e, x, target, lanes) if source is not boolean else x


def _extended(e: Emitter, x: str, dtype: DType, lanes: int) -> str:
    """A byte whose low bits hold an integer of `dtype`, sign- or zero-extended as in a register."""
    if not dtype.is_sub_byte:
        return x
    kind, rest = register(dtype, lanes), number(8 - dtype.bits, i8, lanes)
    if dtype.kind == "uint":
        return e.op(f"and {kind} {x}, {number((1 << dtype.bits) - 1, dtype, lanes)}")
    return e.op(f"ashr {kind} {e.op(f'shl {kind} {x}, {rest}')}, {rest}")


def _to_integer(g: KernelContext, x: str, source: DType, target: DType, lanes: int) -> str:
    """A float truncated to an integer and clamped to the type's range; NaN becomes 0.

    LLVM's saturating conversion works lane by lane.
    """
    e, old, mask = g.e, register(source, lanes), register(boolean, lanes)
    signed = target.kind == "int"
    if target.bits < 32:
        return _to_small_integer(g, x, source, target, lanes)
    low = -(2.0 ** (target.bits - 1)) if signed else 0.0
    # This bound is exact in floating point; the largest integer need not be.
    top = 2.0 ** (target.bits - signed)
    is_low = e.op(f"fcmp ole {old} {x}, {number(low, source, lanes)}")
    is_high = e.op(f"fcmp oge {old} {x}, {number(top, source, lanes)}")
    is_number = e.op(f"fcmp ord {old} {x}, {x}")
    outside = e.op(f"or {mask} {is_low}, {is_high}")
    inside = e.op(f"and {mask} {is_number}, {e.op(f'xor {mask} {outside}, {number(True, boolean, lanes)}')}")
    new = register(target, lanes)
    x = e.op(f"select {mask} {inside}, {old} {x}, {old} {number(0, source, lanes)}")
    x = e.op(f"{'fptosi' if signed else 'fptoui'} {old} {x} to {new}")
    for flag, end in ((is_low, int(low)), (is_high, int(top) - 1)):
        x = e.op(f"select {mask} {flag}, {new} {number(end, target, lanes)}, {new} {x}")
    return x


def _to_small_integer(g: KernelContext, x: str, source: DType, target: DType, lanes: int) -> str:
    """`_to_integer` for a type whose bounds are exact floating-point numbers: clamped before the
    conversion.
    """
    e, old, mask, wide = g.e, register(source, lanes), register(boolean, lanes), register(i32, lanes)
    signed = target.kind == "int"
    low, high = (
        (-(1 << (target.bits - 1)), (1 << (target.bits - 1)) - 1) if signed else (0, (1 << target.bits) - 1)
    )
    y = x
    # NaN becomes the lower bound, which is 0 for unsigned types.
    for test, end in (("ogt", low), ("olt", high)):
        limit = number(float(end), source if source is f64 else f32, lanes)  # in the register's type
        y = e.op(f"select {mask} {e.op(f'fcmp {test} {old} {y}, {limit}')}, {old} {y}, {old} {limit}")
    if signed:
        y = e.op(
            f"select {mask} {e.op(f'fcmp ord {old} {x}, {x}')}, {old} {y}, {old} {number(0, source, lanes)}"
        )
    return e.op(f"trunc {wide} {e.op(f'fptosi {old} {y} to {wide}')} to {register(target, lanes)}")


def bitcast(g: KernelContext, x: str, source: DType, target: DType, lanes: int, exact: bool = False) -> str:
    """``scalar.bitcast`` between registers; `exact` as in `to_storage`."""
    narrow = [dtype for dtype in (source, target) if dtype.is_float and dtype.bits < 32]
    if source in narrow:
        x = to_storage(g, x, source, lanes, exact)
    old = storage(source, lanes, g.isa.half) if source in narrow else register(source, lanes)
    new = storage(target, lanes, g.isa.half) if target in narrow else register(target, lanes)
    x = x if old == new else g.e.op(f"bitcast {old} {x} to {new}")
    return from_storage(g, x, target, lanes) if target in narrow else _extended(g.e, x, target, lanes)


def from_storage(g: KernelContext, x: str, dtype: DType, lanes: int) -> str:
    """The register value of an element in its memory format."""
    return loaded(g.e, g.isa, x, dtype, lanes)


def loaded(e: Emitter, isa: Isa, x: str, dtype: DType, lanes: int, finite: bool = False) -> str:
    """`from_storage` for functions that are not kernels. `finite`: no element is infinite or NaN."""
    stored, kind = storage(dtype, lanes, isa.half), register(dtype, lanes)
    if stored == kind:
        return _extended(e, x, dtype, lanes)
    if dtype is boolean:
        return e.op(f"icmp ne {stored} {x}, {'0' if lanes == 1 else 'zeroinitializer'}")
    if dtype is f16 and isa.half:
        return e.op(f"fpext {stored} {x} to {kind}")
    integer = "i32" if lanes == 1 else f"<{lanes} x i32>"
    if dtype is f16 and finite:
        return _finite_half_to_float(e, e.op(f"sext {stored} {x} to {integer}"), integer, kind, lanes)
    wide = e.op(f"zext {stored} {x} to {integer}")
    if dtype.bits <= 8:
        return minifloats.decode(e, wide, dtype, lanes)
    if dtype is bf16:
        return e.op(f"bitcast {integer} {e.op(f'shl {integer} {wide}, {_int(16, lanes)}')} to {kind}")
    return _half_to_float(e, wide, integer, kind, lanes)


def to_storage(g: KernelContext, x: str, dtype: DType, lanes: int, exact: bool = False) -> str:
    """A register value in its memory format, rounded to nearest even.

    `exact` states that the value is a number of the target type already.
    """
    stored, kind = storage(dtype, lanes, g.isa.half), register(dtype, lanes)
    e = g.e
    if stored == kind:
        return x
    if dtype is boolean:
        return e.op(f"zext {kind} {x} to {stored}")
    if dtype is f16 and g.isa.half:
        return e.op(f"fptrunc {kind} {x} to {stored}")
    integer = "i32" if lanes == 1 else f"<{lanes} x i32>"
    bits = e.op(f"bitcast {kind} {x} to {integer}")
    if dtype is bf16 and exact:
        rounded = e.op(f"lshr {integer} {bits}, {_int(16, lanes)}")
    elif dtype is bf16 and g.isa.bf16:
        narrow = "bfloat" if lanes == 1 else f"<{lanes} x bfloat>"
        return e.op(f"bitcast {narrow} {e.op(f'fptrunc {kind} {x} to {narrow}')} to {stored}")
    elif dtype is bf16:
        high = e.op(f"lshr {integer} {bits}, {_int(16, lanes)}")
        odd = e.op(f"and {integer} {high}, {_int(1, lanes)}")
        rounded = e.op(f"add {integer} {e.op(f'add {integer} {bits}, {_int(0x7FFF, lanes)}')}, {odd}")
        rounded = e.op(f"lshr {integer} {rounded}, {_int(16, lanes)}")
        nan = e.op(f"fcmp uno {kind} {x}, {number(0, dtype, lanes)}")
        quiet = e.op(f"or {integer} {high}, {_int(0x40, lanes)}")
        rounded = e.op(f"select {register(boolean, lanes)} {nan}, {integer} {quiet}, {integer} {rounded}")
    elif dtype.bits <= 8:
        rounded = minifloats.encode(e, bits, dtype, lanes)
    else:
        rounded = _float_to_half(g, bits, integer, kind, lanes)
    return e.op(f"trunc {integer} {rounded} to {stored}")


def _int(value: int, lanes: int) -> str:
    return str(value) if lanes == 1 else f"splat (i32 {value})"


def _half_to_float(e: Emitter, wide: str, integer: str, kind: str, lanes: int) -> str:
    """Convert float16 bits to float32 by a multiplication that rebases the exponent; subnormal numbers are
    exact too.
    """
    mask = register(boolean, lanes)
    magnitude = e.op(
        f"shl {integer} {e.op(f'and {integer} {wide}, {_int(0x7FFF, lanes)}')}, {_int(13, lanes)}"
    )
    scaled = e.op(
        f"fmul {kind} {e.op(f'bitcast {integer} {magnitude} to {kind}')}, {_float(2.0**112, lanes)}"
    )
    special = e.op(f"fcmp oge {kind} {scaled}, {_float(65536.0, lanes)}")
    bits = e.op(f"bitcast {kind} {scaled} to {integer}")
    bits = e.op(
        f"select {mask} {special}, {integer} {e.op(f'or {integer} {magnitude}, {_int(0x7F800000, lanes)}')}, "
        f"{integer} {bits}"
    )
    sign = e.op(f"shl {integer} {e.op(f'and {integer} {wide}, {_int(0x8000, lanes)}')}, {_int(16, lanes)}")
    return e.op(f"bitcast {integer} {e.op(f'or {integer} {bits}, {sign}')} to {kind}")


def _finite_half_to_float(e: Emitter, wide: str, integer: str, kind: str, lanes: int) -> str:
    """`_half_to_float` of sign-extended bits of finite numbers: the sign's copies are removed."""
    shifted = e.op(f"shl {integer} {wide}, {_int(13, lanes)}")
    bits = e.op(f"and {integer} {shifted}, {_int(0x8FFFE000 - 2**32, lanes)}")
    return e.op(f"fmul {kind} {e.op(f'bitcast {integer} {bits} to {kind}')}, {_float(2.0**112, lanes)}")


def _float(value: float, lanes: int) -> str:
    return number(value, f32, lanes)


def _float_to_half(g: KernelContext, bits: str, integer: str, kind: str, lanes: int) -> str:
    """Convert float32 bits to float16 bits, rounded to nearest even.

    Normal numbers are rounded as integers; small numbers are aligned by adding 0.5. Source: F. Giesen,
    "float_to_half_fast3_rtne".
    """
    e, mask = g.e, register(boolean, lanes)
    magnitude = e.op(f"and {integer} {bits}, {_int(0x7FFFFFFF, lanes)}")
    odd = e.op(f"and {integer} {e.op(f'lshr {integer} {magnitude}, {_int(13, lanes)}')}, {_int(1, lanes)}")
    normal = e.op(f"add {integer} {magnitude}, {_int(((15 - 127) << 23) + 0xFFF, lanes)}")
    normal = e.op(f"lshr {integer} {e.op(f'add {integer} {normal}, {odd}')}, {_int(13, lanes)}")
    small = e.op(f"fadd {kind} {e.op(f'bitcast {integer} {magnitude} to {kind}')}, {_float(0.5, lanes)}")
    small = e.op(f"sub {integer} {e.op(f'bitcast {kind} {small} to {integer}')}, {_int(126 << 23, lanes)}")
    is_small = e.op(f"icmp ult {integer} {magnitude}, {_int(113 << 23, lanes)}")
    result = e.op(f"select {mask} {is_small}, {integer} {small}, {integer} {normal}")
    is_nan = e.op(f"icmp ugt {integer} {magnitude}, {_int(255 << 23, lanes)}")
    infinite = e.op(
        f"select {mask} {is_nan}, {integer} {_int(0x7E00, lanes)}, {integer} {_int(0x7C00, lanes)}"
    )
    is_big = e.op(f"icmp uge {integer} {magnitude}, {_int((127 + 16) << 23, lanes)}")
    result = e.op(f"select {mask} {is_big}, {integer} {infinite}, {integer} {result}")
    sign = e.op(f"and {integer} {e.op(f'lshr {integer} {bits}, {_int(16, lanes)}')}, {_int(0x8000, lanes)}")
    return e.op(f"or {integer} {result}, {sign}")


__all__ = ["bitcast", "cast", "from_storage", "loaded", "to_storage"]
