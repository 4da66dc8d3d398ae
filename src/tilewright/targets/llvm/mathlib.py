"""Mathematical functions as LLVM IR text, on vectors of any width, without a C library.

Input: the name of a `scalar` function, the width and number of its operands, an `Isa`. Output: an internal,
always inlined LLVM function. All functions except `sin`, `cos` and `tan` are free of branches. Every lane is
correct at zeros, infinities and NaN, and on overflow.

float32: `exp`, `log`, `tanh`, `erf`, `sigmoid`, `sin`, `cos` (and `exp2`, `log2`, `expm1`, `log1p`) have
their own formulas, to about 2 units in the last place; the others are computed in float64 and rounded. `exp`
(and so `sigmoid`) flushes results below 1.7e-38 to zero, since subnormal numbers are slow and frequent in a
softmax. float64: to about 1e-13, mostly to 2e-16. Angles of `sin`, `cos` and `tan` may be of any size; a
vector with a large angle takes a slower path, which is the only branch.

Coefficients are minimax polynomials (Remez's algorithm) for the stated intervals, computed for this file with
45 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from .argument_reduction import MIDDLE_ANGLE, TABLE, large_quadrant, table
from .emitter import Emitter
from .isa import Isa
from .piecewise import Pieces, erf_pieces, evaluate, gelu_pieces, tanh_pieces
from .vector_math import NATIVE, Formula, Kind, Value

INF, NAN = math.inf, math.nan
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
LN2_HIGH_32, LN2_LOW_32 = (
    0.693145751953125,
    1.42860682030941723212e-6,
)  # Products of the first part and integers below 2**9 are exact.
# Products of the first part and integers below 2**20 are exact.
LN2_HIGH_64, LN2_LOW_64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
LOG2E_HIGH_64, LOG2E_LOW_64 = LOG2E, 2.0355273740931033e-17
HALF_PI_32 = (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512451616e-15)
ANGLE_32 = 65536.0
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)  # pi / 2 in three parts
PI_32, PI_LOW_32 = 3.1415927410125732, -8.742277657347586e-8
PI, PI_LOW = 3.141592653589793, 1.2246467991473532e-16
TAN_PI_8 = 0.4142135623730950

# (exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2
EXP_32 = (
    0.49999993412789285,
    0.16666520105582839,
    0.041668394134695182,
    0.008368780617613561,
    0.001381447160220097,
)
EXP_64 = (
    0.50000000000000107, 0.1666666666666641, 0.041666666666529199, 0.0083333333334956255,
    0.0013888888943920197,
    0.00019841269504751402, 2.4801492765139157e-5, 2.7557587359558697e-6, 2.7630377849647049e-7,
    2.4999959137809775e-8,
)  # fmt: skip
# (2**r - 1) / r for |r| <= 1/2
EXP2_32 = (
    0.69314720298375867, 0.24022647896467353, 0.055503321640032758, 0.0096184386512097733,
    0.0013399003261018223, 0.00015353244810092534,
)  # fmt: skip
# 2**r for 0 <= r < 1, relative error 7.5e-5
EXP2_ROUGH = (0.99992522, 0.69583354, 0.22606716, 0.07802452)
EXP2_64 = (
    0.69314718055994533, 0.24022650695910132, 0.055504108664820068, 0.0096181291075938457,
    0.0013333558146777409,
    0.00015403530457493874, 1.5252733491239943e-5, 1.3215435076608897e-6, 1.0178200035562729e-7,
    7.0738209330338997e-9,
    4.4347483509840557e-10,
)  # fmt: skip
# (log(1 + f) - f + f**2 / 2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2)
LOG_32 = (
    0.33333312605269544, -0.25000009601641587, 0.20002118627506986, -0.16667995779906307, 0.14219552537238568,
    -0.12405589600164546, 0.11888162885428051, -0.11675650702071909, 0.067466375562526174,
)  # fmt: skip
# (log(1 + r) - r) / r**2 for -1/32 <= r <= 1/16
LOG_TABLE_32 = (-0.5000000095158166, 0.3333444689989725, -0.25006670065587716, 0.18855230715448465)
# 2 (atanh(s) - s) / s**3 in s**2, |s| <= 0.1717
LOG_64 = (
    0.66666666666667354, 0.399999999994075, 0.28571428744139809, 0.22222198378548707, 0.18183575165208117,
    0.15313755701200282, 0.14799067198206017,
)  # fmt: skip
# (sin(r) / r - 1) / r**2, (cos(r) - 1 + r**2 / 2) / r**4 and (tan(r) / r - 1) / r**2 in r**2, |r| <= pi/4
SIN_32 = (-0.16666654873439891, 0.0083321735407263595, -0.00019516655491446739)
COS_32 = (0.041666646747936789, -0.0013887361457520439, 2.443773085285615e-5)
SIN_64 = (
    -0.16666666666666632, 0.008333333333322315, -0.00019841269829725125, 2.7557313662036599e-6,
    -2.5050753261960512e-8,
    1.5896504824330681e-10,
)  # fmt: skip
COS_64 = (
    0.041666666666666599, -0.0013888888888873991, 2.4801587289394992e-5, -2.7557314326049335e-7,
    2.0875719561116013e-9,
    -1.135944879663586e-11,
)  # fmt: skip
TAN_32 = (
    0.3333315430064557,
    0.13338867085456954,
    0.05340556098376976,
    0.024450938591453718,
    0.003085959367720247,
    0.00940583983849152,
)
# (f(x) / x - 1) / x**2 in x**2 for x up to 1 (atan), 0.55 (asin), 1 (sinh), 0.6 (tanh)
ATAN_32 = (
    -0.3333315273546737, 0.19993772819346833, -0.14211055165978417, 0.10666004017042559,
    -0.07552212797725269, 0.04321184136336662,
    -0.016367914896851615, 0.002920688672454411,
)  # fmt: skip
ASIN_32 = (
    0.16666942966259737,
    0.0748770882715599,
    0.04639711000437745,
    0.019764568791785522,
    0.049362291152926834,
)
SINH_32 = (0.16666716022464945, 0.008330283711806018, 0.00020372195011003025)
TANH_32 = (
    -0.33333299271992584,
    0.1333195823971944,
    -0.05378668325033748,
    0.02080538331093316,
    -0.005905866721119191,
)
# (atan(t) / t - 1) / t**2 in t**2, |t| <= tan(pi/8)
ATAN_64 = (
    -0.33333333333333196, 0.19999999999953241, -0.14285714280159253, 0.11111110781476134,
    -0.090908976972994969,
    0.076920590800422926, -0.066630904680957361, 0.058477855501648565, -0.050388152682410712,
    0.038051581245025441,
    -0.017892416419235125,
)  # fmt: skip
# erf(x) / x - 1 in x**2, |x| <= 1; log(erfc(x)) / x for 1 <= x <= 3.925, where erf(x) is 1 in float32
ERF_32 = (
    0.1283791657,
    -0.3761262582,
    0.1128358515,
    -0.02685381199,
    0.005188327729,
    -0.0008010193659,
    7.853860632e-5,
)
LOG_ERFC_32 = (-1.128475572, -0.6358464179, -0.1050966436, 0.02278606895, -0.00318311149, 0.0002101813042)
# log(erfc(a / sqrt(2))) / a, to 4e-8 below 3 and to fewer digits beyond, where erfc is small; and the a from
# which on exp of the product is 0 in `_bounded_exp_32`
LOG_TAIL_32 = (
    -0.7978846433, -0.3183089052, -0.03633936667, 0.004788002932, 3.504724733e-05, -0.000218427176,
    6.284013467e-05, -9.840246925e-06, 8.629036361e-07, -3.297821084e-08,
)  # fmt: skip
LOG_TAIL_END = 10.5765
# erf(x) / x in x**2, |x| <= 1.25; exp(x**2) erfc(x) in (x - 2) / (x + 2), 1.25 <= x <= 6
ERF_64 = (
    1.1283791670955126, -0.37612638903183727, 0.11283791670954088, -0.026866170644964008,
    0.0052239776240303434,
    -0.00085483269518193448, 0.00012055330619535837, -1.4925597291281727e-5, 1.6461280007839466e-6,
    -1.6356550268857386e-7,
    1.4733916949667163e-8, -1.1888109471034696e-9, 7.9367981071961944e-11, -3.261873056503397e-12,
)  # fmt: skip
ERFC_64 = (
    0.25539567631050574, -0.42718584741395836, 0.24165819424246589, -0.078978581015755264,
    0.0037328924043189971,
    0.0069974617420777075, -0.00084714324168627721, -0.00098197715485176454, 4.3555112812523947e-5,
    0.00017436402661704113,
    2.753525034265504e-5, -2.7618345729148232e-5, -1.4052749226518022e-5, 1.7045305401495981e-6,
    4.0113206699543701e-6,
)  # fmt: skip


def math_function(name: str, bits: int, lanes: int, isa: Isa) -> tuple[str, dict[str, str]]:
    """The LLVM function that computes ``scalar.<name>`` on `lanes` numbers (1: plain scalars) of 32 or 64
    bits.

    Returns:
        Its name and ``{name: definition}``. `pow` and `atan2` take two operands, all others one.

    Raises:
        KeyError: no such function; `FUNCTIONS`, `ROUGH` and, in float32, `ACTIVATIONS` list them.
    """
    kind = Kind("f", bits, lanes)
    symbol = f"tw.{name}.v{lanes}f{bits}"
    if bits == 32 and isa.avx512 and lanes != NATIVE.lanes and name in NATIVE_FORMULAS:
        return symbol, _in_native_lanes(name, symbol, lanes, isa)
    count = 2 if name in ("pow", "atan2") else 1
    parameters = ["%x", "%y"][:count]
    m = Formula(Emitter(), isa)
    operands = [Value(m, p, kind) for p in parameters]
    definitions = {}
    if bits == 32 and name in IN_FLOAT64:
        result = FUNCTIONS[name](m, *(x.resized(64) for x in operands)).resized(32)
    elif name in ANGLES:
        # Angles beyond the limit are rare: a vector that contains one costs a function call.
        slow = f"{symbol}.large"
        large = Formula(Emitter(), isa)
        large.angles = "any"
        value = FUNCTIONS[name](large, Value(large, "%x", kind))
        definitions[TABLE] = table()
        definitions[slow] = (
            f"define internal {kind} @{slow}({kind} %x) noinline cold nounwind "
            f"{{\n{large.emitter.text(f'{kind} {value.text}')}}}\n"
        )
        m.angles, limit = ("small", ANGLE_32) if bits == 32 and isa.fma else ("middle", MIDDLE_ANGLE)
        result = m.unless_any(m.abs(operands[0]).gt(limit), FUNCTIONS[name](m, *operands), slow, operands[0])
    else:
        result = {**FUNCTIONS, **ROUGH, **ACTIVATIONS}[name](m, *operands)
    signature = ", ".join(f"{kind} {p}" for p in parameters)
    body = m.emitter.text(f"{kind} {result.text}")
    definitions[symbol] = (
        f"define internal {kind} @{symbol}({signature}) alwaysinline nounwind {{\n{body}}}\n"
    )
    return symbol, definitions


def _in_native_lanes(name: str, symbol: str, lanes: int, isa: Isa) -> dict[str, str]:
    """The function for fewer or more lanes than a register has; all of them compute the same results."""
    native, definitions = math_function(name, 32, NATIVE.lanes, isa)
    kind, e, width = Kind("f", 32, lanes), Emitter(), NATIVE.lanes
    if lanes == 1:
        wide = e.op(f"insertelement {NATIVE} zeroinitializer, float %x, i64 0")
        result = e.op(f"extractelement {NATIVE} {e.op(f'call {NATIVE} @{native}({NATIVE} {wide})')}, i64 0")
    else:
        pieces = []
        for start in range(0, lanes, width):
            picked = ", ".join(f"i32 {min(start + k, lanes)}" for k in range(width))
            part = e.op(f"shufflevector {kind} %x, {kind} zeroinitializer, <{width} x i32> <{picked}>")
            pieces.append(e.op(f"call {NATIVE} @{native}({NATIVE} {part})"))
        while len(pieces) > 1:
            size = lanes // len(pieces)
            both = ", ".join(f"i32 {k}" for k in range(2 * size))
            pieces = [
                e.op(f"shufflevector <{size} x float> {a}, <{size} x float> {b}, <{2 * size} x i32> <{both}>")
                for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
        result = pieces[0]
        if lanes < width:
            first = ", ".join(f"i32 {k}" for k in range(lanes))
            result = e.op(f"shufflevector {NATIVE} {result}, {NATIVE} poison, <{lanes} x i32> <{first}>")
    body = e.text(f"{kind} {result}")
    definitions[symbol] = f"define internal {kind} @{symbol}({kind} %x) alwaysinline nounwind {{\n{body}}}\n"
    return definitions


# -- Exponentials ------------------------------------------------------------------------------------------


def _mantissa_bits(x: Value) -> int:
    return 23 if x.kind.bits == 32 else 52


def _round_biased(m: Formula, x: Value, factor: float, bias: int) -> tuple[Value, Value]:
    """``n = round(x * factor)`` as a float, and ``2.0**(n + bias - B)``, where B, the exponent bias, is 127
    or 1023.

    Adding 1.5 * 2**23 (2**52) leaves n in the low bits of the sum; a shift of the sum plus the bias makes
    them an exponent.
    """
    mantissa = _mantissa_bits(x)
    magic = 1.5 * 2.0**mantissa + bias
    total = m.fma(x, factor, magic) if factor != 1.0 else x + magic
    return total - magic, (total.bits() << mantissa).as_float()


def _scale(m: Formula, p: Value, n: Value) -> Value:
    """``p * 2**n`` for any n of magnitude below 2000 (260 in float32), in two steps so that subnormal results
    are right.
    """
    bias = 127 if p.kind.bits == 32 else 1023
    half, first = _round_biased(m, n, 0.5, bias)
    _, second = _round_biased(m, n - half, 1.0, bias)
    return p * first * second


def _reduced(m: Formula, x: Value, n: Value) -> Value:
    """``x - n ln(2)``."""
    high, low = (LN2_HIGH_32, LN2_LOW_32) if x.kind.bits == 32 else (LN2_HIGH_64, LN2_LOW_64)
    return m.fma(n, -low, m.fma(n, -high, x))


def exp(m: Formula, x: Value) -> Value:
    if x.kind.bits == 64:
        x = m.at_most(m.at_least(x, -746.0), 710.0)
        n, _ = _round_biased(m, x, LOG2E, 1023)
        r = _reduced(m, x, n)
        return _scale(m, m.polynomial(r, (1.0, 1.0, *EXP_64)), n)
    return _bounded_exp_32(m, m.at_most(m.at_least(x, -87.4), 89.0))


def _bounded_exp_32(m: Formula, x: Value, factor: float = 1.0) -> Value:
    """``factor * exp(x)`` for x from -87.6 to 89, and a `factor` that is a power of two."""
    # 2 exp(r) * 2**(n - 1): the scale is 0 for n = -126, and n may be 128. One product, no subnormal numbers.
    n, half_scale = _round_biased(m, x, LOG2E, 126)
    r = _reduced(m, x, n)
    return m.polynomial(r, [2.0 * factor * c for c in (1.0, 1.0, *EXP_32)]) * half_scale


def rough_exp(m: Formula, x: Value) -> Value:
    """``exp(x)`` to 13 bits; 0 where the result is below 2**-125.

    A softmax in 16 bits needs no more precision; the formula has half the instructions of `exp`.
    """
    if not m.is_native(x.kind):
        return exp(m, x)
    t = x * LOG2E
    return m.select(t.lt(-125.0), 0.0, m.scaled(m.polynomial(m.fraction(t), EXP2_ROUGH), t))


def exp2(m: Formula, x: Value) -> Value:
    if m.is_native(x.kind):
        r = m.remainder(x)
        return m.select(x.lt(-126.0), 0.0, m.scaled(m.polynomial(r, (1.0, *EXP2_32)), x - r))
    narrow = x.kind.bits == 32
    low, high = (-151.0, 129.0) if narrow else (-1076.0, 1025.0)
    x = m.at_most(m.at_least(x, low), high)
    n, _ = _round_biased(m, x, 1.0, 0)
    return _scale(m, m.polynomial(x - n, (1.0, *(EXP2_32 if narrow else EXP2_64))), n)


def expm1(m: Formula, x: Value) -> Value:
    narrow = x.kind.bits == 32
    bounded = m.at_most(m.at_least(x, -20.0 if narrow else -40.0), 89.0 if narrow else 710.0)
    n, half_scale = _round_biased(m, bounded, LOG2E, 126 if narrow else 1022)
    r = _reduced(m, bounded, n)
    less_one = m.fma(r * r, m.polynomial(r, EXP_32 if narrow else EXP_64), r)
    return m.copysign(2.0 * m.fma(half_scale, less_one, half_scale - 0.5), x)  # the sign matters for zero


def sigmoid(m: Formula, x: Value) -> Value:
    if x.kind.bits == 64:
        return 1.0 / (1.0 + exp(m, -x))
    # Only a small part of exp's error remains in the sum.
    bounded = m.at_most(m.at_least(x, -88.37), 87.0)
    n, scale = _round_biased(m, bounded, -LOG2E, 127)
    r = m.fma(n, -LN2_LOW_32, m.fma(n, -LN2_HIGH_32, -bounded))
    less_one = m.fma(r * r, m.polynomial(r, EXP_32), r)
    result = 1.0 / (scale + m.fma(scale, less_one, 1.0))
    return m.select(x.lt(-88.37), 0.0, result)


# -- Logarithms --------------------------------------------------------------------------------------------


def _log_parts(m: Formula, x: Value) -> tuple[Value, Value]:
    """``x = (1 + f) * 2**e`` with ``1 + f`` in [sqrt(1/2), sqrt(2)), for positive finite x."""
    narrow = x.kind.bits == 32
    mantissa = _mantissa_bits(x)
    up = mantissa + 1
    subnormal = x.lt(2.0**-126 if narrow else 2.0**-1022)
    bits = m.select(subnormal, x * 2.0**up, x).bits()
    sqrt_half = 0x3F3504F3 if narrow else 0x3FE6A09E667F3BCD
    distance = bits - sqrt_half
    significand = ((distance & ((1 << mantissa) - 1)) + sqrt_half).as_float()
    # Vector support for 64-bit integers is poor; the exponent fits 32 bits.
    e = (distance >> mantissa).resized(32).as_number(x.kind.bits)
    return significand - 1.0, e - m.select(subnormal, m.value(float(up), x.kind), 0.0)


def _log_specials(m: Formula, x: Value, result: Value) -> Value:
    result = m.select(x.lt(INF), result, x)  # infinity and NaN
    result = m.select(x.lt(0.0), NAN, result)
    return m.select(x.eq(0.0), -INF, result)


def _log_tail(m: Formula, f: Value) -> Value:
    """``log(1 + f) - f``."""
    square = f * f
    if f.kind.bits == 32:
        return m.fma(square, -0.5, square * (f * m.polynomial(f, LOG_32)))
    s = f / (2.0 + f)
    z = s * s
    half = 0.5 * square
    return s * (half + z * m.polynomial(z, LOG_64)) - half


def _log_by_table(m: Formula, x: Value, unit: float) -> Value:
    """The logarithm in a unit (ln(2) for log2), for AVX-512; special values need no separate handling.

    ``x = c (1 + r) 2**e`` with c from a table; c is 1 near 1, so that nothing cancels there.
    """
    s = m.significand(x)
    e = m.exponent(x) - m.exponent(s)
    return _log_of_parts(m, s, e, None, unit)


def _log_of_parts(m: Formula, s: Value, e: Value, rest: Value | None, unit: float) -> Value:
    """The logarithm of ``s * 2**e``, plus a small natural `rest`."""
    index = s.bits() >> 19
    reciprocals, logarithms = log_table(unit)
    r = m.fma(s, m.lookup(reciprocals, index), -1.0)
    high = m.fma(e, LN2 / unit, m.lookup(logarithms, index))
    tail = m.fma(r * r, m.polynomial(r, LOG_TABLE_32), r)
    if rest is not None:
        tail = tail + rest
    return high + tail if unit == 1.0 else m.fma(tail, 1.0 / unit, high)


@cache
def log_table(unit: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A number near the reciprocal, and minus its logarithm, for significands in [0.75, 1.5) by their leading
    four bits.
    """
    import numpy as np

    reciprocals, logarithms = [], []
    for k in range(16):
        low, high = (1 + k / 16, 1 + (k + 1) / 16) if k < 8 else ((1 + k / 16) / 2, (1 + (k + 1) / 16) / 2)
        if k in (0, 15):
            reciprocals.append(1.0)
            logarithms.append(0.0)
            continue
        middle = 2 / (low + high)
        near = [float(c) for c in np.linspace(middle * 0.998, middle * 1.002, 401).astype(np.float32)]
        exact = [-math.log(c) / unit for c in near]
        best = min(range(len(near)), key=lambda i: abs(float(np.float32(exact[i])) - exact[i]))
        reciprocals.append(near[best])
        logarithms.append(exact[best])
    return tuple(reciprocals), tuple(logarithms)


def log(m: Formula, x: Value) -> Value:
    if m.is_native(x.kind):
        return _log_by_table(m, x, 1.0)
    f, e = _log_parts(m, x)
    high, low = (LN2_HIGH_32, LN2_LOW_32) if x.kind.bits == 32 else (LN2_HIGH_64, LN2_LOW_64)
    result = m.fma(e, high, f + m.fma(e, low, _log_tail(m, f)))
    return _log_specials(m, x, result)


def log1p(m: Formula, x: Value) -> Value:
    """log(u) of the rounded ``u = 1 + x``, plus a correction for the rounding error of u."""
    u = 1.0 + x
    if m.is_native(x.kind):
        s = m.significand(u)
        lost = m.quotient(x - (u - 1.0), u)
        inside = u.gt(0.0) & x.lt(2.0**25)
        return m.copysign(
            _log_of_parts(m, s, m.exponent(u) - m.exponent(s), m.select(inside, lost, 0.0), 1.0), x
        )
    lost = (x - (u - 1.0)) / u
    inside = u.gt(0.0) & x.lt(2.0 ** (_mantissa_bits(x) + 2))
    return m.copysign(log(m, u) + m.select(inside, lost, 0.0), x)


def log2(m: Formula, x: Value) -> Value:
    if x.kind.bits == 64:
        high, low = _log2_parts(m, x)
        return _log_specials(m, x, high + low)
    if m.is_native(x.kind):
        return _log_by_table(m, x, LN2)
    f, e = _log_parts(m, x)
    tail = _log_tail(m, f)
    factor, rest = 1.4423828125, LOG2E - 1.4423828125
    return _log_specials(m, x, e + m.fma(f, factor, m.fma(tail, factor, (f + tail) * rest)))


def _log2_parts(m: Formula, x: Value) -> tuple[Value, Value]:
    """log2 of positive finite float64 `x` as an unevaluated sum, to about 2**-65."""
    f, e = _log_parts(m, x)
    divisor = 2.0 + f
    s = f / divisor
    product, error = m.two_product(s, divisor)
    s_low = (((f - product) - error) - s * (f - (divisor - 2.0))) / divisor
    z = s * s
    high, low = m.two_sum(2.0 * s, m.fma(s * z, m.polynomial(z, LOG_64), 2.0 * s_low))
    product, error = m.two_product(high, LOG2E_HIGH_64)
    error = error + (high * LOG2E_LOW_64 + low * LOG2E_HIGH_64)
    total, rest = m.two_sum(e, product)
    return total, rest + error


def pow(m: Formula, x: Value, y: Value) -> Value:
    """``2**(y log2|x|)`` with the logarithm in two parts; float32 is computed in float64.

    Special cases follow C (Annex F).
    """
    finite = _finite_pow_32 if x.kind.bits == 32 else _finite_pow_64
    return with_special_powers(m, x, y, finite(m, m.abs(x), y))


def with_special_powers(m: Formula, x: Value, y: Value, result: Value) -> Value:
    """``x**y`` from `result`, ``|x|**y`` where both are finite and x is not zero."""
    a = m.abs(x)
    up = y.gt(0.0)
    result = m.select(a.eq(0.0), m.select(up, m.value(0.0, x.kind), INF), result)
    result = m.select(a.eq(INF), m.select(up, m.value(INF, x.kind), 0.0), result)
    # A negative base: odd exponents keep its sign; exponents that are not integers give NaN.
    whole = m.trunc(y).eq(y)
    odd = whole & m.trunc(0.5 * y).ne(0.5 * y) & m.abs(y).lt(2.0 ** (_mantissa_bits(x) + 1))
    sign = x.bits() & -(2 ** (x.kind.bits - 1))
    result = (result.bits() | m.select(odd, sign, 0)).as_float()
    result = m.select(x.lt(0.0) & m.trunc(y).ne(y) & a.lt(INF), NAN, result)
    result = m.select(x.eq(-1.0) & m.abs(y).eq(INF), 1.0, result)
    result = m.select(x.unordered(y), NAN, result)
    return m.select(x.eq(1.0) | y.eq(0.0), 1.0, result)


def _finite_pow_32(m: Formula, a: Value, y: Value) -> Value:
    """|x|**y for finite operands, to 1e-9 in float64, then rounded."""
    f, e = (v.resized(64) for v in _log_parts(m, a))
    s = f / (f + 2.0)
    z = s * s
    tail = m.fma(s * z, m.polynomial(z, LOG_64[:5]), 2.0 * s)
    power = m.at_most(m.at_least(m.fma(tail, LOG2E, e) * y.resized(64), -200.0), 200.0)
    n, scale = _round_biased(m, power, 1.0, 1023)
    return (m.polynomial(power - n, (1.0, *EXP2_64[:8])) * scale).resized(32)


def _finite_pow_64(m: Formula, a: Value, y: Value) -> Value:
    exponent = m.at_most(m.at_least(y, -1e19), 1e19)  # large enough to overflow for any a but 1
    high, low = _log2_parts(m, a)
    product, error = m.two_product(exponent, high)
    total, rest = m.two_sum(product, m.fma(exponent, low, error))
    bounded = m.at_most(m.at_least(total, -1100.0), 1100.0)
    n, _ = _round_biased(m, bounded, 1.0, 0)
    r = (bounded - n) + m.select(bounded.eq(total), rest, 0.0)
    result = _scale(m, m.polynomial(r, (1.0, *EXP2_64)), n)
    result = m.select(y.eq(2.0), a * a, result)
    return m.select(y.eq(1.0), a, result)


# -- Trigonometry ------------------------------------------------------------------------------------------


def _quadrant(m: Formula, x: Value) -> tuple[Value, Value]:
    """The ``r`` and an integer with the low two bits of ``q`` in ``x = r + q pi/2``, |r| <= pi/4.

    `x` is a float64 up to `MIDDLE_ANGLE`.
    """
    magic = 1.5 * 2.0**52
    total = m.fma(x, 2.0 / math.pi, magic)
    n = total - magic
    first, first_error = m.two_product(n, HALF_PI[0])
    second, second_error = m.two_product(n, HALF_PI[1])
    r, rest = m.two_sum(x - first, -first_error)
    r, rest_2 = m.two_sum(r, -second)
    return r + (rest + (rest_2 - second_error) - n * HALF_PI[2]), total.bits()


def _sine_cosine(m: Formula, r: Value) -> tuple[Value, Value]:
    """The sine and cosine of r for |r| <= pi/4."""
    narrow = r.kind.bits == 32
    z = r * r
    sine = m.fma(r * z, m.polynomial(z, SIN_32 if narrow else SIN_64), r)
    cosine = m.fma(z * z, m.polynomial(z, COS_32 if narrow else COS_64), m.fma(z, -0.5, 1.0))
    return sine, cosine


def _quadrant_32(m: Formula, x: Value) -> tuple[Value, Value, Value]:
    """`_quadrant` for float32 up to `ANGLE_32`, with fused multiply-adds: r, a correction to add to r,
    and q.
    """
    magic = 1.5 * 2.0**23
    total = m.fma(x, 2.0 / math.pi, magic)
    n = total - magic
    exact = m.fma(n, -HALF_PI_32[0], x)
    product, lost = m.two_product(n, -HALF_PI_32[1])
    r, rest = m.two_sum(exact, product)
    return r, m.fma(n, -HALF_PI_32[2], rest + lost), total.bits()


def _reduced_angle(m: Formula, x: Value) -> tuple[Value, Value, Value]:
    """`_quadrant` of |x| in the width of `x`: r, a correction to add to r, and q."""
    bits = x.kind.bits
    if m.angles == "small":
        return _quadrant_32(m, m.abs(x))
    wide = m.abs(x).resized(64)
    exact, q = _quadrant(m, wide)
    if m.angles == "any":
        far, far_q = large_quadrant(m, wide, bits)
        is_large = wide.gt(MIDDLE_ANGLE)
        exact, q = m.select(is_large, far, exact), m.select(is_large, far_q, q)
    r = exact.resized(bits)
    return r, (exact - r.resized(64)).resized(bits), q.resized(bits)


def _circular(m: Formula, x: Value, shift: int) -> Value:
    """sin(|x| + shift pi/2)."""
    r, rest, q = _reduced_angle(m, x)
    sine, cosine = _sine_cosine(m, r + rest)
    q = q + shift
    result = m.select((q & 1).ne(0), cosine, sine)
    return (result.bits() ^ ((q & 2) << (x.kind.bits - 2))).as_float()


def sin(m: Formula, x: Value) -> Value:
    sign = x.bits() & -(1 << (x.kind.bits - 1))
    return (_circular(m, x, 0).bits() ^ sign).as_float()


def cos(m: Formula, x: Value) -> Value:
    return _circular(m, x, 1)


def tan(m: Formula, x: Value) -> Value:
    narrow = x.kind.bits == 32
    r, rest, q = _reduced_angle(m, x)
    odd = (q & 1).ne(0)
    if narrow:
        z = r * r
        more = m.fma(r * z, m.polynomial(z, TAN_32), m.fma(rest, z, rest))
        tangent = r + more
        # The rounding errors of sum and quotient count twice in a quotient just below a power of two.
        cotangent = -1.0 / tangent
        lost = m.fma(cotangent, (r - tangent) + more, m.fma(cotangent, tangent, 1.0))
        result = m.select(odd, m.fma(cotangent, lost, cotangent), tangent)
    else:
        sine, cosine = _sine_cosine(m, r)
        result = m.select(odd, -cosine, sine) / m.select(odd, sine, cosine)
    return (result.bits() ^ (x.bits() & -(1 << (x.kind.bits - 1)))).as_float()


def atan2(m: Formula, y: Value, x: Value) -> Value:
    """The arc tangent of y / x, computed from the quotient of the smaller by the larger magnitude.

    float64 uses ``atan(t) = pi/4 + atan((t - 1) / (t + 1))``.
    """
    a, b = m.abs(y), m.abs(x)
    steep = a.gt(b)
    t = m.select(steep, b, a) / m.select(steep, a, b)
    t = m.select(a.eq(b), m.select(a.eq(0.0), m.value(0.0, x.kind), 1.0), t)  # 0/0 and inf/inf
    if x.kind.bits == 32:
        pi, pi_low = PI_32, PI_LOW_32
        z = t * t
        angle = m.fma(t * z, m.polynomial(z, ATAN_32), t)
    else:
        pi, pi_low = PI, PI_LOW
        big = t.gt(TAN_PI_8)
        u = m.select(big, (t - 1.0) / (t + 1.0), t)
        z = u * u
        angle = m.fma(u * z, m.polynomial(z, ATAN_64), u)
        angle = m.select(big, (angle + PI_LOW / 4) + PI / 4, angle)
    angle = m.select(steep, (pi_low / 2 - angle) + pi / 2, angle)
    angle = m.select(x.bits().lt(0), (pi_low - angle) + pi, angle)
    return m.select(x.unordered(y), NAN, m.copysign(angle, y))


def atan(m: Formula, x: Value) -> Value:
    return atan2(m, x, m.value(1.0, x.kind))


def _leg(m: Formula, x: Value) -> Value:
    """``sqrt(1 - x**2)``."""
    return m.sqrt((1.0 - x) * (1.0 + x))


def _half_angle_32(m: Formula, x: Value) -> tuple[Value, Value]:
    """Whether |x| > 0.55, and asin(|x|) or, there, asin(sqrt((1 - |x|) / 2)), which is acos(|x|) / 2."""
    a = m.abs(x)
    big = a.gt(0.55)
    z = m.select(big, m.fma(a, -0.5, 0.5), a * a)
    s = m.select(big, m.sqrt(z), a)
    return big, m.fma(s * z, m.polynomial(z, ASIN_32), s)


def asin(m: Formula, x: Value) -> Value:
    if x.kind.bits == 64:
        return atan2(m, x, _leg(m, x))
    big, p = _half_angle_32(m, x)
    return m.copysign(m.select(big, m.fma(p, -2.0, PI_LOW_32 / 2) + PI_32 / 2, p), x)


def acos(m: Formula, x: Value) -> Value:
    if x.kind.bits == 64:
        return atan2(m, _leg(m, x), x)
    big, p = _half_angle_32(m, x)
    negative = x.lt(0.0)
    middle = PI_32 / 2 - (m.copysign(p, x) - PI_LOW_32 / 2)
    outer = m.select(negative, m.fma(p, -2.0, PI_LOW_32) + PI_32, p + p)
    return m.select(big, outer, middle)


# -- Hyperbolic functions, erf -----------------------------------------------------------------------------


def tanh(m: Formula, x: Value) -> Value:
    if m.is_native(x.kind):
        pieces = tanh_pieces()
        a = m.at_most(m.abs(x), pieces.end)
        return m.copysign(evaluate(m, pieces, a, (1.0 + a).bits() >> 21), x)
    if x.kind.bits == 32:
        a = m.at_most(m.abs(x), 10.0)
        z = a * a
        near = m.fma(a * z, m.polynomial(z, TANH_32), a)
        far = 1.0 - 2.0 / (1.0 + _bounded_exp_32(m, 2.0 * a))
        return m.copysign(m.select(a.lt(0.6), near, far), x)
    t = expm1(m, 2.0 * m.at_most(m.abs(x), 20.0))
    return m.copysign(t / (t + 2.0), x)


def _large_half_exp(m: Formula, a: Value, otherwise: Value) -> Value:
    """``exp(a) / 2`` without premature overflow where a > 22, else `otherwise`; float64."""
    root = exp(m, 0.5 * a)
    return m.select(a.gt(22.0), 0.5 * root * root, otherwise)


def _quarter_exp_32(m: Formula, a: Value) -> Value:
    """``exp(a) / 4`` for 0 <= a; infinite where cosh is infinite."""
    a = m.at_most(a, 90.0)
    n, scale = _round_biased(m, a, LOG2E, 125)
    return m.polynomial(_reduced(m, a, n), (1.0, 1.0, *EXP_32)) * scale


def sinh(m: Formula, x: Value) -> Value:
    a = m.abs(x)
    if x.kind.bits == 32:
        z = a * a
        near = m.fma(a * z, m.polynomial(z, SINH_32), a)
        quarter = _quarter_exp_32(m, a)
        return m.copysign(m.select(a.lt(1.0), near, 2.0 * (quarter - 0.0625 / quarter)), x)
    t = expm1(m, m.at_most(a, 30.0))
    return m.copysign(_large_half_exp(m, a, 0.5 * (t + t / (t + 1.0))), x)


def cosh(m: Formula, x: Value) -> Value:
    a = m.abs(x)
    if x.kind.bits == 32:
        quarter = _quarter_exp_32(m, a)
        return 2.0 * (quarter + 0.0625 / quarter)
    e = exp(m, m.at_most(a, 30.0))
    return _large_half_exp(m, a, 0.5 * (e + 1.0 / e))


def asinh(m: Formula, x: Value) -> Value:
    a = m.abs(x)
    square = a * a
    large = a.gt(1e150)
    result = log1p(m, m.select(large, a, a + square / (1.0 + m.sqrt(square + 1.0))))
    return m.copysign(result + m.select(large, m.value(LN2, x.kind), 0.0), x)


def acosh(m: Formula, x: Value) -> Value:
    t = x - 1.0
    large = x.gt(1e150)
    result = log1p(m, m.select(large, x, t + m.sqrt(t * (t + 2.0))))
    return m.select(x.lt(1.0), NAN, result + m.select(large, m.value(LN2, x.kind), 0.0))


def atanh(m: Formula, x: Value) -> Value:
    a = m.abs(x)
    return m.copysign(0.5 * log1p(m, 2.0 * a / (1.0 - a)), x)


def erf(m: Formula, x: Value) -> Value:
    if m.is_native(x.kind):
        pieces, factor = erf_pieces()
        a = m.at_most(m.abs(x), pieces.end)
        return m.copysign(evaluate(m, pieces, a, m.fma(a, factor, 1.5 * 2.0**23).bits()), x)
    if x.kind.bits == 32:
        a = m.at_most(m.abs(x), 3.925)
        near = m.fma(a, m.polynomial(a * a, ERF_32), a)
        far = 1.0 - _bounded_exp_32(m, a * m.polynomial(a, LOG_ERFC_32))
        return m.copysign(m.select(a.lt(1.0), near, far), x)
    a = m.at_most(m.abs(x), 6.0)
    z = a * a
    near = a * m.polynomial(z, ERF_64)
    far = 1.0 - exp(m, -z) * m.polynomial((a - 2.0) / (a + 2.0), ERFC_64)
    return m.copysign(m.select(a.lt(1.25), near, far), x)


# GELU is ``max(x, 0)`` minus a function of ``|x|``, so that nothing cancels for negative numbers.


def gelu(m: Formula, x: Value) -> Value:
    """GELU, ``x (1 + erf(x / sqrt(2))) / 2``, of float32; 0 of -inf."""
    if m.is_native(x.kind):
        return _gelu_of_pieces(m, x, gelu_pieces("none"))
    a = m.at_most(m.abs(x), LOG_TAIL_END)
    return m.at_least(x, 0.0) - a * _bounded_exp_32(m, a * m.polynomial(a, LOG_TAIL_32), 0.5)


def gelu_tanh(m: Formula, x: Value) -> Value:
    """The form of GELU with tanh, for AVX-512; 0 of -inf."""
    return _gelu_of_pieces(m, x, gelu_pieces("tanh"))


def _gelu_of_pieces(m: Formula, x: Value, pieces: Pieces) -> Value:
    a = m.at_most(m.abs(x), pieces.end)
    return m.at_least(x, 0.0) - evaluate(m, pieces, a, (2.0 + a).bits() >> 19)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    f.__name__: f
    for f in (
        exp, exp2, expm1, log, log2, log1p, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, asinh, acosh,
        atanh, erf, sigmoid, pow, atan2,
    )
}  # fmt: skip
"""Maps function names to formulas over `Value`s."""
IN_FLOAT64 = frozenset({"asinh", "acosh", "atanh"})
"""Functions computed in float64 for float32 operands, too."""
ROUGH = {"rough_exp": rough_exp}
"""Formulas for results that are rounded to 16 bits (`scalar.ROUGH`)."""
ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh}
"""Formulas of what `activations` finds in bodies, in float32."""
NATIVE_FORMULAS = frozenset({"exp2", "log", "log2", "log1p", "tanh", "erf", "rough_exp", *ACTIVATIONS})
"""Functions with a separate formula for AVX-512 registers."""
ANGLES = frozenset({"sin", "cos", "tan"})

__all__ = ["ACTIVATIONS", "FUNCTIONS", "ROUGH", "math_function"]
