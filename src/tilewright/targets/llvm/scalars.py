"""Scalar operations as LLVM instructions, on one element or on a vector of lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...dialects import scalar
from ...dialects.scalar import MATH_FUNCTIONS
from ...ir import notes
from ...ir.core import Operation
from ...ir.types import DType, bf16, boolean, f16, f32, f64, i64
from .activations import activation_of
from .conversions import bitcast, cast
from .emitter import Emitter, mangled
from .rounding import rounded_operand, rounds_to_integers, to_rounded_integer
from .values import KernelContext, Val, literal, number, register

FAST = "contract"
"""A product and a sum may be fused into one operation; nothing else is reordered."""

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "sqrt": "sqrt"}
_COMPARE = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}


def emit_scalar(g: KernelContext, op: Operation) -> Val:
    """Print a scalar operation; its operands are in ``g.values``."""
    if isinstance(op, scalar.Constant):
        text = literal(op.value, op.dtype)
        return Val(op.dtype, [text], 1, op.value)
    if isinstance(op, scalar.Index):
        return _index(g, op)
    operands = [g.values[v] for v in op.operands]
    dtype = op.result.type
    if isinstance(op, scalar.Cast) and rounds_to_integers(g.isa) and (parts := rounded_operand(op)):
        x, zero = parts
        return lanewise(
            g, dtype, [g.values[x]], lambda lanes, y: to_rounded_integer(g, y, zero, dtype, lanes)
        )
    if activation := activation_of(op, g.isa):
        function, x = activation
        return lanewise(g, f32, [g.values[x]], lambda lanes, y: _math(g, function, f32, lanes, y))
    fits = _fits(op, operands)
    if isinstance(op, scalar.Cast) and fits is not None and fits is op.dtype:
        return replace(operands[0], dtype=op.dtype)
    result = lanewise(g, dtype, operands, lambda lanes, *parts: _emit(g, op, lanes, operands, *parts))
    result.fits = dtype if isinstance(op, scalar.Cast) and dtype in (f16, bf16) else fits
    return result


_CHOOSING = frozenset(f"scalar.{name}" for name in ("select", "min", "max", "neg", "abs", "cast"))
"""Operations whose result is one of the operands, up to the sign."""


def _fits(op: Operation, operands: list[Val]) -> DType | None:
    """The narrow type that can represent all results exactly."""
    floats = [v for v in operands if v.dtype.is_float]
    if op.name not in _CHOOSING or not floats or not op.result.type.is_float or op.result.type.bits < 16:
        return None
    narrow = next((v.fits for v in floats if v.fits is not None), None)
    if narrow is None or not all(v.fits is narrow or _is_number_of(narrow, v.constant) for v in floats):
        return None
    return narrow


def _is_number_of(dtype: DType, value: object) -> bool:
    import numpy as np

    if not isinstance(value, (int, float)):
        return False
    with np.errstate(all="ignore"):
        return float(np.asarray(value).astype(dtype.numpy)) == value


def lanewise(g: KernelContext, dtype: DType, operands: list[Val], write: Callable[..., str]) -> Val:
    """``write(lanes, *operand parts)`` once if all operands are uniform, else once per part."""
    if not any(v.varies for v in operands):
        return Val(dtype, [write(1, *(v.parts[0] for v in operands))])
    assert g.lanes is not None
    spread = [g.spread(v) for v in operands]
    return Val(dtype, [write(g.lanes.lanes, *parts) for parts in zip(*spread, strict=True)], g.lanes.lanes)


def _index(g: KernelContext, op: scalar.Index) -> Val:
    e = g.index.resolve(op.expr)
    if g.lanes is None or not g.lanes.varies(e):
        return Val(i64, [g.index.value(e)], 1, e if isinstance(e, int) else None)
    values, bits = g.index.vector(e)
    if bits != 64:
        n = g.lanes.lanes
        values = [g.e.op(f"sext <{n} x i{bits}> {v} to <{n} x i64>") for v in values]
    return Val(i64, values, g.lanes.lanes)


def _emit(g: KernelContext, op: Operation, lanes: int, operands: list[Val], *x: str) -> str:
    name = op.name.removeprefix("scalar.")
    dtype = operands[0].dtype
    if isinstance(op, scalar.Cast):
        return cast(g, x[0], dtype, op.dtype, lanes)
    if isinstance(op, scalar.Bitcast):
        return bitcast(g, x[0], dtype, op.dtype, lanes, operands[0].fits is dtype)
    if isinstance(op, scalar.Select):
        kind = register(operands[1].dtype, lanes)
        return g.e.op(f"select {register(boolean, lanes)} {x[0]}, {kind} {x[1]}, {kind} {x[2]}")
    if len(x) == 1:
        return _unary(g, name, dtype, lanes, x[0], notes.RELAXED_ACCURACY.get(op, False))
    quiet = notes.IGNORE_NAN.get(op, False)
    known = [quiet or (isinstance(v.constant, (int, float)) and v.constant == v.constant) for v in operands]
    return binary(g, name, dtype, lanes, x[0], x[1], known[0], known[1], operands[1].constant, _fused(op))


def _fused(op: Operation) -> bool:
    """Whether a product and its sum may be fused, as far as `op`, one of them, tells.

    A product that others read too is not: ``x*y - x*y`` is 0, and not the rounding error of the product.
    Neither is one that scales an integer, as in the epilogue of a product of bytes: quantized models have the
    same bits on processors with and without fused multiply-adds. The sum says so too, since LLVM for AArch64
    looks at the flags of the sum alone.
    """
    if op.name == "scalar.mul":
        return op.result.has_one_use and not _scales_integer(op)
    return not any(_scales_integer(v.defining_op) for v in op.operands)


def _scales_integer(op: Operation | None) -> bool:
    """Whether `op` is a product one of whose factors is a converted integer."""
    producers = [v.defining_op for v in op.operands] if op is not None and op.name == "scalar.mul" else []
    return any(isinstance(p, scalar.Cast) and not p.operands[0].type.is_float for p in producers)


# -- One operand -------------------------------------------------------------------------------------------


def _intrinsic(g: KernelContext, name: str, kind: str, *x: str) -> str:
    return g.e.op(f"call {kind} @llvm.{name}.{mangled(kind)}({', '.join(f'{kind} {v}' for v in x)})")


def _rounded_by_addition(g: KernelContext, dtype: DType, lanes: int, x: str) -> str:
    """`x` rounded to the nearest integral number, to even ones where two are as near.

    Floats from ``2**fraction_bits`` on are integral, so adding that number rounds. C libraries without
    ``roundeven`` (musl, Android) are no obstacle.
    """
    e, kind = g.e, register(dtype, lanes)
    large = number(2.0 ** (23 if dtype is f32 else 52), dtype, lanes)
    size = _intrinsic(g, "fabs", kind, x)
    near = e.op(f"fsub {kind} {e.op(f'fadd {kind} {size}, {large}')}, {large}")
    # NaN is not less than any number and stays as it is.
    small = e.op(f"fcmp olt {kind} {size}, {large}")
    rounded = _intrinsic(g, "copysign", kind, near, x)
    return e.op(f"select {register(boolean, lanes)} {small}, {kind} {rounded}, {kind} {x}")


def _unary(g: KernelContext, name: str, dtype: DType, lanes: int, x: str, rough: bool = False) -> str:
    kind = register(dtype, lanes)
    e = g.e
    if name in MATH_FUNCTIONS:
        return _math(
            g, f"rough_{name}" if rough and name == "exp" and dtype is f32 else name, dtype, lanes, x
        )
    if name == "round" and not g.isa.rounding and dtype in (f32, f64):
        return _rounded_by_addition(g, dtype, lanes, x)
    if name in _ROUNDING:
        return _intrinsic(g, _ROUNDING[name], kind, x)
    if name == "rsqrt":
        return e.op(f"fdiv {FAST} {kind} {number(1, dtype, lanes)}, {_intrinsic(g, 'sqrt', kind, x)}")
    if name == "not":
        return e.op(f"xor {kind} {x}, {number(True if dtype is boolean else -1, dtype, lanes)}")
    if name == "isnan":
        return e.op(f"fcmp uno {kind} {x}, {number(0, dtype, lanes)}")
    if name == "isinf":
        return e.op(f"fcmp oeq {kind} {_intrinsic(g, 'fabs', kind, x)}, {number(float('inf'), dtype, lanes)}")
    zero = number(0, dtype, lanes)
    if name == "neg":
        return e.op(f"fneg {kind} {x}") if dtype.is_float else e.op(f"sub {kind} {zero}, {x}")
    if name == "abs":
        if dtype.is_float:
            return _intrinsic(g, "fabs", kind, x)
        if dtype.kind == "uint":
            return x
        return e.op(f"call {kind} @llvm.abs.{mangled(kind)}({kind} {x}, i1 false)")
    if name == "sign":
        mask = register(boolean, lanes)
        up, down = (
            ("ogt", "olt") if dtype.is_float else ("ugt", "ult") if dtype.kind == "uint" else ("sgt", "slt")
        )
        compare = "fcmp" if dtype.is_float else "icmp"
        negative = e.op(f"{compare} {down} {kind} {x}, {zero}")
        positive = e.op(f"{compare} {up} {kind} {x}, {zero}")
        # Zero of either sign becomes +0; NaN stays NaN.
        neither = e.op(f"fadd {kind} {x}, {zero}") if dtype.is_float else x
        low = e.op(f"select {mask} {negative}, {kind} {number(-1, dtype, lanes)}, {kind} {neither}")
        return e.op(f"select {mask} {positive}, {kind} {number(1, dtype, lanes)}, {kind} {low}")
    raise NotImplementedError(f"scalar.{name} has no LLVM code")


def _math(g: KernelContext, name: str, dtype: DType, lanes: int, *x: str) -> str:
    from .mathlib import math_function

    kind = register(dtype, lanes)
    function, definitions = math_function(name, 64 if dtype is f64 else 32, lanes, g.isa)
    g.helpers.update(definitions)
    return g.e.op(f"call {kind} @{function}({', '.join(f'{kind} {v}' for v in x)})")


# -- Two operands ------------------------------------------------------------------------------------------


def binary(
    g: KernelContext,
    name: str,
    dtype: DType,
    lanes: int,
    a: str,
    b: str,
    a_is_number: bool = False,
    b_is_number: bool = False,
    b_constant: object = None,
    fused: bool = True,
) -> str:
    """``scalar.<name>`` of two operands.

    `a_is_number` states that `a` is never NaN; `b_constant` is the value of `b`, if constant. `fused`: a
    product and the sum that reads it may become one operation.
    """
    kind = register(dtype, lanes)
    e = g.e
    if name in _COMPARE:
        floats, signed, unsigned = _COMPARE[name]
        if dtype.is_float:
            return e.op(f"fcmp {floats} {kind} {a}, {b}")
        return e.op(f"icmp {signed if dtype.kind == 'int' else unsigned} {kind} {a}, {b}")
    if name == "pow" and not dtype.is_float:
        return _int_power(g, dtype, lanes, a, b)
    if name in MATH_FUNCTIONS:
        return _math(g, name, dtype, lanes, a, b)
    if name in ("min", "max"):
        return _extreme(g, name, dtype, lanes, a, b, a_is_number, b_is_number)
    if dtype.is_float:
        if name in _FLOAT_BINARY:
            return e.op(f"{_FLOAT_BINARY[name]} {f'{FAST} ' if fused else ''}{kind} {a}, {b}")
        return _float_division(g, name, dtype, lanes, a, b)
    if dtype is boolean and name in ("add", "mul"):
        return e.op(f"{'or' if name == 'add' else 'and'} {kind} {a}, {b}")
    if name in _INT_BINARY:
        return e.op(f"{_INT_BINARY[name]} {kind} {a}, {b}")
    if name in ("shl", "shr"):
        return _shift(g, name, dtype, lanes, a, b)
    return _int_division(g, name, dtype, lanes, a, b, b_constant)


def _extreme(
    g: KernelContext,
    name: str,
    dtype: DType,
    lanes: int,
    a: str,
    b: str,
    a_is_number: bool,
    b_is_number: bool,
) -> str:
    kind, mask = register(dtype, lanes), register(boolean, lanes)
    e = g.e
    if dtype is boolean:
        return e.op(f"{'and' if name == 'min' else 'or'} {kind} {a}, {b}")
    if not dtype.is_float:
        return _intrinsic(g, ("s" if dtype.kind == "int" else "u") + name, kind, a, b)
    if g.isa.nan_minmax:
        return _intrinsic(g, f"{name}imum", kind, a, b)
    if b_is_number and not a_is_number:
        a, b, a_is_number = b, a, True
    relation = "olt" if name == "min" else "ogt"

    def either(x: str, y: str) -> str:
        """The x86 instruction, which returns its second operand if either is NaN."""
        return e.op(f"select {mask} {e.op(f'fcmp {relation} {kind} {x}, {y}')}, {kind} {x}, {kind} {y}")

    if a_is_number:
        return either(a, b)
    if b_is_number:
        return either(b, a)
    # Both operand orders agree unless there is a NaN, which one of them returns; combining a NaN's bits with
    # any others gives a NaN.
    wide = DType.named(f"i{64 if dtype is f64 else 32}")
    integer = register(wide, lanes)
    bits = [e.op(f"bitcast {kind} {x} to {integer}") for x in (either(a, b), either(b, a))]
    return e.op(f"bitcast {integer} {e.op(f'or {integer} {bits[0]}, {bits[1]}')} to {kind}")


def _float_division(g: KernelContext, name: str, dtype: DType, lanes: int, a: str, b: str) -> str:
    """``rem`` (C's fmod), ``mod`` and ``floordiv`` (Python's, as NumPy computes them)."""
    kind, mask = register(dtype, lanes), register(boolean, lanes)
    e = g.e
    zero = number(0, dtype, lanes)
    rest = _remainder(g, dtype, lanes, a, b)
    if name == "rem":
        return rest
    nonzero = e.op(f"fcmp une {kind} {rest}, {zero}")
    below = [e.op(f"fcmp olt {kind} {v}, {zero}") for v in (b, rest)]
    fix = e.op(f"and {mask} {nonzero}, {e.op(f'xor {mask} {below[0]}, {below[1]}')}")
    mod = e.op(f"select {mask} {fix}, {kind} {e.op(f'fadd {kind} {rest}, {b}')}, {kind} {rest}")
    if name == "mod":
        signed = _intrinsic(g, "copysign", kind, zero, b)
        return e.op(f"select {mask} {e.op(f'fcmp oeq {kind} {rest}, {zero}')}, {kind} {signed}, {kind} {mod}")
    quotient = _unary(g, "round", dtype, lanes, e.op(f"fdiv {kind} {e.op(f'fsub {kind} {a}, {rest}')}, {b}"))
    down = e.op(f"fadd {kind} {quotient}, {number(-1, dtype, lanes)}")
    quotient = e.op(f"select {mask} {fix}, {kind} {down}, {kind} {quotient}")
    ratio, by_zero = e.op(f"fdiv {kind} {a}, {b}"), e.op(f"fcmp oeq {kind} {b}, {zero}")
    signed = _intrinsic(g, "copysign", kind, zero, ratio)
    is_zero = e.op(f"fcmp oeq {kind} {quotient}, {zero}")
    quotient = e.op(f"select {mask} {is_zero}, {kind} {signed}, {kind} {quotient}")
    return e.op(f"select {mask} {by_zero}, {kind} {ratio}, {kind} {quotient}")


def _remainder(g: KernelContext, dtype: DType, lanes: int, a: str, b: str) -> str:
    """C's fmod, lane by lane."""
    kind, element = register(dtype, lanes), register(dtype)
    name, text = remainder_function(64 if dtype is f64 else 32)
    g.helpers[name] = text
    if lanes == 1:
        return g.e.op(f"call {kind} @{name}({kind} {a}, {kind} {b})")
    result = "poison"
    for k in range(lanes):
        x, y = (g.e.op(f"extractelement {kind} {v}, i64 {k}") for v in (a, b))
        one = g.e.op(f"call {element} @{name}({element} {x}, {element} {y})")
        result = g.e.op(f"insertelement {kind} {result}, {element} {one}, i64 {k}")
    return result


def remainder_function(bits: int) -> tuple[str, str]:
    """The name and definition of fmod for floats of `bits` bits, exact by long division: one quotient bit per
    step.
    """
    kind, integer = ("double", "i64") if bits == 64 else ("float", "i32")
    mantissa = 52 if bits == 64 else 23
    name, one = f"remainder_f{bits}", 1 << mantissa
    low, infinity = one - 1, ((1 << (bits - 1 - mantissa)) - 1) << mantissa

    def parts(x: str) -> str:
        """Exponent and mantissa of the bits of a magnitude; subnormal numbers are normalized."""
        return f"""  %{x}.raw = lshr {integer} %{x}.bits, {mantissa}
  %{x}.tiny = icmp eq {integer} %{x}.raw, 0
  %{x}.low = and {integer} %{x}.bits, {low}
  %{x}.zeros = call {integer} @llvm.ctlz.i{bits}({integer} %{x}.low, i1 false)
  %{x}.shift = sub {integer} %{x}.zeros, {bits - 1 - mantissa}
  %{x}.shifted = shl {integer} %{x}.low, %{x}.shift
  %{x}.below = sub {integer} 1, %{x}.shift
  %{x}.exp = select i1 %{x}.tiny, {integer} %{x}.below, {integer} %{x}.raw
  %{x}.full = or {integer} %{x}.low, {one}
  %{x}.man = select i1 %{x}.tiny, {integer} %{x}.shifted, {integer} %{x}.full
"""

    text = f"""define internal {kind} @{name}({kind} %a, {kind} %b) nounwind memory(none) {{
entry:
  %x.abs = call {kind} @llvm.fabs.f{bits}({kind} %a)
  %y.abs = call {kind} @llvm.fabs.f{bits}({kind} %b)
  %x.bits = bitcast {kind} %x.abs to {integer}
  %y.bits = bitcast {kind} %y.abs to {integer}
  %x.bad = icmp uge {integer} %x.bits, {infinity}
  %y.nan = icmp ugt {integer} %y.bits, {infinity}
  %y.zero = icmp eq {integer} %y.bits, 0
  %bad.0 = or i1 %x.bad, %y.nan
  %bad = or i1 %bad.0, %y.zero
  br i1 %bad, label %nan, label %finite
nan:
  %product = fmul {kind} %a, %b
  %nothing = fdiv {kind} %product, %product
  ret {kind} %nothing
finite:
  %small = icmp ult {integer} %x.bits, %y.bits
  br i1 %small, label %same, label %divide
same:
  ret {kind} %a
divide:
{parts("x")}{parts("y")}  br label %step
step:
  %exp = phi {integer} [ %x.exp, %divide ], [ %exp.next, %again ]
  %man = phi {integer} [ %x.man, %divide ], [ %man.next, %again ]
  %fits = icmp uge {integer} %man, %y.man
  %less = sub {integer} %man, %y.man
  %rest = select i1 %fits, {integer} %less, {integer} %man
  %more = icmp sgt {integer} %exp, %y.exp
  br i1 %more, label %again, label %done
again:
  %man.next = shl {integer} %rest, 1
  %exp.next = sub {integer} %exp, 1
  br label %step
done:
  %rest.zero = icmp eq {integer} %rest, 0
  br i1 %rest.zero, label %pack, label %normalize
normalize:
  %zeros = call {integer} @llvm.ctlz.i{bits}({integer} %rest, i1 true)
  %wanted = sub {integer} %zeros, {bits - 1 - mantissa}
  %shifted = shl {integer} %rest, %wanted
  %exp.low = sub {integer} %exp, %wanted
  %is.normal = icmp sgt {integer} %exp.low, 0
  %exp.bits = shl {integer} %exp.low, {mantissa}
  %fraction = and {integer} %shifted, {low}
  %normal = or {integer} %exp.bits, %fraction
  %depth = sub {integer} 1, %exp.low
  %subnormal = lshr {integer} %shifted, %depth
  %packed = select i1 %is.normal, {integer} %normal, {integer} %subnormal
  br label %pack
pack:
  %result.bits = phi {integer} [ 0, %done ], [ %packed, %normalize ]
  %magnitude = bitcast {integer} %result.bits to {kind}
  %result = call {kind} @llvm.copysign.f{bits}({kind} %magnitude, {kind} %a)
  ret {kind} %result
}}
"""
    return name, text


def _shift(g: KernelContext, name: str, dtype: DType, lanes: int, a: str, b: str) -> str:
    """Shifts by the width or more give the result of shifting bit by bit."""
    kind, mask = register(dtype, lanes), register(boolean, lanes)
    e = g.e
    top = number(dtype.bits - 1, dtype, lanes)
    if name == "shr" and dtype.kind == "int":
        return e.op(f"ashr {kind} {a}, {_intrinsic(g, 'umin', kind, b, top)}")
    inside = e.op(f"icmp ule {kind} {b}, {top}")
    amount = e.op(f"and {kind} {b}, {top}")
    shifted = e.op(f"{'shl' if name == 'shl' else 'lshr'} {kind} {a}, {amount}")
    return e.op(f"select {mask} {inside}, {kind} {shifted}, {kind} {number(0, dtype, lanes)}")


def _int_power(g: KernelContext, dtype: DType, lanes: int, a: str, b: str) -> str:
    """Exponentiation by squaring, with as many steps as the largest exponent of the lanes has bits."""
    kind, mask = register(dtype, lanes), register(boolean, lanes)
    name = f"tw.power.v{lanes}{dtype.label}"
    if name not in g.helpers:
        zero, one = number(0, dtype, lanes), number(1, dtype, lanes)
        signed = dtype.kind == "int"
        e = Emitter()
        start = e.op(f"call {kind} @llvm.smax.{mangled(kind)}({kind} %b, {kind} {zero})") if signed else "%b"
        e.line("br label %loop")
        e.label("loop")
        e.line(f"%result = phi {kind} [ {one}, %entry ], [ %result.next, %loop ]")
        e.line(f"%power = phi {kind} [ %a, %entry ], [ %power.next, %loop ]")
        e.line(f"%left = phi {kind} [ {start}, %entry ], [ %left.next, %loop ]")
        odd = e.op(f"icmp ne {kind} {e.op(f'and {kind} %left, {one}')}, {zero}")
        product = e.op(f"mul {kind} %result, %power")
        e.line(f"%result.next = select {mask} {odd}, {kind} {product}, {kind} %result")
        e.line(f"%power.next = mul {kind} %power, %power")
        e.line(f"%left.next = lshr {kind} %left, {one}")
        more = e.op(f"icmp ne {kind} %left.next, {zero}")
        if lanes > 1:
            more = e.op(f"call i1 @llvm.vector.reduce.or.v{lanes}i1({mask} {more})")
        e.line(f"br i1 {more}, label %loop, label %done")
        e.label("done")
        result = "%result.next"
        if signed:
            minus = number(-1, dtype, lanes)
            is_odd = e.op(f"icmp ne {kind} {e.op(f'and {kind} %b, {one}')}, {zero}")
            power = e.op(f"select {mask} {is_odd}, {kind} {minus}, {kind} {one}")
            power = e.op(
                f"select {mask} {e.op(f'icmp eq {kind} %a, {minus}')}, {kind} {power}, {kind} {zero}"
            )
            power = e.op(f"select {mask} {e.op(f'icmp eq {kind} %a, {one}')}, {kind} {one}, {kind} {power}")
            result = e.op(
                f"select {mask} {e.op(f'icmp slt {kind} %b, {zero}')}, {kind} {power}, {kind} {result}"
            )
        body = e.text(f"{kind} {result}")
        g.helpers[name] = (
            f"define internal {kind} @{name}({kind} %a, {kind} %b) nounwind memory(none) {{\n{body}}}\n"
        )
    return g.e.op(f"call {kind} @{name}({kind} {a}, {kind} {b})")


def _int_division(
    g: KernelContext, name: str, dtype: DType, lanes: int, a: str, b: str, constant: object
) -> str:
    """Integer ``div``, ``rem``, ``floordiv`` and ``mod``; a zero divisor is replaced by one, so that nothing
    traps.
    """
    kind, mask = register(dtype, lanes), register(boolean, lanes)
    e = g.e
    zero, one = number(0, dtype, lanes), number(1, dtype, lanes)
    known = int(constant) if isinstance(constant, (int, float)) else None
    if known is None or known == 0:
        b = e.op(f"select {mask} {e.op(f'icmp eq {kind} {b}, {zero}')}, {kind} {one}, {kind} {b}")
    if dtype.kind == "uint":
        return e.op(f"{'udiv' if name in ('div', 'floordiv') else 'urem'} {kind} {a}, {b}")
    divisor = b
    negated = None
    if known is None or known == -1:
        # The smallest integer divided by -1 traps: negate instead.
        negated = e.op(f"icmp eq {kind} {b}, {number(-1, dtype, lanes)}")
        divisor = e.op(f"select {mask} {negated}, {kind} {one}, {kind} {b}")
    rest = e.op(f"srem {kind} {a}, {divisor}")
    if name == "rem":
        return rest
    fix = ""
    if name in ("mod", "floordiv"):
        nonzero = e.op(f"icmp ne {kind} {rest}, {zero}")
        differs = e.op(f"icmp slt {kind} {e.op(f'xor {kind} {rest}, {divisor}')}, {zero}")
        fix = e.op(f"and {mask} {nonzero}, {differs}")
    if name == "mod":
        return e.op(f"select {mask} {fix}, {kind} {e.op(f'add {kind} {rest}, {divisor}')}, {kind} {rest}")
    quotient = e.op(f"sdiv {kind} {a}, {divisor}")
    if fix:
        quotient = e.op(f"add {kind} {quotient}, {e.op(f'sext {mask} {fix} to {kind}')}")
    if negated is not None:
        quotient = e.op(
            f"select {mask} {negated}, {kind} {e.op(f'sub {kind} {zero}, {a}')}, {kind} {quotient}"
        )
    return quotient


__all__ = ["binary", "emit_scalar", "lanewise"]
