"""The parameters of a kernel in a source of the user's: CUDA C++, HIP, OpenCL C or Metal's language.

A kernel of the user's keeps the parameters that it has, in its own order. They are found by name, so only the
declaration is read; everything else is the compiler's task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

QUALIFIERS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("__global__",),
    "hip": ("__global__",),
    "opencl": ("__kernel", "kernel"),
    "metal": ("kernel",),
}
"""The words before a kernel's function by language."""

ELEMENTS: Mapping[str, tuple[DType, ...]] = {
    **dict.fromkeys(("float",), (f32,)),
    **dict.fromkeys(("double",), (f64,)),
    **dict.fromkeys(("half", "__half", "_Float16"), (f16,)),
    **dict.fromkeys(("bfloat", "__nv_bfloat16", "nv_bfloat16", "__hip_bfloat16", "hip_bfloat16"), (bf16,)),
    **dict.fromkeys(("bool",), (boolean,)),
    **dict.fromkeys(("char", "signed char", "int8_t"), (i8,)),
    **dict.fromkeys(("unsigned char", "uchar", "uint8_t"), (u8, boolean)),
    **dict.fromkeys(("short", "int16_t"), (i16,)),
    **dict.fromkeys(("unsigned short", "ushort", "uint16_t"), (u16, f16, bf16)),
    **dict.fromkeys(("int", "signed int", "int32_t"), (i32,)),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), (u32,)),
    **dict.fromkeys(("long", "long int", "long long", "long long int", "int64_t", "ptrdiff_t"), (i64,)),
    **dict.fromkeys(("unsigned long", "unsigned long long", "ulong", "uint64_t", "size_t"), (u64,)),
}
"""Types of elements and numbers by their names; 16-bit floats may be integers with their bits. Types that are
missing here, such as vectors, are not checked.
"""

_SKIPPED = frozenset(
    "const volatile restrict __restrict __restrict__ register struct global __global device constant "
    "__constant local __local threadgroup thread __grid_constant__".split()
)


class SignatureError(Exception):
    """A declaration that cannot be read; the text says why."""


@dataclass(frozen=True)
class SourceParameter:
    """A parameter as a source declares it."""

    text: str
    """The declaration."""
    name: str
    type: str
    """The type of the value, or of what it points to, without qualifiers: ``unsigned int``."""
    pointer: bool
    const: bool
    space: str = ""
    """``shared`` for a pointer to memory of a block; else empty."""
    attribute: str = ""
    """In Metal, the attribute: ``buffer``, ``thread_position_in_grid``."""
    number: int = 0
    """The number of a buffer in Metal."""


@dataclass(frozen=True)
class Signature:
    """The declaration of a kernel's function in a source."""

    start: int
    """The position of the qualifier (``__global__``) in the text."""
    opening: int
    """The position behind the parenthesis before the parameters."""
    closing: int
    """The position of the parenthesis behind them."""
    body: int
    """The position behind the brace that begins the body."""
    parameters: tuple[SourceParameter, ...]


def masked(text: str) -> str:
    """The text with comments and strings replaced by spaces, of the same length and lines."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def signature_of(text: str, function: str, language: str) -> Signature:
    """Find the definition of a kernel.

    Args:
        text: The source.
        function: The name of the kernel's function.
        language: A key of `QUALIFIERS`.

    Raises:
        SignatureError: There is no such kernel, or it is a template.
    """
    plain = masked(text)
    words = QUALIFIERS[language]
    kernel = re.compile(rf"\b(?:{'|'.join(words)})\b")
    for match in re.finditer(rf"\b{re.escape(function)}\s*\(", plain):
        closing = _closing(plain, match.end() - 1)
        after = re.compile(r"\s*(?:__attribute__\s*\(\(.*?\)\)\s*)*\{", re.S).match(plain, closing + 1)
        before = max(plain.rfind(c, 0, match.start()) for c in ";{}#") + 1
        qualifier = kernel.search(plain, before, match.start())
        if after is None or qualifier is None:
            continue
        if re.search(r"\btemplate\b", plain[before : match.start()]):
            raise SignatureError(
                f"{function!r} is a template; write a kernel for one instance, which may call it as a "
                "function without the qualifier"
            )
        parameters = _split(plain[match.end() : closing])
        read = tuple(_parameter(p, language) for p in parameters)
        return Signature(qualifier.start(), match.end(), closing, after.end(), read)
    found = re.findall(rf"\b(?:{'|'.join(words)})\b[^;{{}}]*?(\w+)\s*\(", plain)
    raise SignatureError(
        f"it defines no kernel {function!r} ({words[0]}); it defines {', '.join(found) or 'none'}"
    )


def _closing(plain: str, opening: int) -> int:
    """The position of the parenthesis that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(plain)):
        depth += (plain[place] == "(") - (plain[place] == ")")
        if depth == 0:
            return place
    raise SignatureError("a parenthesis is not closed")


def _split(text: str) -> list[str]:
    """The parameters between commas that stand in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    parts = [" ".join(p.split()) for p in parts]
    return [p for p in parts if p not in ("", "void")]


def _parameter(text: str, language: str) -> SourceParameter:
    attribute, number, declared = "", 0, text
    if match := re.search(r"\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*\]\]", text):
        attribute, number = match[1], int(match[2] or 0)
        declared = text[: match.start()] + text[match.end() :]
    declared = re.sub(r"__attribute__\s*\(\(.*?\)\)|__align__\s*\(\d+\)", " ", declared)
    match = re.search(r"(\w+)\s*(\[[^\]]*\])?\s*$", declared)
    if match is None:
        raise SignatureError(f"the parameter {text!r} has no name")
    before = declared[: match.start()]
    pointer = "*" in before or match[2] is not None
    words = re.findall(r"[\w:<>]+", before)
    shared = any(w in ("local", "__local", "threadgroup") for w in words)
    kind = " ".join(w for w in words if w not in _SKIPPED)
    if not kind:
        raise SignatureError(f"the parameter {text!r} has no type, or no name")
    const = "const" in words or "constant" in words or "__constant" in words
    return SourceParameter(
        text, match[1], kind, pointer, const, "shared" if shared else "", attribute, number
    )


__all__ = ["ELEMENTS", "QUALIFIERS", "Signature", "SignatureError", "SourceParameter", "signature_of"]
