"""Scalar operations as expressions.

Narrow floats are computed in float32 and rounded by casts and stores only; narrow integers are computed in 32
bits and wrapped after each operation that may leave their range.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...dialects import scalar
from ...errors import CompileError
from ...ir import notes
from ...ir.core import Operation
from ...ir.types import DType, boolean, f32, f64
from .dialect import BITS, UNSIGNED, Dialect, Register, type_in_register, widened

Call = Callable[[str, Register | str], str]
"""Returns the name of the function that computes ``scalar.<name>`` on a register type, or that converts a
narrow float.
"""

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BOOLEAN = {
    "add": "({a} || {b})",
    "mul": "({a} && {b})",
    "and": "({a} && {b})",
    "or": "({a} || {b})",
    "xor": "({a} != {b})",
    "min": "({a} && {b})",
    "max": "({a} || {b})",
    "eq": "({a} == {b})",
    "ne": "({a} != {b})",
    "lt": "(!{a} && {b})",
    "le": "(!{a} || {b})",
    "gt": "({a} && !{b})",
    "ge": "({a} || !{b})",
}
_MAY_LEAVE = frozenset("neg abs not add sub mul div floordiv pow shl".split())
"""Operations on narrow integers whose result, computed in 32 bits, may have other high bits."""


class ScalarText:
    """Prints scalar operations of one kernel in one language."""

    def __init__(self, dialect: Dialect, call: Call, place: str) -> None:
        self.dialect, self.call, self.place = dialect, call, place

    # -- Types -----------------------------------------------------------------------------------------------

    def register(self, dtype: DType) -> Register:
        """The register type of a value.

        Raises:
            CompileError: The language has no such type.
        """
        register = type_in_register(dtype, "i64" in self.dialect.types)
        if register not in self.dialect.types or (
            dtype.bits == 64 and BITS[register] < 64 and dtype.kind == "uint"
        ):
            raise CompileError(
                f"{self.dialect.name} does not support {dtype.label} (in a computation of {self.place})"
            )
        return register

    def type(self, dtype: DType) -> str:
        """The type of a variable that holds a value."""
        return self.dialect.types[self.register(dtype)]

    # -- Literals --------------------------------------------------------------------------------------------

    def literal(self, value: float | np.generic, dtype: DType) -> str:
        """A number, rounded or wrapped to `dtype`, as text in its register type."""
        register = self.register(dtype)
        if dtype is boolean:
            return "true" if value else "false"
        if not dtype.is_float and isinstance(value, int):
            number = value & ((1 << dtype.bits) - 1)
            number -= (number >> (dtype.bits - 1) << dtype.bits) if dtype.is_signed else 0
            return self.integer(number, register)
        with np.errstate(all="ignore"):
            stored = np.asarray(value).astype(dtype.numpy)
        if not dtype.is_float:
            return self.integer(int(stored), register)
        real = float(stored) if dtype is f64 else np.float32(stored)
        if not np.isfinite(real):
            if np.isnan(real):
                return f"{self.call('nan', register)}()"
            infinity = f"{self.call('inf', register)}()"
            return infinity if real > 0 else f"(-{infinity})"
        # The shortest text of the greatest number lies above it, and some compilers refuse it.
        largest = abs(float(real)) == float(np.finfo(np.float32).max)
        digits = repr(float(real)) if largest else str(real)
        text = f"{digits}{self.dialect.suffixes.get(register, '')}"
        return f"({text})" if text.startswith("-") else text

    def integer(self, number: int, register: Register) -> str:
        """An integer as text in a register type. Values outside the type are clamped to it."""
        signed, bits = register[0] == "i", BITS[register]
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        number = max(low, min(high, number))
        suffix = self.dialect.suffixes.get(register, "")
        if number < 0:
            # The least number is no literal: its magnitude does not fit.
            return f"(-{-number - 1}{suffix} - 1{suffix})" if number == low else f"(-{-number}{suffix})"
        return f"{number}{suffix}"

    # -- Operations ------------------------------------------------------------------------------------------

    def expression(self, op: Operation, x: list[str]) -> str:
        """The result of a scalar operation on operands `x`, which are names or literals.

        Raises:
            CompileError: The language cannot express it.
        """
        if isinstance(op, scalar.Constant):
            return self.literal(op.value, op.dtype)
        if isinstance(op, scalar.Select):
            return self.select(x[0], x[1], x[2])
        if isinstance(op, scalar.Cast):
            return self.cast(x[0], op.x.type, op.dtype)
        if isinstance(op, scalar.Bitcast):
            return self.bitcast(x[0], op.x.type, op.dtype)
        name = op.name.removeprefix("scalar.")
        if isinstance(op, scalar.Unary):
            rough = notes.RELAXED_ACCURACY.get(op, False) and op.x.type is not f64
            return self.unary(name, op.x.type, x[0], rough)
        if isinstance(op, scalar.Binary):
            return self.binary(name, op.a.type, x[0], x[1], notes.IGNORE_NAN.get(op, False))
        raise CompileError(f"{self.dialect.name} cannot express '{op.name}' ({self.place})")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.dialect.select.format(condition=condition, a=a, b=b)

    def unary(self, name: str, dtype: DType, x: str, rough: bool = False) -> str:
        register = self.register(dtype)
        if name == "not" and dtype is boolean:
            return f"(!{x})"
        if name == "not":
            return self.wrap(f"(~{x})", dtype)
        if name == "neg":
            return f"(-{x})" if dtype.is_float else self.binary("sub", dtype, self.literal(0, dtype), x)
        if rough and f"rough_{name}.{register}" in self.dialect.functions:
            name = f"rough_{name}"
        result = f"{self.call(name, register)}({x})"
        return self.wrap(result, dtype) if name in _MAY_LEAVE else result

    def binary(self, name: str, dtype: DType, a: str, b: str, ignore_nan: bool = False) -> str:
        """``scalar.<name>`` of two operands. With `ignore_nan`, the result of a NaN is unspecified."""
        register = self.register(dtype)
        if dtype is boolean:
            return _BOOLEAN[name].format(a=a, b=b)
        if name == "ne" and dtype.is_float:
            return f"(!({a} == {b}))"  # WGSL's != is false for NaN.
        if name in _COMPARE:
            return f"({a} {_COMPARE[name]} {b})"
        if name in _BITWISE:
            return f"({a} {_BITWISE[name]} {b})"
        if name in _ARITHMETIC or (name == "div" and dtype.is_float):
            return self.wrap(self._arithmetic(_ARITHMETIC.get(name, "/"), register, a, b), dtype)
        if ignore_nan and f"number_{name}.{register}" in self.dialect.functions:
            name = f"number_{name}"
        result = f"{self.call(name, register)}({a}, {b})"
        return self.wrap(result, dtype) if name in _MAY_LEAVE else result

    def _arithmetic(self, sign: str, register: Register, a: str, b: str) -> str:
        if register[0] != "i" or self.dialect.wraps:
            return f"({a} {sign} {b})"
        # Overflow of signed numbers is undefined; that of unsigned ones wraps.
        unsigned = UNSIGNED[register]
        left, right = self.dialect.cast_to(unsigned, a), self.dialect.cast_to(unsigned, b)
        return self.dialect.cast_to(register, f"{left} {sign} {right}")

    def wrap(self, x: str, dtype: DType) -> str:
        """A narrow integer from the low bits of the number `x`, which has 32 bits."""
        if not dtype.is_integer or dtype.bits >= 32:
            return x
        if dtype.kind == "uint":
            return f"({x} & {self.integer((1 << dtype.bits) - 1, 'u32')})"
        shift = self.integer(32 - dtype.bits, "u32")
        if not self.dialect.wraps:
            left = self.dialect.cast_to("i32", f"{self.dialect.cast_to('u32', x)} << {shift}")
        else:
            left = f"({x} << {shift})"
        return f"({left} >> {shift})"

    # -- Conversions -----------------------------------------------------------------------------------------

    def cast(self, x: str, source: DType, target: DType) -> str:
        """``scalar.cast``."""
        old, new = self.register(source), self.register(target)
        if source is target:
            return x
        if target is boolean:
            return self.binary("ne", source, x, self.literal(0, source))
        if source is boolean:
            return self.select(x, self.literal(1, target), self.literal(0, target))
        if target.is_float:
            if new == "f32" and source.is_integer and source.bits <= 16 and self.dialect.slow_conversions:
                x = self._by_addition(x, source)
            else:
                x = x if old == new else self.dialect.cast_to(new, x)
            return self._rounded(x, target) if target.bits <= 16 else x
        if source.is_float:
            return self._to_integer(x, old, target)
        if (old, new) == ("i32", "i64"):
            return widened(self.dialect, self.call, x)
        return self.wrap(x if old == new else self.dialect.cast_to(new, x), target)

    def _by_addition(self, x: str, source: DType) -> str:
        """An integer of few bits as float32: it replaces the low bits of 1.5 * 2**23, which is subtracted.
        Signed numbers are counted from the least one.
        """
        low = 1 << (source.bits - 1) if source.is_signed else 0
        bits = x if self.register(source) == "u32" else self.dialect.cast_to("u32", x)
        mask, first = (self.integer(n, "u32") for n in ((1 << source.bits) - 1, 0x4B400000 | low))
        number = f"{self.call('as_f32', 'u32')}(({bits} & {mask}) ^ {first})"
        return f"({number} - {self.literal(12582912.0 + low, f32)})"

    def _rounded(self, x: str, dtype: DType) -> str:
        return f"{self.call('round', dtype.name)}({x})"

    def _to_integer(self, x: str, old: Register, target: DType) -> str:
        """A float truncated and clamped; NaN gives 0."""
        new = self.register(target)
        if target.bits < 32:
            # The limits are exact numbers of every float type.
            real = f64 if old == "f64" else f32
            low, high = (self.literal(float(limit), real) for limit in target.limits)
            x = f"{self.call('clamped', old)}({x}, {low}, {high})"
            return x if new == "i32" else self.dialect.cast_to(new, x)
        return f"{self.call(f'to_{new}', old)}({x})"

    def bitcast(self, x: str, source: DType, target: DType) -> str:
        """``scalar.bitcast``."""
        if source is target:
            return x
        if source.is_float and source.bits <= 16:
            x, old = f"{self.call(f'{source.name}_of', 'f32')}({x})", "u32"
        else:
            old = self.register(source)
        if target.is_float and target.bits <= 16:
            bits = x if old == "u32" else self.dialect.cast_to("u32", x)
            bits = f"({bits} & {self.integer((1 << target.bits) - 1, 'u32')})"
            return f"{self.call('f32_of', target.name)}({bits})"
        new = self.register(target)
        if old[0] == "f" or new[0] == "f":
            return x if old == new else f"{self.call(f'as_{new}', old)}({x})"
        return self.wrap(x if old == new else self.dialect.cast_to(new, x), target)


__all__ = ["Call", "ScalarText"]
