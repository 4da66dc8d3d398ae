"""Formulas over LLVM vectors: values with Python operators that emit IR text."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Union

from .emitter import Emitter, mangled
from .isa import Isa

_FLOAT = {32: "float", 64: "double"}


@dataclass(frozen=True)
class Kind:
    """A type of `lanes` numbers (1: a plain scalar) of `bits` bits: ``f`` floating-point, ``i`` integer (1
    bit: booleans).
    """

    family: str
    bits: int
    lanes: int

    def __str__(self) -> str:
        element = _FLOAT[self.bits] if self.family == "f" else f"i{self.bits}"
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def constant(self, value: float) -> str:
        """The operand that holds `value` in every lane, rounded to the kind."""
        if self.family == "f":
            rounded = struct.unpack("<f", struct.pack("<f", value))[0] if self.bits == 32 else value
            text = f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
        else:
            text = str(int(value))
        element = _FLOAT[self.bits] if self.family == "f" else f"i{self.bits}"
        return text if self.lanes == 1 else f"splat ({element} {text})"


Term = Union["Value", float]


@dataclass(frozen=True)
class Value:
    """An SSA value of a formula. Arithmetic also takes Python numbers, rounded to the value's kind; nothing
    is reassociated.
    """

    m: Formula
    text: str
    kind: Kind

    def __add__(self, other: Term) -> Value:
        return self._binary("add", other)

    def __radd__(self, other: Term) -> Value:
        return self._binary("add", other)

    def __sub__(self, other: Term) -> Value:
        return self._binary("sub", other)

    def __rsub__(self, other: Term) -> Value:
        return self.m.value(other, self.kind) - self

    def __mul__(self, other: Term) -> Value:
        return self._binary("mul", other)

    def __rmul__(self, other: Term) -> Value:
        return self._binary("mul", other)

    def __truediv__(self, other: Term) -> Value:
        return self._binary("div", other)

    def __rtruediv__(self, other: Term) -> Value:
        return self.m.value(other, self.kind) / self

    def __neg__(self) -> Value:
        return self.m.op(self.kind, f"fneg {self.kind} {self.text}")

    def __lshift__(self, count: int) -> Value:
        return self._integer("shl", count)

    def __rshift__(self, count: int) -> Value:
        """Arithmetic shift: the sign is kept."""
        return self._integer("ashr", count)

    def __and__(self, other: Term) -> Value:
        return self._integer("and", other)

    def __or__(self, other: Term) -> Value:
        return self._integer("or", other)

    def __xor__(self, other: Term) -> Value:
        return self._integer("xor", other)

    def _binary(self, name: str, other: Term) -> Value:
        if self.kind.family == "i":
            return self._integer(name, other)
        return self.m.op(self.kind, f"f{name} {self.kind} {self.text}, {self.m.value(other, self.kind).text}")

    def _integer(self, name: str, other: Term) -> Value:
        return self.m.op(self.kind, f"{name} {self.kind} {self.text}, {self.m.value(other, self.kind).text}")

    # Comparisons of floating-point values are false if either operand is NaN.

    def lt(self, other: Term) -> Value:
        return self._compare("olt", "slt", other)

    def gt(self, other: Term) -> Value:
        return self._compare("ogt", "sgt", other)

    def eq(self, other: Term) -> Value:
        return self._compare("oeq", "eq", other)

    def ne(self, other: Term) -> Value:
        """Inequality; true if either operand is NaN."""
        return self._compare("une", "ne", other)

    def unordered(self, other: Term) -> Value:
        """Whether either operand is NaN."""
        return self._compare("uno", "ne", other)

    def _compare(self, real: str, integer: str, other: Term) -> Value:
        test = f"fcmp {real}" if self.kind.family == "f" else f"icmp {integer}"
        other = self.m.value(other, self.kind)
        return self.m.op(Kind("i", 1, self.kind.lanes), f"{test} {self.kind} {self.text}, {other.text}")

    def bits(self) -> Value:
        """The bit pattern as an integer."""
        return self._cast("bitcast", Kind("i", self.kind.bits, self.kind.lanes))

    def as_float(self) -> Value:
        """The floating-point number with this bit pattern."""
        return self._cast("bitcast", Kind("f", self.kind.bits, self.kind.lanes))

    def resized(self, bits: int) -> Value:
        """The value in `bits` bits; integers are truncated or sign-extended."""
        if bits == self.kind.bits:
            return self
        wider = bits > self.kind.bits
        name = (
            ("fpext" if wider else "fptrunc") if self.kind.family == "f" else ("sext" if wider else "trunc")
        )
        return self._cast(name, Kind(self.kind.family, bits, self.kind.lanes))

    def as_number(self, bits: int) -> Value:
        """The floating-point number of `bits` bits that is nearest to the integer."""
        return self._cast("sitofp", Kind("f", bits, self.kind.lanes))

    def _cast(self, name: str, kind: Kind) -> Value:
        return self.m.op(kind, f"{name} {self.kind} {self.text} to {kind}")


NATIVE = Kind("f", 32, 16)
"""The type of a full AVX-512 register."""


class Formula:
    """Emits formulas into an `Emitter`."""

    def __init__(self, emitter: Emitter, isa: Isa) -> None:
        self.emitter, self.isa = emitter, isa
        self.angles: Literal["small", "middle", "any"] = "any"
        """The largest angles of sin, cos and tan; ``small`` ones are reduced in float32."""

    def op(self, kind: Kind, text: str) -> Value:
        return Value(self, self.emitter.op(text), kind)

    def value(self, x: Term, kind: Kind) -> Value:
        """`x` itself, or the number as a constant of `kind`."""
        return x if isinstance(x, Value) else Value(self, kind.constant(x), kind)

    def fma(self, a: Term, b: Term, c: Term) -> Value:
        """``a * b + c``, with one rounding where the target has such an instruction."""
        kind = next(v.kind for v in (a, b, c) if isinstance(v, Value))
        x, y, z = (self.value(v, kind).text for v in (a, b, c))
        return Value(self, self.emitter.fma(str(kind), x, y, z, self.isa.fma), kind)

    def select(self, condition: Value, a: Term, b: Term) -> Value:
        kind = next(v.kind for v in (a, b) if isinstance(v, Value))
        a, b = self.value(a, kind), self.value(b, kind)
        return self.op(kind, f"select {condition.kind} {condition.text}, {kind} {a.text}, {kind} {b.text}")

    def unless_any(self, condition: Value, result: Value, function: str, x: Value) -> Value:
        """`result`, or ``function(x)`` for all lanes if `condition` holds in any lane."""
        some, e = condition.text, self.emitter
        if x.kind.lanes > 1:
            some = e.op(f"call i1 @llvm.vector.reduce.or.v{x.kind.lanes}i1({condition.kind} {some})")
        e.line(f"br i1 {some}, label %rare, label %join")
        e.label("rare")
        called = e.op(f"call {x.kind} @{function}({x.kind} {x.text})")
        e.line("br label %join")
        e.label("join")
        return self.op(x.kind, f"phi {x.kind} [ {result.text}, %entry ], [ {called}, %rare ]")

    def load(self, table: str, index: Value) -> Value:
        """``table[i]`` for each lane of an i64 vector; `table` is a global array of float64."""
        lanes = index.kind.lanes
        kind, pointers = Kind("f", 64, lanes), "ptr" if lanes == 1 else f"<{lanes} x ptr>"
        where = self.emitter.op(f"getelementptr double, ptr @{table}, {index.kind} {index.text}")
        if lanes == 1:
            return self.op(kind, f"load double, ptr {where}, align 8")
        operands = f"{pointers} align 8 {where}, <{lanes} x i1> splat (i1 true), {kind} poison"
        return self.op(kind, f"call {kind} @llvm.masked.gather.v{lanes}f64.v{lanes}p0({operands})")

    def _intrinsic(self, name: str, *operands: Value) -> Value:
        kind = operands[0].kind
        given = ", ".join(f"{kind} {v.text}" for v in operands)
        return self.op(kind, f"call {kind} @llvm.{name}.{mangled(str(kind))}({given})")

    def abs(self, x: Value) -> Value:
        return self._intrinsic("fabs", x)

    def sqrt(self, x: Value) -> Value:
        return self._intrinsic("sqrt", x)

    def trunc(self, x: Value) -> Value:
        return self._intrinsic("trunc", x)

    def copysign(self, x: Value, sign: Value) -> Value:
        return self._intrinsic("copysign", x, sign)

    def quotient(self, a: Term, b: Value) -> Value:
        """``a / b`` to 0.6 ulp, if `b` and the result are at least 1e-38 and `b` is at most 1e38.

        AVX-512 divides a vector in 10 cycles; this is faster.
        """
        a = self.value(a, b.kind)
        if not self.is_native(b.kind):
            return a / b
        guess = self._avx512("rcp14.ps.512", b.kind, b, mask=True)
        if a.text == b.kind.constant(1.0):
            return self.fma(self.fma(-b, guess, 1.0), guess, guess)
        first = a * guess
        return self.fma(self.fma(-b, first, a), guess, first)

    # Functions that are single AVX-512 instructions, on float32 vectors of full width.

    def is_native(self, kind: Kind) -> bool:
        """Whether a kind has `lookup`, `exponent`, `significand`, `fraction`, `remainder` and `scaled`."""
        return self.isa.avx512 and kind == NATIVE

    def lookup(self, table: Sequence[float], index: Value) -> Value:
        """``table[i]`` for the low bits of each lane of an integer vector: four bits for a table of 16
        numbers, five for one of 32.
        """
        assert len(table) in (16, 32)
        element = Kind("f", 32, 1)
        numbers = [f"float {element.constant(x)}" for x in table]
        low, *high = (f"{NATIVE} <{', '.join(numbers[k : k + 16])}>" for k in range(0, len(table), 16))
        name = "vpermi2var.ps.512" if high else "permvar.sf.512"
        operands = ", ".join((low, f"{index.kind} {index.text}", *high))
        return self.op(NATIVE, f"call {NATIVE} @llvm.x86.avx512.{name}({operands})")

    def exponent(self, x: Value) -> Value:
        """``floor(log2|x|)``; -inf of zero, inf of infinity."""
        return self._avx512("mask.getexp.ps.512", NATIVE, x, mask=True, rounding=True)

    def significand(self, x: Value) -> Value:
        """`x` scaled by a power of two into [0.75, 1.5); 1 of zeros and infinity, NaN of negative numbers."""
        return self._avx512("mask.getmant.ps.512", NATIVE, x, immediate=0b1111, mask=True, rounding=True)

    def fraction(self, x: Value) -> Value:
        """``x - floor(x)``; 0 of infinity."""
        return self._avx512("mask.reduce.ps.512", NATIVE, x, immediate=1, mask=True, rounding=True)

    def remainder(self, x: Value) -> Value:
        """`x` minus the nearest integer; 0 for infinity."""
        return self._avx512("mask.reduce.ps.512", NATIVE, x, immediate=0, mask=True, rounding=True)

    def scaled(self, x: Value, n: Value) -> Value:
        """``x * 2**floor(n)``. Slow if the result is subnormal."""
        operands = f"{NATIVE} {x.text}, {NATIVE} {n.text}, {NATIVE} zeroinitializer, i16 -1, i32 4"
        return self.op(NATIVE, f"call {NATIVE} @llvm.x86.avx512.mask.scalef.ps.512({operands})")

    def _avx512(
        self,
        name: str,
        kind: Kind,
        x: Value,
        immediate: int | None = None,
        mask: bool = False,
        rounding: bool = False,
    ) -> Value:
        operands = [f"{kind} {x.text}"]
        if immediate is not None:
            operands.append(f"i32 {immediate}")
        if mask:
            operands += [f"{kind} zeroinitializer", "i16 -1"]
        if rounding:
            operands.append("i32 4")
        return self.op(kind, f"call {kind} @llvm.x86.avx512.{name}({', '.join(operands)})")

    def at_least(self, x: Value, low: float) -> Value:
        """`x`, but at least `low`; NaN stays NaN."""
        return self.select(x.lt(low), low, x)

    def at_most(self, x: Value, high: float) -> Value:
        """`x`, but at most `high`; NaN stays NaN."""
        return self.select(x.gt(high), high, x)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """``c[0] + c[1] x + c[2] x**2 + ...`` by Horner's rule."""
        *rest, last = coefficients
        total: Term = last
        for c in reversed(rest):
            total = self.fma(total, x, c)
        return self.value(total, x.kind)

    # Sums and products with their rounding errors (Dekker, "A floating-point technique for extending the
    # available precision", 1971).

    def two_sum(self, a: Value, b: Value) -> tuple[Value, Value]:
        """``a + b`` rounded, and the error."""
        total = a + b
        part = total - a
        return total, (a - (total - part)) + (b - part)

    def two_product(self, a: Value, b: Term) -> tuple[Value, Value]:
        """``a * b`` rounded, and the error."""
        b = self.value(b, a.kind)
        product = a * b
        if self.isa.fma:
            return product, self.fma(a, b, -product)
        (a_high, a_low), (b_high, b_low) = self._split(a), self._split(b)
        error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
        return product, error

    def _split(self, a: Value) -> tuple[Value, Value]:
        scaled = a * (4097.0 if a.kind.bits == 32 else 134217729.0)
        high = scaled - (scaled - a)
        return high, a - high


__all__ = ["NATIVE", "Formula", "Kind", "Term", "Value"]
