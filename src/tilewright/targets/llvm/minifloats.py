"""Floats of 8, 6 and 4 bits in memory, float32 in registers: from the one to the other by integer arithmetic, in vectors.

A format is what its name says, in MLIR's terms: ``E4M3`` are bits of exponent and mantissa; ``FN`` has no infinities, ``UZ`` no negative zero
(its code is NaN), ``U`` no sign, ``B11`` that bias. Rounding is to nearest, ties to even; numbers too large become what `ml_dtypes` makes of them:
infinity, NaN where there is none, and in float6 and float4, which have neither, the largest number (and a NaN becomes zero). Powers of two (``E8M0``) are a format of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ...ir.types import DType, boolean, f32, i32
from .emitter import Emitter
from .values import number, register


@dataclass(frozen=True)
class Format:
    """`largest`, `infinity` and `nan` are codes without the sign: of the largest number, of what is larger, of what is no number."""

    bits: int
    exponent: int
    mantissa: int
    bias: int
    largest: int
    infinity: int
    nan: int
    unsigned_zero: bool

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)


@cache
def format_of(dtype: DType) -> Format:
    """The format of a signed float of 8, 6 or 4 bits."""
    found = re.fullmatch(r"f(\d)E(\d)M(\d)(?:B(\d+))?(FN)?(UZ)?", dtype.name)
    assert found is not None
    bits, exponent, mantissa = (int(found[k]) for k in (1, 2, 3))
    unsigned_zero = found[6] is not None
    bias = int(found[4]) if found[4] else (1 << (exponent - 1)) - 1 + unsigned_zero
    top = (1 << (bits - 1)) - 1
    if unsigned_zero:
        codes = top, top + 1, top + 1
    elif found[5] is None:
        infinity = top >> mantissa << mantissa
        codes = infinity - 1, infinity, infinity | 1 << (mantissa - 1)
    elif bits == 8:
        codes = top - 1, top, top
    else:
        codes = top, top, top + 1
    return Format(bits, exponent, mantissa, bias, *codes, unsigned_zero)


def decode(e: Emitter, code: str, dtype: DType, lanes: int) -> str:
    """The float32 that a code, as i32, stands for. Shifted into place its exponent is wrong by a constant, which a multiplication
    corrects; that makes subnormal numbers right too."""
    if dtype.name == "f8E8M0FNU":
        return _decode_exponent(e, code, lanes)
    f = format_of(dtype)
    kind, integer, mask = register(f32, lanes), register(i32, lanes), register(boolean, lanes)
    magnitude = e.op(f"and {integer} {code}, {number(f.sign - 1, i32, lanes)}")
    placed = e.op(f"shl {integer} {magnitude}, {number(23 - f.mantissa, i32, lanes)}")
    x = e.op(
        f"fmul {kind} {e.op(f'bitcast {integer} {placed} to {kind}')}, {number(2.0 ** (127 - f.bias), f32, lanes)}"
    )
    bits = e.op(f"bitcast {kind} {x} to {integer}")
    if f.bits == 8 and not f.unsigned_zero:
        special = e.op(f"icmp ugt {integer} {magnitude}, {number(f.largest, i32, lanes)}")
        no_number = e.op(f"or {integer} {placed}, {number(0x7F800000, i32, lanes)}")
        bits = e.op(f"select {mask} {special}, {integer} {no_number}, {integer} {bits}")
    sign = e.op(f"and {integer} {code}, {number(f.sign, i32, lanes)}")
    sign = e.op(f"shl {integer} {sign}, {number(32 - f.bits, i32, lanes)}")
    bits = e.op(f"or {integer} {bits}, {sign}")
    if f.unsigned_zero:
        special = e.op(f"icmp eq {integer} {code}, {number(f.nan, i32, lanes)}")
        bits = e.op(f"select {mask} {special}, {integer} {number(0x7FC00000, i32, lanes)}, {integer} {bits}")
    return e.op(f"bitcast {integer} {bits} to {kind}")


def encode(e: Emitter, bits: str, dtype: DType, lanes: int) -> str:
    """The code, as i32, of the float32 whose bits are given: normal numbers are rounded as integers, small ones by adding a number that
    aligns their bits."""
    if dtype.name == "f8E8M0FNU":
        return _encode_exponent(e, bits, lanes)
    f = format_of(dtype)
    kind, integer, mask = register(f32, lanes), register(i32, lanes), register(boolean, lanes)
    shift = 23 - f.mantissa
    magnitude = e.op(f"and {integer} {bits}, {number(0x7FFFFFFF, i32, lanes)}")
    odd = e.op(f"lshr {integer} {magnitude}, {number(shift, i32, lanes)}")
    odd = e.op(f"and {integer} {odd}, {number(1, i32, lanes)}")
    rebased = ((f.bias - 127) << 23) + (1 << (shift - 1)) - 1
    normal = e.op(f"add {integer} {e.op(f'add {integer} {magnitude}, {number(rebased, i32, lanes)}')}, {odd}")
    normal = e.op(f"lshr {integer} {normal}, {number(shift, i32, lanes)}")
    aligned = 24 - f.bias - f.mantissa  # its last bit is worth the least number
    small = e.op(f"bitcast {integer} {magnitude} to {kind}")
    small = e.op(f"fadd {kind} {small}, {number(2.0**aligned, f32, lanes)}")
    small = e.op(
        f"sub {integer} {e.op(f'bitcast {kind} {small} to {integer}')}, {number((127 + aligned) << 23, i32, lanes)}"
    )
    is_small = e.op(f"icmp ult {integer} {magnitude}, {number((128 - f.bias) << 23, i32, lanes)}")
    code = e.op(f"select {mask} {is_small}, {integer} {small}, {integer} {normal}")
    is_large = e.op(f"icmp ugt {integer} {code}, {number(f.largest, i32, lanes)}")
    code = e.op(f"select {mask} {is_large}, {integer} {number(f.infinity, i32, lanes)}, {integer} {code}")
    sign = e.op(f"lshr {integer} {bits}, {number(32 - f.bits, i32, lanes)}")
    sign = e.op(f"and {integer} {sign}, {number(f.sign, i32, lanes)}")
    signed = e.op(f"or {integer} {code}, {sign}")
    if f.unsigned_zero:
        is_zero = e.op(f"icmp eq {integer} {code}, {number(0, i32, lanes)}")
        signed = e.op(f"select {mask} {is_zero}, {integer} {code}, {integer} {signed}")
    is_nan = e.op(f"icmp ugt {integer} {magnitude}, {number(0x7F800000, i32, lanes)}")
    nan = number(f.nan, i32, lanes)
    if f.nan < f.sign:
        nan = e.op(f"or {integer} {sign}, {nan}")
    return e.op(f"select {mask} {is_nan}, {integer} {nan}, {integer} {signed}")


def _decode_exponent(e: Emitter, code: str, lanes: int) -> str:
    """Powers of two, whose codes are a float32's exponents but for the least, which is a subnormal float32."""
    kind, integer, mask = register(f32, lanes), register(i32, lanes), register(boolean, lanes)
    bits = e.op(f"shl {integer} {code}, {number(23, i32, lanes)}")
    for special, known in ((0, 0x00400000), (0xFF, 0x7FC00000)):
        found = e.op(f"icmp eq {integer} {code}, {number(special, i32, lanes)}")
        bits = e.op(f"select {mask} {found}, {integer} {number(known, i32, lanes)}, {integer} {bits}")
    return e.op(f"bitcast {integer} {bits} to {kind}")


def _encode_exponent(e: Emitter, bits: str, lanes: int) -> str:
    """The middle between two powers of two is rounded up, what lies between the least two too; what is not above zero has no code."""
    integer, mask = register(i32, lanes), register(boolean, lanes)
    is_normal = e.op(f"icmp uge {integer} {bits}, {number(0x00800000, i32, lanes)}")
    half = f"{integer} {number(0x00400000, i32, lanes)}, {integer} {number(0x003FFFFF, i32, lanes)}"
    code = e.op(f"add {integer} {bits}, {e.op(f'select {mask} {is_normal}, {half}')}")
    code = e.op(f"lshr {integer} {code}, {number(23, i32, lanes)}")
    below = e.op(f"add {integer} {bits}, {number(-1, i32, lanes)}")
    above_zero = e.op(f"icmp ult {integer} {below}, {number(0x7F800000, i32, lanes)}")
    return e.op(f"select {mask} {above_zero}, {integer} {code}, {integer} {number(0xFF, i32, lanes)}")


__all__ = ["decode", "encode"]
