"""Matrix instructions by their definition, in exact integers: what the simulator is compared with.

The arithmetic of NVIDIA's and AMD's units is the one that Xie et al. found on hardware ("MMA-Sim", arXiv
2511.10909): products and the addend are aligned to the greatest exponent, and digits below a fixed place
are cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, stored in the highest bits of `stored`."""

    name: str
    stored: type
    exponent_bits: int
    digits: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def shift(self) -> int:
        return np.dtype(self.stored).itemsize * 8 - 1 - self.exponent_bits - self.digits


F16 = Format("f16", np.uint16, 5, 10)
BF16 = Format("bf16", np.uint16, 8, 7)
TF32 = Format("tf32", np.uint32, 8, 10)
F32 = Format("f32", np.uint32, 8, 23)


@dataclass(frozen=True)
class Number:
    """digits · 2^(exponent - format.digits), or "nan", "inf", "-inf"."""

    digits: int
    exponent: int
    special: str = ""


def number(bits: int, form: Format) -> Number:
    """The number that bits of a format stand for."""
    bits >>= form.shift
    field = bits >> form.digits & ((1 << form.exponent_bits) - 1)
    low = bits & ((1 << form.digits) - 1)
    sign = -1 if bits >> (form.digits + form.exponent_bits) else 1
    if field == (1 << form.exponent_bits) - 1:
        return Number(0, 0, "nan" if low else "inf" if sign > 0 else "-inf")
    if field:
        return Number(sign * (low + (1 << form.digits)), field - form.bias)
    if low:
        return Number(sign * low, 1 - form.bias)
    return Number(0, -126)


def product_special(a: Number, b: Number) -> str:
    """ "", or what a product with a factor that is NaN or infinite is."""
    if not a.special and not b.special:
        return ""
    if "nan" in (a.special, b.special):
        return "nan"
    signs = [n.special == "-inf" if n.special else n.digits < 0 for n in (a, b)]
    if any(not n.special and n.digits == 0 for n in (a, b)):
        return "nan"
    return "-inf" if signs[0] != signs[1] else "inf"


def scaled(digits: int, power: int) -> int:
    """digits · 2^power, cut off towards zero."""
    size = abs(digits) << power if power >= 0 else abs(digits) >> -power
    return -size if digits < 0 else size


def encode(digits: int, exponent: int, form: Format, nearest: bool, signed_zero: bool = False) -> int:
    """The bits of digits · 2^exponent in a format, to the nearest (ties to even) or towards zero. A result
    that is rounded to zero is positive unless `signed_zero`.
    """
    size, least = abs(digits), 1 - form.bias - form.digits
    place = max(size.bit_length() - 1 - form.digits + exponent, least) if size else least
    # size · 2^exponent = kept · 2^place + rest
    cut = place - exponent
    kept = size << -cut if cut <= 0 else size >> cut
    if nearest and cut > 0:
        rest, half = size & ((1 << cut) - 1), 1 << (cut - 1)
        kept += rest > half or (rest == half and kept % 2 == 1)
    infinite = ((1 << form.exponent_bits) - 1) << form.digits
    result = min(kept + ((place - least) << form.digits), infinite)
    if not result and not signed_zero:
        return 0
    return (result | (digits < 0) << (form.digits + form.exponent_bits)) << form.shift


def special_bits(special: str, form: Format) -> int:
    """The bits of NaN (all ones but the sign) or an infinity."""
    sign = 1 << (form.digits + form.exponent_bits)
    infinite = ((1 << form.exponent_bits) - 1) << form.digits
    return {"nan": sign - 1, "inf": infinite, "-inf": sign | infinite}[special] << form.shift


def aligned_sum(terms: list[tuple[int, int]], bits: int) -> tuple[int, int]:
    """The sum of digits · 2^exponent terms given as (digits scaled to 2^-60, exponent), cut off `bits` digits
    behind the greatest exponent: (sum, its unit's power of two).
    """
    most = max(e for _, e in terms)
    return sum(scaled(d, bits + e - most - 60) for d, e in terms), most - bits


def fused_dot(a: list[int], b: list[int], c: int, factors: Format, result: Format, bits: int) -> int:
    """c + Σ a·b as a tensor core computes it in one step, as bits."""
    left, right = ([number(x, factors) for x in values] for values in (a, b))
    addend = number(c, result)
    specials = {product_special(x, y) for x, y in zip(left, right, strict=True)} | {addend.special}
    specials -= {""}
    if specials:
        return special_bits("nan" if len(specials) > 1 else specials.pop(), result)
    terms = [(addend.digits << (60 - result.digits), addend.exponent)]
    terms += [
        (x.digits * y.digits << (60 - 2 * factors.digits), x.exponent + y.exponent)
        for x, y in zip(left, right, strict=True)
    ]
    total, place = aligned_sum(terms, bits)
    return encode(total, place, result, nearest=result is F16)


def tensor_core(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, factors: Format, result: Format, capability: int
) -> np.ndarray:
    """a · b + c of a tensor core for matrices of bits."""
    depth = a.shape[1]
    half = 8 if np.dtype(factors.stored).itemsize == 2 else 4
    step, bits = (depth, 25) if capability >= 90 else (min(depth, half), 24)
    d = c.copy()
    for i, j in np.ndindex(*d.shape):
        total = int(c[i, j])
        for k in range(0, depth, step):
            total = fused_dot(
                a[i, k : k + step].tolist(), b[k : k + step, j].tolist(), total, factors, result, bits
            )
        d[i, j] = total
    return d


def cdna3_dot(a: list[int], b: list[int], c: int, factors: Format) -> int:
    """c + Σ a·b as a matrix core of CDNA3 computes it in one step, as bits of float32."""
    left, right = ([number(x, factors) for x in values] for values in (a, b))
    addend = number(c, F32)
    specials = {product_special(x, y) for x, y in zip(left, right, strict=True)} | {addend.special}
    products = [(x.digits * y.digits, x.exponent + y.exponent) for x, y in zip(left, right, strict=True)]
    if specials == {""}:  # products beyond float32 are infinite
        large = [d for d, e in products if abs(d) << max(e - 2 * factors.digits, 0) >= 1 << 128]
        specials |= {"-inf" if d < 0 else "inf" for d in large}
    specials -= {""}
    if specials:
        special = "nan" if len(specials) > 1 else specials.pop()
        return 0x7FC00000 if special == "nan" else special_bits(special, F32)
    total, place = aligned_sum([(d << (60 - 2 * factors.digits), e) for d, e in products], 24)
    common = max(place + 24, addend.exponent)
    unit = common - 31
    whole = _floor(total, place - unit) + (_floor(addend.digits, addend.exponent - 23 - unit - 7) << 7)
    return encode(whole, unit, F32, nearest=True, signed_zero=True)


def _floor(digits: int, power: int) -> int:
    return digits << power if power >= 0 else digits >> -power


def cdna3(a: np.ndarray, b: np.ndarray, c: np.ndarray, factors: Format) -> np.ndarray:
    """a · b + c of a matrix core of CDNA3 for matrices of bits."""
    d = c.copy()
    for i, j in np.ndindex(*d.shape):
        for k in range(0, a.shape[1], 8):
            d[i, j] = cdna3_dot(a[i, k : k + 8].tolist(), b[k : k + 8, j].tolist(), int(d[i, j]), factors)
    return d


def floats(bits: np.ndarray, form: Format) -> np.ndarray:
    """Bits of a format as float32."""
    if form is F16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16 if form is BF16 else bits).view(np.float32)


def cdna2(a: np.ndarray, b: np.ndarray, c: np.ndarray, factors: Format) -> np.ndarray:
    """a · b + c of a matrix core of CDNA2 for matrices of bits: sums of 4 products by pairs in float32;
    subnormal numbers are zeros.
    """

    def flushed(x: np.ndarray) -> np.ndarray:
        return np.where(abs(x) < np.float32(2.0**-126), x * np.float32(0), x)

    def normal(bits: np.ndarray, form: Format) -> np.ndarray:
        field = ((1 << form.exponent_bits) - 1) << form.digits
        return floats(np.where(bits & field, bits, 0).astype(bits.dtype), form)

    with np.errstate(all="ignore"):
        x, y, total = normal(a, factors), normal(b, factors), normal(c, F32)
        for k in range(0, a.shape[1], 4):
            part = [flushed(x[:, k + i, None] * y[None, k + i]) for i in range(4)]
            pairs = flushed(flushed(part[0] + part[1]) + flushed(part[2] + part[3]))
            total = flushed(total + pairs)
    return np.where(np.isnan(total), np.uint32(0x7FC00000), total.astype(np.float32).view(np.uint32))


def chained(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a · b + c in float32 with one fused multiply-add after the other: each sum is exact in longdouble, but
    for ties that the tests' tolerance allows.
    """
    total = c.astype(np.longdouble)
    for k in range(a.shape[1]):
        total = (total + a[:, k, None].astype(np.longdouble) * b[None, k]).astype(c.dtype)
        total = total.astype(np.longdouble)
    return total.astype(c.dtype)
