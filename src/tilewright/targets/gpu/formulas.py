"""Mathematical functions as text, from the formulas of the CPU's code generator.

`targets.llvm.mathlib` tells the functions over values with operators; here the operators write statements of
the neutral notation (see `prelude`) instead of LLVM instructions. Functions that the CPU computes in float64
for float32 operands have formulas of their own here, since some languages have no float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from ..llvm import mathlib
from ..llvm.argument_reduction import words
from ..llvm.emitter import Emitter
from ..llvm.isa import Isa
from ..llvm.vector_math import Formula, Kind, Term, Value

_FUSED = Isa("fused", "", "", (), 0, 0, masked=False, fma=True)
_SPLIT = Isa("split", "", "", (), 0, 0, masked=False, fma=False)
_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "shl": "<<",
    "ashr": ">>",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_RELATIONS = {
    "olt": "<",
    "slt": "<",
    "ogt": ">",
    "sgt": ">",
    "oeq": "==",
    "eq": "==",
    "une": "!=",
    "ne": "!=",
}
_LOGICAL = {"and": "&&", "or": "||", "xor": "!="}
_FUNCTIONS = {"fabs": "abs"}
_I32 = Kind("i", 32, 1)


def _type(kind: Kind) -> str:
    return "bool" if kind.bits == 1 else f"{kind.family}{kind.bits}"


class TextValue(Value):
    """A value of a formula in the neutral notation."""

    def __neg__(self) -> Value:
        return self.m.op(self.kind, f"-{self.text}")

    def _integer(self, name: str, other: Term) -> Value:
        sign = _SIGNS[name]
        if name in ("shl", "ashr"):
            assert isinstance(other, int)
            if name == "shl":
                unsigned = f"u{self.kind.bits}"
                return self.m.op(self.kind, f"{_type(self.kind)}({unsigned}({self.text}) << {other}u)")
            return self.m.op(self.kind, f"{self.text} >> {other}u")
        right = self.m.value(other, self.kind).text
        if self.kind.bits == 1:
            return self.m.op(self.kind, f"{self.text} {_LOGICAL[name]} {right}")
        if name in ("add", "sub", "mul"):
            unsigned = f"u{self.kind.bits}"
            return self.m.op(
                self.kind, f"{_type(self.kind)}({unsigned}({self.text}) {sign} {unsigned}({right}))"
            )
        return self.m.op(self.kind, f"{self.text} {sign} {right}")

    def _binary(self, name: str, other: Term) -> Value:
        if self.kind.family == "i":
            return self._integer(name, other)
        text = f"{self.text} {_SIGNS[name]} {self.m.value(other, self.kind).text}"
        if name in ("add", "sub") and isinstance(self.m, TextFormula):
            text = self.m.rounded(self.kind, text)
        return self.m.op(self.kind, text)

    def _compare(self, real: str, integer: str, other: Term) -> Value:
        right = self.m.value(other, self.kind).text
        flag = Kind("i", 1, 1)
        if self.kind.family == "f" and real == "uno":
            isnan = f"@isnan.{_type(self.kind)}"
            return self.m.op(flag, f"{isnan}({self.text}) || {isnan}({right})")
        if real == "une" and self.kind.family == "f":
            return self.m.op(flag, f"!({self.text} == {right})")  # WGSL's != is false for NaN.
        relation = _RELATIONS[real if self.kind.family == "f" else integer]
        return self.m.op(flag, f"{self.text} {relation} {right}")

    def _cast(self, name: str, kind: Kind) -> Value:
        if name == "bitcast":
            return self.m.op(kind, f"@as_{_type(kind)}.{_type(self.kind)}({self.text})")
        return self.m.op(kind, f"{_type(kind)}({self.text})")


class TextFormula(Formula):
    """Writes the statements of a formula."""

    def __init__(self, isa: Isa, opaque: bool) -> None:
        super().__init__(Emitter(), isa)
        self.opaque = opaque
        self.lines: list[str] = []

    def op(self, kind: Kind, text: str) -> Value:
        name = f"t{len(self.lines)}"
        self.lines.append(f"  {_type(kind)} {name} = {text};")
        return TextValue(self, name, kind)

    def value(self, x: Term, kind: Kind) -> Value:
        return x if isinstance(x, Value) else TextValue(self, _literal(x, kind), kind)

    def fma(self, a: Term, b: Term, c: Term) -> Value:
        kind = next(v.kind for v in (a, b, c) if isinstance(v, Value))
        x, y, z = (self.value(v, kind).text for v in (a, b, c))
        if self.isa.fma:
            return self.op(kind, f"@fma.{_type(kind)}({x}, {y}, {z})")
        text = f"{x} * {y} + {z}"
        is_magic = isinstance(c, float) and abs(c) >= 2.0**22
        return self.op(kind, self.rounded(kind, text) if is_magic else text)

    def rounded(self, kind: Kind, text: str) -> str:
        """A sum whose rounding matters: a compiler must not simplify what is done with it."""
        return f"tw_opaque_{_type(kind)}({text})" if self.opaque else text

    def select(self, condition: Value, a: Term, b: Term) -> Value:
        kind = next(v.kind for v in (a, b) if isinstance(v, Value))
        x, y = self.value(a, kind).text, self.value(b, kind).text
        return self.op(kind, f"select({condition.text}, {x}, {y})")

    def _intrinsic(self, name: str, *operands: Value) -> Value:
        kind = operands[0].kind
        function = f"@{_FUNCTIONS.get(name, name)}.{_type(kind)}"
        return self.op(kind, f"{function}({', '.join(v.text for v in operands)})")

    def load(self, table: str, index: Value) -> Value:
        return self.op(Kind("f", 64, 1), f"tw_two_over_pi[i32({index.text})]")


def _literal(x: float, kind: Kind) -> str:
    """A number in the neutral notation."""
    if kind.bits == 1:
        return "true" if x else "false"
    if kind.family == "i":
        number = int(x)
        least = number == -(1 << (kind.bits - 1))
        long = "$L" if abs(number) >= 1 << 31 and kind.bits == 64 else ""
        text = f"i{kind.bits}({number + least}{long})"
        return f"({text} - i{kind.bits}(1))" if least else text
    real = f"f{kind.bits}"
    if math.isnan(x):
        return f"@nan.{real}()"
    if math.isinf(x):
        return f"@inf.{real}()" if x > 0 else f"(-@inf.{real}())"
    text = f"{x!r}$D" if kind.bits == 64 else f"{np.float32(x)!s}$F"
    return f"({text})" if text.startswith("-") else text


# -- Formulas for float32 without float64 --------------------------------------------------------------------

_HALF_PI_32 = (
    1.5703125,
    0.0004825592041015625,
    1.2665987014770508e-06,
    9.89530235528946e-10,
    2.5579538487363607e-12,
    5.390302953474238e-15,
)
"""pi / 2 in parts of 8 bits, whose products with integers below 2**16 are exact, and a last one. So angles up
to `LARGE_ANGLE` are reduced with one rounding.
"""
LARGE_ANGLE = 100000.0
"""Angles from this one on are reduced by `large_angles`."""


def _quadrant_32(m: Formula, x: Value) -> tuple[Value, Value]:
    """The ``r`` and an integer with the low two bits of ``q`` in ``x = r + q pi/2``; `x` >= 0."""
    magic = 1.5 * 2.0**23
    total = x * (2.0 / math.pi) + magic
    n = total - magic
    r = x
    for part in _HALF_PI_32:
        r = r - n * part
    infinity = m.value(math.inf, x.kind)
    large = x.gt(LARGE_ANGLE) & x.lt(infinity)
    assert isinstance(m, TextFormula)
    quadrant, remainder = (
        m.op(k, f"tw_{n}_f32({x.text})") for n, k in (("quadrant", _I32), ("remainder", x.kind))
    )
    return m.select(large, remainder, r), m.select(large, quadrant, total.bits())


def _sine_32(m: Formula, x: Value, shift: int) -> Value:
    """sin(x + shift pi/2) for `x` >= 0."""
    r, q = _quadrant_32(m, x)
    sine, cosine = mathlib._sine_cosine(m, r)
    q = q + shift
    result = m.select((q & 1).ne(0), cosine, sine)
    return (result.bits() ^ ((q & 2) << 30)).as_float()


def _sin(m: Formula, x: Value) -> Value:
    sign = x.bits() & -(1 << 31)
    return (_sine_32(m, m.abs(x), 0).bits() ^ sign).as_float()


def _cos(m: Formula, x: Value) -> Value:
    return _sine_32(m, m.abs(x), 1)


def _tan(m: Formula, x: Value) -> Value:
    r, q = _quadrant_32(m, m.abs(x))
    z = r * r
    tangent = m.fma(r * z, m.polynomial(z, mathlib.TAN_32), r)
    result = m.select((q & 1).ne(0), -1.0 / tangent, tangent)
    return (result.bits() ^ (x.bits() & -(1 << 31))).as_float()


def _asinh(m: Formula, x: Value) -> Value:
    a = m.abs(x)
    square = a * a
    large = a.gt(1e18)
    result = mathlib.log1p(m, m.select(large, a, a + square / (1.0 + m.sqrt(square + 1.0))))
    return m.copysign(result + m.select(large, m.value(mathlib.LN2, x.kind), 0.0), x)


def _acosh(m: Formula, x: Value) -> Value:
    t = x - 1.0
    large = x.gt(1e18)
    result = mathlib.log1p(m, m.select(large, x, t + m.sqrt(t * (t + 2.0))))
    return m.select(x.lt(1.0), mathlib.NAN, result + m.select(large, m.value(mathlib.LN2, x.kind), 0.0))


def _finite_pow(m: Formula, a: Value, y: Value) -> Value:
    """|x|**y for finite operands, with the logarithm in two float32."""
    f, e = mathlib._log_parts(m, a)
    divisor = 2.0 + f
    s = f / divisor
    product, error = m.two_product(s, divisor)
    s_low = (((f - product) - error) - s * (f - (divisor - 2.0))) / divisor
    z = s * s
    high, low = m.two_sum(2.0 * s, m.fma(s * z, m.polynomial(z, mathlib.LOG_64[:5]), 2.0 * s_low))
    log2e = float(np.float32(mathlib.LOG2E))
    product, error = m.two_product(high, log2e)
    error = error + (high * (mathlib.LOG2E - log2e) + low * log2e)
    total, rest = m.two_sum(e, product)
    rest = rest + error
    bounded_y = m.at_most(m.at_least(y, -1e12), 1e12)
    product, error = m.two_product(bounded_y, total)
    power, left = m.two_sum(product, m.fma(bounded_y, rest, error))
    bounded = m.at_most(m.at_least(power, -200.0), 200.0)
    n, _ = mathlib._round_biased(m, bounded, 1.0, 0)
    r = (bounded - n) + m.select(bounded.eq(power), left, 0.0)
    result = mathlib._scale(m, m.polynomial(r, (1.0, *mathlib.EXP2_32)), n)
    result = m.select(y.eq(2.0), a * a, result)
    return m.select(y.eq(1.0), a, result)


def _pow(m: Formula, x: Value, y: Value) -> Value:
    return mathlib.with_special_powers(m, x, y, _finite_pow(m, m.abs(x), y))


_OWN: dict[str, Callable[..., Value]] = {
    "sin": _sin, "cos": _cos, "tan": _tan, "asinh": _asinh, "acosh": _acosh, "pow": _pow,
}  # fmt: skip


@cache
def function_text(name: str, bits: int, fused: bool, opaque: bool) -> str | None:
    """The definition of ``tw_<name>_f<bits>`` in the neutral notation; None where there is no such function.

    `fused` states that the language multiplies and adds with one rounding, `opaque` that its compilers
    rearrange sums; ``tw_opaque_f32`` then hides a value from them.
    """
    formula = mathlib.FUNCTIONS.get(name)
    if formula is None:
        return None
    if bits == 32:
        formula = _OWN.get(name, formula)
    m = TextFormula(_FUSED if fused else _SPLIT, opaque)
    kind = Kind("f", bits, 1)
    parameters = ("x", "y") if name in ("pow", "atan2") else ("x",)
    operands = [TextValue(m, p, kind) for p in parameters]
    result = formula(m, *operands)
    head = ", ".join(f"f{bits} {p}" for p in parameters)
    body = "\n".join(m.lines)
    return f"FN f{bits} tw_{name}_f{bits}({head}) {{\n{body}\n  return {result.text};\n}}\n"


TWO_OVER_PI = ", ".join(f"{word:.1f}" for word in words())
"""The elements of the table ``tw_two_over_pi``, which trigonometric functions of float64 use."""

__all__ = ["TWO_OVER_PI", "function_text"]
