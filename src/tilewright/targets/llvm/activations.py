"""Activations in the bodies of kernels that one formula computes faster than the functions they consist of.

The graph operator GELU is lowered to products, sums and `erf` or `sigmoid`, which every target has. LLVM's
targets have a formula of the whole (`mathlib.ACTIVATIONS`); LLVM drops the operations that it replaces.
"""

from __future__ import annotations

import math

from ...dialects import scalar
from ...ir.core import Operation, Value
from ...ir.types import f32
from .isa import Isa

_SLOPE = math.sqrt(8.0 / math.pi)
_ROUNDED = 2.0**-24
"""The largest relative error of a float32 constant."""


def activation_of(op: Operation, isa: Isa) -> tuple[str, Value] | None:
    """The name in `mathlib.ACTIVATIONS` and the operand ``x`` of the activation whose value `op` gives.

    These are ``half * erf(x * sqrt(1/2)) + half`` with ``half = 0.5 * x``, and with AVX-512 ``x * sigmoid(x *
    (x * x * (0.044715 * s) + s))`` with ``s = sqrt(8/pi)``, in float32 and with the operands of sums and
    products in any order; None for everything else.
    """
    if op.name not in ("scalar.add", "scalar.mul") or op.result.type is not f32:
        return None
    if op.name == "scalar.add":
        return _with_erf(op)
    return _with_sigmoid(op) if isa.avx512 else None


def _with_erf(op: Operation) -> tuple[str, Value] | None:
    for product, half in _orders(op):
        x = _scaled(half, 0.5)
        inner = _argument(_other(product, "scalar.mul", half), "scalar.erf")
        if x is not None and _scaled(inner, math.sqrt(0.5)) is x:
            return "gelu", x
    return None


def _with_sigmoid(op: Operation) -> tuple[str, Value] | None:
    for x, gate in _orders(op):
        factor = _other(_argument(gate, "scalar.sigmoid"), "scalar.mul", x)
        square = _scaled(_without(factor, "scalar.add", _SLOPE), 0.044715 * _SLOPE)
        if _other(square, "scalar.mul", x) is x:
            return "gelu_tanh", x
    return None


def _orders(op: Operation) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    a, b = op.operands
    return (a, b), (b, a)


def _made_by(value: Value | None, name: str) -> Operation | None:
    """The operation that gives `value`, if it is a `name`."""
    op = value.defining_op if value is not None else None
    return op if op is not None and op.name == name else None


def _argument(value: Value | None, name: str) -> Value | None:
    """The operand of the function `name` that gives `value`."""
    op = _made_by(value, name)
    return op.operands[0] if op is not None else None


def _other(value: Value | None, name: str, operand: Value) -> Value | None:
    """The operand beside `operand` of the sum or product `name` that gives `value`."""
    op = _made_by(value, name)
    return next((b for a, b in _orders(op) if a is operand), None) if op is not None else None


def _without(value: Value | None, name: str, number: float) -> Value | None:
    """The operand beside the constant `number` of the sum or product `name` that gives `value`."""
    op = _made_by(value, name)
    return next((b for a, b in _orders(op) if _is_number(a, number)), None) if op is not None else None


def _scaled(value: Value | None, factor: float) -> Value | None:
    return _without(value, "scalar.mul", factor)


def _is_number(value: Value, number: float) -> bool:
    op = value.defining_op
    return (
        isinstance(op, scalar.Constant)
        and isinstance(op.value, (int, float))
        and math.isclose(op.value, number, rel_tol=_ROUNDED)
    )


__all__ = ["activation_of"]
