"""Functions of the prelude that all languages of the C family share, told once in a neutral notation.

In the notation, ``i32``, ``f64``, ... are the register types, also as conversions (``i32(x)``);
``@exp.f32(x)`` is a scalar function on a register type; ``FN`` is the qualifier of functions. In texts for
several types, ``$T`` is the type and ``$U`` its unsigned partner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from ...errors import CompileError
from .dialect import BITS, UNSIGNED, Dialect, Register

_SIGNED = {
    "div": "(b == $T(0) ? a : b == $T(-1) ? $T($U(0) - $U(a)) : a / b)",
    "rem": "((b == $T(0) || b == $T(-1)) ? $T(0) : a % b)",
    "abs": "(a < $T(0) ? $T($U(0) - $U(a)) : a)",
    "sign": "(a > $T(0) ? $T(1) : a < $T(0) ? $T(-1) : $T(0))",
    "shr": "(a >> ($U(b) < $U($B) ? b : $T($B - 1)))",
}
_UNSIGNED = {
    "div": "(b == $T(0) ? a : a / b)",
    "rem": "(b == $T(0) ? $T(0) : a % b)",
    "floordiv": "(b == $T(0) ? a : a / b)",
    "mod": "(b == $T(0) ? $T(0) : a % b)",
    "abs": "a",
    "sign": "(a != $T(0) ? $T(1) : $T(0))",
    "shr": "(b < $T($B) ? a >> b : $T(0))",
}
_INTEGER = {
    "shl": "($U(b) < $U($B) ? $T($U(a) << $U(b)) : $T(0))",
    "min": "(a < b ? a : b)",
    "max": "(a > b ? a : b)",
}
_FLOAT = {
    "min": "((a < b || a != a) ? a : b)",
    "max": "((a > b || a != a) ? a : b)",
    "sign": "(a > $T(0) ? $T(1) : a < $T(0) ? $T(-1) : a + $T(0))",
    "isnan": "(a != a)",
    "isinf": "(@abs.$R(a) == @inf.$R())",
    "rsqrt": "($T(1) / @sqrt.$R(a))",
    "sigmoid": "($T(1) / ($T(1) + @exp.$R(-a)))",
}
_UNARY = ("abs", "sign", "isnan", "isinf", "rsqrt", "sigmoid")

_FLOORDIV = """FN $T tw_floordiv_$R($T a, $T b) {
  $T q = @div.$R(a, b);
  return (b != $T(0) && b != $T(-1) && q * b != a && (a < $T(0)) != (b < $T(0))) ? q - $T(1) : q;
}
"""
_MOD = """FN $T tw_mod_$R($T a, $T b) {
  $T r = @rem.$R(a, b);
  return (r != $T(0) && (r < $T(0)) != (b < $T(0))) ? r + b : r;
}
"""
_POW = """FN $T tw_pow_$R($T a, $T b) {
$NEGATIVE  $U result = $U(1);
  $U power = $U(a);
  for ($U left = $U(b); left != $U(0); left >>= 1) {
    if ((left & $U(1)) != $U(0)) { result *= power; }
    power *= power;
  }
  return $T(result);
}
"""
_NEGATIVE = """  if (b < $T(0)) {
    return a == $T(1) ? a : a != $T(-1) ? $T(0) : (b & $T(1)) != $T(0) ? $T(-1) : $T(1);
  }
"""
# Python's remainder and quotient, as NumPy computes them.
_FLOAT_MOD = """FN $T tw_mod_$R($T a, $T b) {
  $T r = @rem.$R(a, b);
  if (r == $T(0)) { return @copysign.$R($T(0), b); }
  return (r < $T(0)) != (b < $T(0)) ? r + b : r;
}
"""
_FLOAT_FLOORDIV = """FN $T tw_floordiv_$R($T a, $T b) {
  if (b == $T(0)) { return a / b; }
  $T r = @rem.$R(a, b);
  $T q = @round.$R((a - r) / b);
  q = (r != $T(0) && (b < $T(0)) != (r < $T(0))) ? q - $T(1) : q;
  return q == $T(0) ? @copysign.$R($T(0), a / b) : q;
}
"""
_TO_INTEGER = """FN $I tw_to_$I_$R($T x) {
  if (!(x > $T($LOW))) { return $LEAST; }
  return x >= $T($HIGH) ? $MOST : $I(x);
}
"""
_CLAMPED = """FN i32 tw_clamped_$R($T x, $T low, $T high) {
  $T y = x > low ? x : low;
  y = y < high ? y : high;
  return x == x ? i32(y) : 0;
}
"""

_HALF = {
    "tw_f32_of_f16": """FN f32 tw_f32_of_f16(u32 h) {
  u32 magnitude = (h & 0x7fffu) << 13;
  f32 scaled = @as_f32.u32(magnitude) * 5.192296858534828e33f;
  u32 bits = scaled >= 65536.0f ? magnitude | 0x7f800000u : @as_u32.f32(scaled);
  return @as_f32.u32(bits | ((h & 0x8000u) << 16));
}
""",
    # Rounds to nearest even. Source: F. Giesen, "float_to_half_fast3_rtne".
    "tw_f16_of_f32": """FN u32 tw_f16_of_f32(f32 x) {
  u32 bits = @as_u32.f32(x);
  u32 magnitude = bits & 0x7fffffffu;
  u32 result;
  if (magnitude >= 0x47800000u) {
    result = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    result = @as_u32.f32(@as_f32.u32(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    result = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return result | ((bits >> 16) & 0x8000u);
}
""",
    "tw_f32_of_bf16": "FN f32 tw_f32_of_bf16(u32 h) { return @as_f32.u32(h << 16); }\n",
    "tw_bf16_of_f32": """FN u32 tw_bf16_of_f32(f32 x) {
  u32 bits = @as_u32.f32(x);
  u32 high = bits >> 16;
  return x != x ? high | 0x40u : (bits + 0x7fffu + (high & 1u)) >> 16;
}
""",
    "tw_round_f16": "FN f32 tw_round_f16(f32 x) { return tw_f32_of_f16(tw_f16_of_f32(x)); }\n",
    "tw_round_bf16": "FN f32 tw_round_bf16(f32 x) { return tw_f32_of_bf16(tw_bf16_of_f32(x)); }\n",
}


def _limits(register: Register) -> tuple[str, str]:
    """The least and the largest integer of a register type as text."""
    bits, high = BITS[register], BITS[register] - (register[0] == "i")
    if register[0] == "u":
        return f"{register}(0)", f"~{register}(0)"
    unsigned = UNSIGNED[register]
    least = f"{register}({unsigned}(1) << {bits - 1})"
    return least, f"{register}(({unsigned}(1) << {high}) - {unsigned}(1))"


@cache
def _shared() -> dict[str, str]:
    texts = dict(_HALF)

    def add(name: str, register: Register, text: str) -> None:
        unsigned = UNSIGNED.get(register, register)
        for mark, value in (
            ("$T", register),
            ("$U", unsigned),
            ("$R", register),
            ("$B", str(BITS[register])),
        ):
            text = text.replace(mark, value)
        texts[f"tw_{name}_{register}"] = text

    def add_all(register: Register, *tables: dict[str, str]) -> None:
        for name, expression in (item for table in tables for item in table.items()):
            result = "bool" if name.startswith("is") else "$T"
            parameters = "$T a" if name in _UNARY else "$T a, $T b"
            add(name, register, f"FN {result} tw_{name}_$R({parameters}) {{ return {expression}; }}\n")

    for signed in ("i32", "i64"):
        add_all(signed, _SIGNED, _INTEGER)
        add("floordiv", signed, _FLOORDIV)
        add("mod", signed, _MOD)
        add("pow", signed, _POW.replace("$NEGATIVE", _NEGATIVE))
    for unsigned in ("u32", "u64"):
        add_all(unsigned, _UNSIGNED, _INTEGER)
        add("pow", unsigned, _POW.replace("$NEGATIVE", ""))
    for real in ("f32", "f64"):
        add_all(real, _FLOAT)
        add("mod", real, _FLOAT_MOD)
        add("floordiv", real, _FLOAT_FLOORDIV)
        add("clamped", real, _CLAMPED)
        for integer in ("i32", "u32", "i64", "u64"):
            least, most = _limits(integer)
            low = -float(2 ** (BITS[integer] - 1)) if integer[0] == "i" else 0.0
            if integer[0] == "i":
                least = f"(x != x ? {integer}(0) : {least})"
            text = _TO_INTEGER.replace("$LEAST", least).replace("$MOST", most).replace("$I", integer)
            high = float(2 ** (BITS[integer] - (integer[0] == "i")))
            add(f"to_{integer}", real, text.replace("$LOW", f"{low!r}").replace("$HIGH", f"{high!r}"))
    return texts


_TYPE = re.compile(r"(?<![.@\w])(bool|[iuf](?:32|64))\b(\()?")
_CALL = re.compile(r"@(\w+)\.(\w+)")
_OWN = re.compile(r"\btw_\w+")


def callee(dialect: Dialect, name: str, register: Register | str) -> str:
    """The name of the function that computes ``scalar.<name>`` on a register type."""
    return dialect.functions.get(f"{name}.{register}") or f"tw_{name}_{register}"


def render(dialect: Dialect, text: str) -> str:
    """The neutral notation in a language."""

    def type_name(match: re.Match[str]) -> str:
        name = dialect.types[match[1]]  # type: ignore[index]
        if match[2] is None:
            return name
        return dialect.cast.partition("{value}")[0].format(type=name)

    text = _CALL.sub(lambda m: callee(dialect, m[1], m[2]), text)
    return re.sub(r"\bFN ", f"{dialect.function} ".lstrip(), _TYPE.sub(type_name, text))


def definition(dialect: Dialect, name: str) -> str:
    """The definition of a function of the prelude.

    Raises:
        CompileError: The language has no such function.
    """
    text = dialect.prelude.get(name) or _shared().get(name)
    if text is None:
        function, _, register = name.removeprefix("tw_").rpartition("_")
        raise CompileError(f"{dialect.name} has no function '{function}' for {register}")
    condition, instructions = dialect.instructions
    if name in instructions:
        text = f"#if {condition}\n{instructions[name]}#else\n{text}#endif\n"
    return render(dialect, text)


def definitions(dialect: Dialect, uses: Iterable[str]) -> list[str]:
    """The definitions of functions and of those that they use, in order of use.

    Raises:
        CompileError: See `definition`.
    """
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        text = definition(dialect, name)
        for other in dict.fromkeys(_OWN.findall(text)):
            if other != name:
                visit(other)
        done[name] = text

    for name in sorted(n for n in uses if n.startswith("tw_")):
        visit(name)
    return list(done.values())


__all__ = ["callee", "definition", "definitions", "render"]
