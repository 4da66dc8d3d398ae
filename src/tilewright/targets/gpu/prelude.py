"""Functions of the prelude that all languages share, told once in a neutral notation.

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
from .formulas import LARGE_ANGLE, function_text
from .large_angles import functions as functions_of_large_angles
from .minifloats import MINIFLOATS, functions

_SIGNED = {
    "div": "select(b == $T(0), a, select(b == $T(-1), $T($U(0) - $U(a)), a / b))",
    "rem": "select(b == $T(0) || b == $T(-1), $T(0), a % b)",
    "abs": "select(a < $T(0), $T($U(0) - $U(a)), a)",
    "sign": "select(a > $T(0), $T(1), select(a < $T(0), $T(-1), $T(0)))",
    "shr": "(a >> select($U(b) < $U($B), $U(b), $U($B - 1)))",
}
_UNSIGNED = {
    "div": "select(b == $T(0), a, a / b)",
    "rem": "select(b == $T(0), $T(0), a % b)",
    "floordiv": "select(b == $T(0), a, a / b)",
    "mod": "select(b == $T(0), $T(0), a % b)",
    "abs": "a",
    "sign": "select(a != $T(0), $T(1), $T(0))",
    "shr": "select(b < $T($B), a >> (b & $T($B - 1)), $T(0))",
}
_INTEGER = {
    "shl": "select($U(b) < $U($B), $T($U(a) << ($U(b) & $U($B - 1))), $T(0))",
    "min": "select(a < b, a, b)",
    "max": "select(a > b, a, b)",
}
_FLOAT = {
    "min": "select(a < b || @isnan.$R(a), a, b)",
    "max": "select(a > b || @isnan.$R(a), a, b)",
    "sign": "select(a > $T(0), $T(1), select(a < $T(0), $T(-1), a + $T(0)))",
    "isnan": "(a != a)",
    "isinf": "(@abs.$R(a) == @inf.$R())",
    "rsqrt": "($T(1) / @sqrt.$R(a))",
    "sigmoid": "($T(1) / ($T(1) + @exp.$R(-a)))",
}
_UNARY = ("abs", "sign", "isnan", "isinf", "rsqrt", "sigmoid")

_FLOORDIV = """FN $T tw_floordiv_$R($T a, $T b) {
  $T q = @div.$R(a, b);
  return select(b != $T(0) && b != $T(-1) && q * b != a && (a < $T(0)) != (b < $T(0)), q - $T(1), q);
}
"""
_MOD = """FN $T tw_mod_$R($T a, $T b) {
  $T r = @rem.$R(a, b);
  return select(r != $T(0) && (r < $T(0)) != (b < $T(0)), r + b, r);
}
"""
_POW = """FN $T tw_pow_$R($T a, $T b) {
$NEGATIVE  $U result = $U(1);
  $U power = $U(a);
  for ($U left = $U(b); left != $U(0); left >>= 1u) {
    if ((left & $U(1)) != $U(0)) { result *= power; }
    power *= power;
  }
  return $T(result);
}
"""
_NEGATIVE = """  if (b < $T(0)) {
    return select(a == $T(1), a, select(a != $T(-1), $T(0), select((b & $T(1)) != $T(0), $T(-1), $T(1))));
  }
"""
# Python's remainder and quotient, as NumPy computes them.
_FLOAT_MOD = """FN $T tw_mod_$R($T a, $T b) {
  $T r = @rem.$R(a, b);
  if (r == $T(0)) { return @copysign.$R($T(0), b); }
  return select((r < $T(0)) != (b < $T(0)), r + b, r);
}
"""
_FLOAT_FLOORDIV = """FN $T tw_floordiv_$R($T a, $T b) {
  if (b == $T(0)) { return a / b; }
  $T r = @rem.$R(a, b);
  $T q = @round.$R((a - r) / b);
  q = select(r != $T(0) && (b < $T(0)) != (r < $T(0)), q - $T(1), q);
  return select(q == $T(0), @copysign.$R($T(0), a / b), q);
}
"""
_TO_INTEGER = """FN $I tw_to_$I_$R($T x) {
  if (!(x > $T($LOW))) { return $LEAST; }
  if (x >= $T($HIGH)) { return $MOST; }
  return $I(x);
}
"""
# C's fmod, exact by long division: one bit of the quotient a step.
_REMAINDER = """FN $T tw_rem_$R($T a, $T b) {
  $U x = @as_$U.$R(@abs.$R(a));
  $U y = @as_$U.$R(@abs.$R(b));
  if (x >= $INFINITY || y > $INFINITY || y == $U(0)) { return @nan.$R(); }
  if (x < y) { return a; }
  i32 ex = i32(x >> $MANTISSAu);
  i32 ey = i32(y >> $MANTISSAu);
  $U mx = x & $LOW;
  $U my = y & $LOW;
  if (ex == 0) { ex = 1; } else { mx = mx | $ONE; }
  if (ey == 0) { ey = 1; } else { my = my | $ONE; }
  for (; mx < $ONE; ex--) { mx = mx << 1u; }
  for (; my < $ONE; ey--) { my = my << 1u; }
  for (; ex > ey; ex--) {
    if (mx >= my) { mx -= my; }
    mx = mx << 1u;
  }
  if (mx >= my) { mx -= my; }
  if (mx == $U(0)) { return @copysign.$R($T(0), a); }
  for (; mx < $ONE; ey--) { mx = mx << 1u; }
  $U bits = select(ey > 0, ($U(ey) << $MANTISSAu) | (mx & $LOW), mx >> u32(1 - ey));
  return @copysign.$R(@as_$R.$U(bits), a);
}
"""
_LAYOUT = {
    "f32": {"$MANTISSA": "23", "$INFINITY": "0x7f800000u", "$LOW": "0x7fffffu", "$ONE": "0x800000u"},
    "f64": {
        "$MANTISSA": "52",
        "$INFINITY": "0x7ff0000000000000$Q",
        "$LOW": "0xfffffffffffff$Q",
        "$ONE": "0x10000000000000$Q",
    },
}
_CLAMPED = """FN i32 tw_clamped_$R($T x, $T low, $T high) {
  $T y = select(x > low, x, low);
  y = select(y < high, y, high);
  return select(@isnan.$R(x), i32(0), i32(y));
}
"""

_HALF = {
    "tw_f32_of_f16": """FN f32 tw_f32_of_f16(u32 h) {
  u32 magnitude = (h & 0x7fffu) << 13u;
  f32 scaled = @as_f32.u32(magnitude) * 5.192296858534828e33$F;
  u32 bits = select(scaled >= 65536.0$F, magnitude | 0x7f800000u, @as_u32.f32(scaled));
  return @as_f32.u32(bits | ((h & 0x8000u) << 16u));
}
""",
    # Rounds to nearest even. Source: F. Giesen, "float_to_half_fast3_rtne".
    "tw_f16_of_f32": """FN u32 tw_f16_of_f32(f32 x) {
  u32 bits = @as_u32.f32(x);
  u32 magnitude = bits & 0x7fffffffu;
  u32 result = 0u;
  if (magnitude >= 0x47800000u) {
    result = select(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
  } else if (magnitude < 0x38800000u) {
    result = @as_u32.f32(@as_f32.u32(magnitude) + 0.5$F) - 0x3f000000u;
  } else {
    result = (magnitude + 0xc8000fffu + ((magnitude >> 13u) & 1u)) >> 13u;
  }
  return result | ((bits >> 16u) & 0x8000u);
}
""",
    "tw_f32_of_bf16": "FN f32 tw_f32_of_bf16(u32 h) { return @as_f32.u32(h << 16u); }\n",
    "tw_bf16_of_f32": """FN u32 tw_bf16_of_f32(f32 x) {
  u32 bits = @as_u32.f32(x);
  u32 high = bits >> 16u;
  return select(@isnan.f32(x), high | 0x40u, (bits + 0x7fffu + (high & 1u)) >> 16u);
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
    least = f"{register}({unsigned}(1) << {bits - 1}u)"
    return least, f"{register}(({unsigned}(1) << {high}u) - {unsigned}(1))"


@cache
def _shared() -> dict[str, str]:
    texts = dict(_HALF)
    texts |= functions_of_large_angles(LARGE_ANGLE)
    for dtype in MINIFLOATS:
        texts |= functions(dtype)

    def add(name: str, register: Register, text: str) -> None:
        unsigned = UNSIGNED.get(register) or register.replace("f", "u")
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
    marks: dict[Register, str] = {"f32": "$F", "f64": "$D"}
    for real, mark in marks.items():
        add_all(real, _FLOAT)
        add("mod", real, _FLOAT_MOD)
        add("floordiv", real, _FLOAT_FLOORDIV)
        add("clamped", real, _CLAMPED)
        remainder = _REMAINDER
        for name, value in _LAYOUT[real].items():
            remainder = remainder.replace(name, value)
        add("rem", real, remainder)
        for integer in ("i32", "u32", "i64", "u64"):
            least, most = _limits(integer)
            low = -float(2 ** (BITS[integer] - 1)) if integer[0] == "i" else 0.0
            if integer[0] == "i":
                least = f"select(@isnan.{real}(x), {integer}(0), {least})"
            text = _TO_INTEGER.replace("$LEAST", least).replace("$MOST", most).replace("$I", integer)
            high = float(2 ** (BITS[integer] - (integer[0] == "i")))
            add(
                f"to_{integer}",
                real,
                text.replace("$T($LOW)", f"({low!r}{mark})").replace("$T($HIGH)", f"{high!r}{mark}"),
            )
    return texts


_TYPE = re.compile(r"(?<![.@\w])(bool|[iuf](?:32|64))\b(\()?")
_CALL = re.compile(r"@(\w+)\.(\w+)")
_OWN = re.compile(r"\btw_(?!params\b|sim_|cp_)\w+")
_HEAD = re.compile(r"^FN (\w+) (\w+)\((.*)\) \{", re.MULTILINE)
_VARIABLE = re.compile(r"(?<=[ (])(bool|[iuf](?:32|64)) (\w+) = ([^;]*);")


def callee(dialect: Dialect, name: str, register: Register | str) -> str:
    """The name of the function that computes ``scalar.<name>`` on a register type."""
    return dialect.functions.get(f"{name}.{register}") or f"tw_{name}_{register}"


def render(dialect: Dialect, text: str) -> str:
    """The neutral notation in a language."""

    def head(match: re.Match[str]) -> str:
        parameters = (p.split() for p in match[3].split(", ") if p)
        given = ", ".join(dialect.parameter.format(type=kind, name=name) for kind, name in parameters)
        return dialect.function.format(result=match[1], name=match[2], parameters=given)

    def variable(match: re.Match[str]) -> str:
        exact = dialect.exact if match[1][0] == "f" else ""
        return exact + dialect.variable.format(type=match[1], name=match[2], value=match[3])

    def type_name(match: re.Match[str]) -> str:
        name = dialect.types[match[1]]  # type: ignore[index]
        if match[2] is None:
            return name
        return dialect.cast.partition("{value}")[0].format(type=name)

    text = _VARIABLE.sub(variable, _HEAD.sub(head, text))
    text = _selections(text, dialect.select)
    text = _TYPE.sub(type_name, _CALL.sub(lambda m: callee(dialect, m[1], m[2]), text))
    for mark, register in (("$F", "f32"), ("$D", "f64"), ("$L", "i64"), ("$Q", "u64")):
        text = text.replace(mark, dialect.suffixes.get(register, ""))  # type: ignore[call-overload]
    return text


def _selections(text: str, form: str) -> str:
    """Replace ``select(condition, a, b)`` by the language's form, innermost last."""
    done = 0
    while (start := text.find("select(", done)) >= 0:
        depth, parts, begin = 0, [], start + len("select(")
        for k in range(begin, len(text)):
            if text[k] in ",)" and depth == 0:
                parts.append(text[begin:k].strip())
                begin = k + 1
                if text[k] == ")":
                    break
            depth += (text[k] == "(") - (text[k] == ")")
        condition, a, b = parts
        whole = form.format(condition=condition, a=a, b=b)
        done = start + len("select(") if whole.startswith("select(") else start
        text = text[:start] + whole + text[begin:]
    return text


def definition(dialect: Dialect, name: str) -> str:
    """The definition of a function of the prelude.

    Raises:
        CompileError: The language has no such function.
    """
    text = dialect.prelude.get(name) or _shared().get(name) or _formula(dialect, name)
    if text is None:
        function, _, register = name.removeprefix("tw_").rpartition("_")
        raise CompileError(f"{dialect.name} has no function '{function}' for {register}")
    condition, instructions = dialect.instructions
    if name in instructions:
        text = f"#if {condition}\n{instructions[name]}#else\n{text}#endif\n"
    return render(dialect, text)


def _formula(dialect: Dialect, name: str) -> str | None:
    """The definition of a mathematical function by a formula."""
    function, _, register = name.removeprefix("tw_").rpartition("_")
    if register not in dialect.types or register not in ("f32", "f64"):
        return None
    return function_text(function, BITS[register], dialect.fused, dialect.opaque)  # type: ignore[index]


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
