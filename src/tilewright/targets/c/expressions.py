"""Types, constants and arithmetic of LLVM as C11 expressions over scalars.

Integers are unsigned in C, where they wrap around as in LLVM; operations on signed ones cast. An integer
lies in the smallest type of C that holds it, with zeros above its bits. Elements of half and bfloat are their
bits (uint16_t); arithmetic on them is that of float, rounded.
"""

from __future__ import annotations

import math
import struct

from ...errors import InternalError
from .ir_text import Type

_SIZES = (8, 16, 32, 64)
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "ptr"}
FLAGS = frozenset(
    "nsw nuw exact fast nnan ninf nsz arcp contract afn reassoc samesign inbounds nneg disjoint nusw "
    "volatile".split()
)
"""Words after an opcode that allow LLVM more; without them results are the same or more exact."""

_SIGNED = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}
_UNSIGNED = {"eq": "==", "ne": "!=", "ult": "<", "ule": "<=", "ugt": ">", "uge": ">="}
_ORDERED = {"oeq": "==", "olt": "<", "ole": "<=", "ogt": ">", "oge": ">="}
_NOT_ORDERED = {"ult": ">=", "ule": ">", "ugt": "<=", "uge": "<"}
_INTEGER = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "udiv": "/", "urem": "%"}
_FLOAT = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}


def width(type_: Type) -> int:
    """Bits of the C type of a scalar integer.

    Raises:
        InternalError: More than 64 bits, which C11 lacks.
    """
    if type_.bits > 64:
        raise InternalError(f"C has no integers of {type_.bits} bits")
    return next(size for size in _SIZES if type_.bits <= size)


def c_type(type_: Type) -> str:
    """The C type of a scalar."""
    if type_.kind == "int":
        return f"uint{width(type_)}_t"
    return {"half": "uint16_t", "bfloat": "uint16_t", "ptr": "uint8_t*"}.get(type_.kind, type_.kind)


def suffix(type_: Type) -> str:
    """The end of the names of functions of `prelude.h` for this scalar: ``f32``, ``u8``."""
    return _SUFFIX.get(type_.kind) or f"u{width(type_)}"


def size_of(type_: Type) -> int:
    """Bytes of a scalar in memory, other than a pointer."""
    return (type_.bits if type_.is_float else width(type_)) // 8


_ZEROS = ("zeroinitializer", "poison", "undef", "null", "none")


def constant(type_: Type, text: str) -> str:
    """A constant of a scalar type as a C expression."""
    if text in _ZEROS:
        return {"ptr": "(uint8_t*)0", "float": "0.0f", "double": "0.0"}.get(type_.kind, "0")
    if type_.kind == "int":
        return integer(type_, int(text) if text not in _TRUTH else _TRUTH[text])
    if type_.kind in ("float", "double"):
        return number(type_, text)
    if type_.kind in ("half", "bfloat"):
        return f"UINT16_C({_small_bits(type_, text):#x})"
    raise InternalError(f"C has no constant {text} of the type {type_.kind}")


_TRUTH = {"true": 1, "false": 0}


def integer(type_: Type, value: int) -> str:
    """A number modulo the type's range."""
    value &= (1 << type_.bits) - 1
    return f"UINT{width(type_)}_C({value if value < 1 << 16 else hex(value)})"


def number(type_: Type, text: str) -> str:
    """A float or double, exactly."""
    value = _float(text)
    end = "f" if type_.kind == "float" else ""
    if math.isfinite(value):
        return f"{value.hex()}{end}" if value or math.copysign(1, value) < 0 else f"0.0{end}"
    if type_.kind == "float":
        bits = 0x7FC00000 if math.isnan(value) else 0x7F800000 | (value < 0) << 31
        return f"tw_f32_of({bits:#x}u)"
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"tw_f64_of(UINT64_C({bits:#x}))"


def static_number(type_: Type, text: str) -> str:
    """A number in an initializer, where no function may be called."""
    if type_.kind not in ("float", "double") or text in _ZEROS or math.isfinite(value := _float(text)):
        return constant(type_, text)
    return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def _float(text: str) -> float:
    if text.startswith("0x"):
        return float(struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0])
    return float(text)


def _small_bits(type_: Type, text: str) -> int:
    """The bits of a constant of 16 bits: ``0xH3C00``, ``0xR3F80``, or a decimal number."""
    if text[:3] in ("0xH", "0xR"):
        return int(text[3:], 16)
    value = _float(text)
    if type_.kind == "half":
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16


def signed(type_: Type, value: str) -> str:
    """The value of a signed integer, in a signed C type."""
    bits = width(type_)
    if type_.bits == bits:
        return f"(int{bits}_t){value}"
    return f"((int{bits}_t)((uint{bits}_t)({value} << {bits - type_.bits})) >> {bits - type_.bits})"


def masked(type_: Type, value: str) -> str:
    """An integer cut to its bits, in its C type."""
    bits = width(type_)
    if type_.bits == bits:
        return f"(uint{bits}_t)({value})"
    return f"(uint{bits}_t)(({value}) & {hex((1 << type_.bits) - 1)}u)"


def binary(opcode: str, type_: Type, a: str, b: str) -> str:
    """An instruction with two operands of one scalar type.

    Raises:
        InternalError: It is not known.
    """
    if opcode in _FLOAT or opcode == "frem":
        if type_.kind in ("half", "bfloat"):
            wide = Type("float", 32)
            return narrow(type_, binary(opcode, wide, widen(type_, a), widen(type_, b)))
        if opcode == "frem":
            return f"fmod{'f' if type_.kind == 'float' else ''}({a}, {b})"
        return f"{a} {_FLOAT[opcode]} {b}"
    if opcode in _INTEGER:
        first = a if type_.bits > 16 else f"(uint32_t){a}"  # small operands would become signed
        return masked(type_, f"{first} {_INTEGER[opcode]} {b}")
    if opcode in ("shl", "lshr"):
        first = a if type_.bits > 16 else f"(uint32_t){a}"
        return masked(type_, f"{first} {'<<' if opcode == 'shl' else '>>'} {b}")
    if opcode == "ashr":
        return masked(type_, f"{signed(type_, a)} >> {b}")
    if opcode in ("sdiv", "srem"):
        return masked(type_, f"{signed(type_, a)} {'/' if opcode == 'sdiv' else '%'} {signed(type_, b)}")
    raise InternalError(f"C code for the instruction {opcode} is not known")


def compare(predicate: str, type_: Type, a: str, b: str) -> str:
    """A comparison, as 0 or 1."""
    if type_.is_float:
        if type_.kind in ("half", "bfloat"):
            a, b = widen(type_, a), widen(type_, b)
        return _compare_floats(predicate, a, b)
    if predicate in _SIGNED:
        return f"{signed(type_, a)} {_SIGNED[predicate]} {signed(type_, b)}"
    return f"{a} {_UNSIGNED[predicate]} {b}"


def _compare_floats(predicate: str, a: str, b: str) -> str:
    if predicate in _ORDERED:
        return f"{a} {_ORDERED[predicate]} {b}"
    if predicate in _NOT_ORDERED:
        return f"!({a} {_NOT_ORDERED[predicate]} {b})"
    other = {
        "une": f"{a} != {b}",
        "one": f"{a} < {b} || {a} > {b}",
        "ueq": f"!({a} < {b} || {a} > {b})",
        "ord": f"{a} == {a} && {b} == {b}",
        "uno": f"{a} != {a} || {b} != {b}",
    }
    return other[predicate]


def widen(type_: Type, value: str) -> str:
    """A half or bfloat as a float."""
    return f"tw_f32_from_{suffix(type_)}({value})"


def narrow(type_: Type, value: str) -> str:
    """A float rounded to a half or bfloat."""
    return f"tw_{suffix(type_)}_from_f32({value})"


def convert(opcode: str, source: Type, value: str, to: Type) -> str:
    """A conversion of a scalar.

    Raises:
        InternalError: It is not known.
    """
    if source.kind in ("half", "bfloat") and opcode != "bitcast":
        value, source = widen(source, value), Type("float", 32)
    if opcode in ("zext", "trunc", "ptrtoint"):
        return masked(to, f"(uintptr_t){value}" if opcode == "ptrtoint" else value)
    if opcode == "inttoptr":
        return f"(uint8_t*)(uintptr_t){value}"
    if opcode == "sext":
        return masked(to, f"(int64_t){signed(source, value)}")
    if opcode in ("fpext", "fptrunc"):
        if to.kind not in ("half", "bfloat"):
            return f"({c_type(to)}){value}"
        return f"tw_{suffix(to)}_from_{suffix(source)}({value})"
    if opcode in ("sitofp", "uitofp"):
        number = signed(source, value) if opcode == "sitofp" else value
        if to.kind in ("half", "bfloat"):
            return f"tw_{suffix(to)}_from_f64((double){number})"
        return f"({to.kind}){number}"
    if opcode in ("fptosi", "fptoui"):
        return masked(to, f"({'' if opcode == 'fptosi' else 'u'}int64_t){value}")
    if opcode == "bitcast" and source.bits == to.bits:
        small = {"half", "bfloat", "int"}
        if source == to or {source.kind, to.kind} <= small:
            return value
        return f"tw_{suffix(to)}_of({value})" if to.is_float else f"tw_bits_of_{suffix(source)}({value})"
    raise InternalError(f"C code for the conversion {opcode} is not known")


__all__ = [
    "FLAGS",
    "binary",
    "c_type",
    "compare",
    "constant",
    "convert",
    "integer",
    "masked",
    "narrow",
    "signed",
    "size_of",
    "static_number",
    "suffix",
    "widen",
    "width",
]
