"""Floats of 8, 6 and 4 bits in the neutral notation (see `prelude`): bits in memory, float32 in registers.

The formats and the rules of rounding are those of `targets.llvm.minifloats`. Float32 numbers too small to be
normal are not used, since devices may replace them by 0.
"""

from __future__ import annotations

from ...ir.types import FLOAT6, FLOAT8, DType, f4
from ..llvm.minifloats import format_of
from .dialect import Storage

MINIFLOATS: tuple[DType, ...] = (*FLOAT8, *FLOAT6, f4)
"""The types, each of which takes a byte."""

_DECODE = """FN f32 tw_f32_of_$NAME(u32 code) {
  u32 magnitude = code & $MAGNITUDE;
  u32 bits = (magnitude << $SHIFT) + $REBASED;
  if (magnitude < $NORMAL) { bits = @as_u32.f32(f32(magnitude) * $LEAST); }
$SPECIAL  return @as_f32.u32(bits | ((code & $SIGN) << $TO_SIGN));
}
"""
_ENCODE = """FN u32 tw_$NAME_of_f32(f32 x) {
  u32 bits = @as_u32.f32(x);
  u32 magnitude = bits & 0x7fffffffu;
  u32 sign = (bits >> $TO_SIGN) & $SIGN;
  u32 result = (magnitude + $ROUNDING + ((magnitude >> $SHIFT) & 1u)) >> $SHIFT;
  if (magnitude < $SMALL) { result = @as_u32.f32(@as_f32.u32(magnitude) + $ALIGN) - $ALIGN_BITS; }
  if (result > $LARGEST) { result = $INFINITY; }
  if (magnitude > 0x7f800000u) { return $NAN; }
  return $SIGNED;
}
"""
_POWER = {
    "tw_f32_of_f8E8M0FNU": """FN f32 tw_f32_of_f8E8M0FNU(u32 code) {
  u32 bits = select(code == 0u, 0x400000u, select(code == 255u, 0x7fc00000u, code << 23u));
  return @as_f32.u32(bits);
}
""",
    "tw_f8E8M0FNU_of_f32": """FN u32 tw_f8E8M0FNU_of_f32(f32 x) {
  u32 bits = @as_u32.f32(x);
  u32 code = (bits + select(bits >= 0x800000u, 0x400000u, 0x3fffffu)) >> 23u;
  return select(bits - 1u < 0x7f800000u, code, 255u);
}
""",
}


def functions(dtype: DType) -> dict[str, str]:
    """The definitions of the functions that convert a type to and from float32, and that round to it."""
    name = dtype.name
    rounding = f"FN f32 tw_round_{name}(f32 x) {{ return tw_f32_of_{name}(tw_{name}_of_f32(x)); }}\n"
    texts = {f"tw_round_{name}": rounding}
    if name == "f8E8M0FNU":
        return texts | _POWER
    f = format_of(dtype)
    shift, aligned = 23 - f.mantissa, 24 - f.bias - f.mantissa
    special = ""
    if f.unsigned_zero:
        special = f"  if (code == {f.nan}u) {{ return @nan.f32(); }}\n"
    elif f.bits == 8:
        special = f"  if (magnitude > {f.largest}u) {{ bits = bits | 0x7f800000u; }}\n"
    marks = {
        "$NAME": name,
        "$MAGNITUDE": f"{f.sign - 1}u",
        "$TO_SIGN": f"{32 - f.bits}u",
        "$SHIFT": f"{shift}u",
        "$REBASED": f"{(127 - f.bias) << 23}u",
        "$NORMAL": f"{1 << f.mantissa}u",
        "$LEAST": f"{2.0 ** (1 - f.bias - f.mantissa)!r}$F",
        "$SPECIAL": special,
        "$ROUNDING": f"{(((f.bias - 127) << 23) + (1 << (shift - 1)) - 1) % 2**32}u",
        "$SMALL": f"{(128 - f.bias) << 23}u",
        "$ALIGN_BITS": f"{(127 + aligned) << 23}u",
        "$ALIGN": f"{2.0**aligned!r}$F",
        "$LARGEST": f"{f.largest}u",
        "$INFINITY": f"{f.infinity}u",
        "$NAN": f"(sign | {f.nan}u)" if f.nan < f.sign else f"{f.nan}u",
        "$SIGNED": "select(result == 0u, 0u, sign | result)" if f.unsigned_zero else "sign | result",
        "$SIGN": f"{f.sign}u",
    }
    for kind, text in ((f"tw_f32_of_{name}", _DECODE), (f"tw_{name}_of_f32", _ENCODE)):
        for mark, value in marks.items():
            text = text.replace(mark, value)
        texts[kind] = text
    return texts


def stored_as(kind: str, load: str = "{}", store: str = "{}") -> dict[DType, Storage]:
    """How a language stores the types, in a type `kind` of 8 bits, with the conversions of such an element to
    a number of 32 bits and back.
    """
    return {
        dtype: Storage(
            kind,
            f"tw_f32_of_{dtype.name}({load})",
            store.format(f"tw_{dtype.name}_of_f32({{}})"),
        )
        for dtype in MINIFLOATS
    }


__all__ = ["MINIFLOATS", "functions", "stored_as"]
