"""Calls of LLVM's intrinsic functions as C11."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...errors import InternalError
from . import expressions as ex
from .ir_text import Operand, Type


class Writer(Protocol):
    """The part of a function's printer that calls need."""

    def define(self, result: str, type_: Type, values: Sequence[str]) -> None:
        """Give a value its expressions, one for each lane."""

    def emit(self, line: str) -> None:
        """Append a statement."""

    def lanes(self, operand: Operand) -> list[str]:
        """The expressions of an operand's lanes."""

    def load(self, type_: Type, pointer: str) -> list[str]:
        """The lanes of a value in memory."""


_MATH = {
    "fabs": "fabs",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "sqrt": "sqrt",
    "copysign": "copysign",
    "minnum": "fmin",
    "maxnum": "fmax",
    "rint": "rint",
    "nearbyint": "nearbyint",
    "round": "round",
    "fma": "fma",
    "fmuladd": "fma",
    "exp2": "exp2",
    "log2": "log2",
    "exp": "exp",
    "log": "log",
    "sin": "sin",
    "cos": "cos",
    "pow": "pow",
    "ldexp": "ldexp",
}
"""LLVM's functions that are in C's library under these names, with the suffix f for floats."""

_OWN_MATH = {"roundeven": "roundeven", "minimum": "minimum", "maximum": "maximum"}
_NOTHING = ("prefetch", "assume", "lifetime.start", "lifetime.end", "compiler.used", "donothing")
_COMPARED = {"smin": "slt", "smax": "sgt", "umin": "ult", "umax": "ugt"}
_REDUCTIONS = ("add", "mul", "and", "or", "xor", "fadd", "fmul")


def call(w: Writer, result: str, name: str, type_: Type, arguments: Sequence[Operand]) -> None:
    """Print the call of the intrinsic function ``@llvm.<name>``; `result` is its value's name or "".

    Raises:
        InternalError: It has no form in C.
    """
    if name.startswith(_NOTHING):
        return
    base = name.partition(".")[0]
    if base in ("memcpy", "memmove", "memset"):
        to, other, size = (w.lanes(a)[0] for a in arguments[:3])
        w.emit(f"{base}({to}, {other}, (size_t){size});")
    elif base == "trap":
        w.emit("abort();")
    elif base == "masked":
        _masked(w, result, name.split(".")[1], type_, arguments)
    elif base == "vector":
        w.define(result, type_, [_reduce(name.split(".")[2], type_, w, arguments)])
    else:
        scalar = _scalar(base, name, type_.element, arguments)
        rows = [w.lanes(a) for a in arguments]
        rows = [row * (type_.lanes if len(row) == 1 else 1) for row in rows]
        w.define(result, type_, [scalar(*lane) for lane in zip(*rows, strict=True)])


def _scalar(base: str, name: str, type_: Type, arguments: Sequence[Operand]) -> Callable[..., str]:
    """The function from the expressions of arguments to that of the result, for one lane."""
    end = "f" if type_.kind == "float" else ""
    small = type_.kind in ("half", "bfloat")
    if base in _MATH and type_.is_float:
        if small:
            return lambda *xs: ex.narrow(
                type_, f"{_MATH[base]}f({', '.join(ex.widen(type_, x) for x in xs)})"
            )
        return lambda *xs: f"{_MATH[base]}{end}({', '.join(xs)})"
    if base in _OWN_MATH and type_.kind in ("float", "double"):
        return lambda *xs: f"tw_{_OWN_MATH[base]}_{ex.suffix(type_)}({', '.join(xs)})"
    if base in _COMPARED:
        return lambda a, b: f"{ex.compare(_COMPARED[base], type_, a, b)} ? {a} : {b}"
    if base == "abs":
        return lambda a, *_: f"{ex.compare('slt', type_, a, '0')} ? {ex.masked(type_, f'0u - {a}')} : {a}"
    if base in ("ctlz", "cttz"):
        return lambda a, *_: ex.masked(type_, f"tw_{base}({a}, {type_.bits})")
    if base == "ctpop":
        return lambda a: ex.masked(type_, f"tw_ctpop({a})")
    if base in ("fshl", "fshr"):
        return lambda a, b, n: _funnel(base, type_, a, b, n)
    if base in ("fptosi", "fptoui"):
        kind = "signed" if base == "fptosi" else "unsigned"
        source = arguments[0].type.element
        return lambda a: ex.masked(
            type_,
            f"tw_saturated_{kind}({ex.widen(source, a) if source.bits == 16 else a}, {type_.bits})",
        )
    raise InternalError(f"the function llvm.{name} is not known")


def _funnel(base: str, type_: Type, a: str, b: str, n: str) -> str:
    """A shift of two numbers side by side, of which the high (fshl) or low half is the result."""
    bits = type_.bits
    if n.startswith("UINT"):
        count = int(n[n.index("(") + 1 : -1], 0) % bits
        if count == 0:
            return a if base == "fshl" else b
        left = count if base == "fshl" else bits - count
        return ex.masked(type_, f"{a} << {left} | {b} >> {bits - left}")
    shift = f"({n} % {bits}u)" if base == "fshl" else f"(({bits}u - {n} % {bits}u) % {bits}u)"
    whole = a if base == "fshl" else b
    return f"{shift} ? {ex.masked(type_, f'{a} << {shift} | {b} >> ({bits}u - {shift})')} : {whole}"


def _reduce(kind: str, type_: Type, w: Writer, arguments: Sequence[Operand]) -> str:
    """A reduction over the lanes of a vector, from the first one on."""
    lanes = [lane for a in arguments for lane in w.lanes(a)]
    value = lanes[0]
    for lane in lanes[1:]:
        if kind in _COMPARED:
            value = f"({ex.compare(_COMPARED[kind], type_, value, lane)} ? {value} : {lane})"
        elif kind in ("fmax", "fmin"):
            value = f"{kind}{'f' if type_.kind == 'float' else ''}({value}, {lane})"
        elif kind in ("fmaximum", "fminimum"):
            value = f"tw_{kind[1:]}_{ex.suffix(type_)}({value}, {lane})"
        elif kind in _REDUCTIONS:
            value = f"({ex.binary(kind, type_, value, lane)})"
        else:
            raise InternalError(f"the reduction {kind} is not known")
    return value


def _masked(w: Writer, result: str, kind: str, type_: Type, arguments: Sequence[Operand]) -> None:
    """Loads and stores of the lanes for which a mask holds."""
    if kind in ("load", "gather"):
        pointer, mask, otherwise = arguments
        places = _places(w, pointer, type_)
        name = ex.suffix(type_.element)
        values = [
            f"{m} ? tw_load_{name}({p}) : {x}"
            for p, m, x in zip(places, w.lanes(mask), w.lanes(otherwise), strict=True)
        ]
        w.define(result, type_, values)
    elif kind in ("store", "scatter"):
        value, pointer, mask = arguments
        name = ex.suffix(value.type.element)
        places = _places(w, pointer, value.type)
        for p, m, x in zip(places, w.lanes(mask), w.lanes(value), strict=True):
            w.emit(f"if ({m}) tw_store_{name}({p}, {x});")
    else:
        raise InternalError(f"the function llvm.masked.{kind} is not known")


def _places(w: Writer, pointer: Operand, type_: Type) -> list[str]:
    """The addresses of the lanes: those of a vector of pointers, or one after the other."""
    found = w.lanes(pointer)
    if pointer.type.kind == "vector":
        return found
    return [f"{found[0]} + {k * ex.size_of(type_.element)}" for k in range(type_.lanes)]


__all__ = ["Writer", "call"]
