"""Floats of 8, 6 and 4 bits: conversion between their bits in memory and float32 in registers, by vector
arithmetic.

Format names follow MLIR: ``E4M3`` gives the bits of exponent and mantissa; ``FN`` has no infinities, ``UZ``
no negative zero (its bits encode NaN), ``U`` no sign, ``B11`` an exponent bias of 11. Rounding is to nearest,
ties to even. Numbers out of range become infinity, or NaN in formats without infinity, or the largest number
in float6 and float4, which have neither (where NaN becomes zero), as in `ml_dtypes`. Powers of two (``E8M0``)
are handled separately.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ...ir.types import DType, boolean, f32, i32
from .emitter import Emitter
from .values import number, register


@dataclass(frozen=True)
class MinifloatFormat:
    """A format's parameters. `largest`, `infinity` and `nan` are bit patterns without the sign bit.

    They encode the largest finite number, the result of overflow, and NaN.
    """

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
def format_of(dtype: DType) -> MinifloatFormat:
    """The format of a signed float of 8, 6 or 4 bits."""
    match = re.fullmatch(r"f(\d)E(\d)M(\d)(?:B(\d+))?(FN)?(UZ)?", dtype.name)
    assert match is not None
    bits, exponent, mantissa = (int(match[k]) for k in (1, 2, 3))
    unsigned_zero = match[6] is not None
    bias = int(match[4]) if match[4] else (1 << (exponent - 1)) - 1 + unsigned_zero
    top = (1 << (bits - 1)) - 1
    if unsigned_zero:
        codes = top, top + 1, top + 1
    elif match[5] is None:
        infinity = top >> mantissa << mantissa
        codes = infinity - 1, infinity, infinity | 1 << (mantissa - 1)
    elif bits == 8:
        codes = top - 1, top, top
    else:
        codes = top, top, top + 1
    return MinifloatFormat(bits, exponent, mantissa, bias, *codes, unsigned_zero)


def decode(e: Emitter, code: str, dtype: DType, lanes: int) -> str:
    """The float32 value of a bit pattern, given as i32.

    After shifting, the exponent is off by a constant; a multiplication corrects it, for subnormal numbers
    too.
    """
    if dtype.name == "f8E8M0FNU":
        return _decode_exponent(e, code, lanes)
    f = format_of(dtype)
    kind, integer, mask = register(f32, lanes), register(i32, lanes), register(boolean, lanes)
    magnitude = e.op(f"and {integer} {code}, {number(f.sign - 1, i32, lanes)}")
    placed = e.op(f"shl {integer} {magnitude}, {number(23 - f.mantissa, i32, lanes)}")
    x = e.op(
        f"fmul {kind} {e.op(f'bitcast {integer} {placed} to {kind}')}, "
        f"{number(2.0 ** (127 - f.bias), f32, lanes)}"
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
    """The bit pattern, as i32, of the float32 with the given bits.

    Normal numbers are rounded as integers; small numbers are aligned by adding a constant.
    """
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
    aligned = 24 - f.bias - f.mantissa  # Its last bit has the weight of the smallest subnormal number.
    small = e.op(f"bitcast {integer} {magnitude} to {kind}")
    small = e.op(f"fadd {kind} {small}, {number(2.0**aligned, f32, lanes)}")
    small = e.op(
        f"sub {integer} {e.op(f'bitcast {kind} {small} to {integer}')}, "
        f"{number((127 + aligned) << 23, i32, lanes)}"
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
    """The float32 bits of a power of two.

    Its bit pattern is a float32 exponent, except for the smallest one, which is a subnormal float32.
    """
    kind, integer, mask = register(f32, lanes), register(i32, lanes), register(boolean, lanes)
    bits = e.op(f"shl {integer} {code}, {number(23, i32, lanes)}")
    for special, known in ((0, 0x00400000), (0xFF, 0x7FC00000)):
        is_special = e.op(f"icmp eq {integer} {code}, {number(special, i32, lanes)}")
        bits = e.op(f"select {mask} {is_special}, {integer} {number(known, i32, lanes)}, {integer} {bits}")
    return e.op(f"bitcast {integer} {bits} to {kind}")


def _encode_exponent(e: Emitter, bits: str, lanes: int) -> str:
    """The bit pattern of the nearest power of two.

    The midpoint between two powers of two rounds up, also between the smallest two. Numbers that are not
    positive have no bit pattern.
    """
    integer, mask = register(i32, lanes), register(boolean, lanes)
    is_normal = e.op(f"icmp uge {integer} {bits}, {number(0x00800000, i32, lanes)}")
    half = f"{integer} {number(0x00400000, i32, lanes)}, {integer} {number(0x003FFFFF, i32, lanes)}"
    code = e.op(f"add {integer} {bits}, {e.op(f'select {mask} {is_normal}, {half}')}")
    code = e.op(f"lshr {integer} {code}, {number(23, i32, lanes)}")
    below = e.op(f"add {integer} {bits}, {number(-1, i32, lanes)}")
    above_zero = e.op(f"icmp ult {integer} {below}, {number(0x7F800000, i32, lanes)}")
    return e.op(f"select {mask} {above_zero}, {integer} {code}, {integer} {number(0xFF, i32, lanes)}")


__all__ = ["decode", "encode"]
