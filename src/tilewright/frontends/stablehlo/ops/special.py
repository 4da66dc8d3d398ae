"""CHLO: special functions and top_k; reinterpreting bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import f32
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node

UNARY = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "sinh", "tan")


@importer(*UNARY, dialect="chlo", scalar=True)
def _unary(n: Node) -> Value:
    name = n.op.attributes["call_target_name"].value if n.has("call_target_name") else n.name
    return n.unary(name.partition(".")[2], n.inputs[0])


@importer("square", dialect="chlo", scalar=True)
def _square(n: Node) -> Value:
    return n.binary("mul", n.inputs[0], n.inputs[0])


@importer("is_inf", dialect="chlo", scalar=True)
def _is_inf(n: Node) -> Value:
    return n.unary("isinf", n.inputs[0])


@importer("is_pos_inf", "is_neg_inf", dialect="chlo", scalar=True)
def _is_one_inf(n: Node) -> Value:
    x = n.inputs[0]
    return n.binary("eq", x, float("inf") if n.name.endswith("pos_inf") else float("-inf"))


def polynomial(n: Node, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme, the highest power first."""
    y = n.like(coefficients[0], x)
    for c in coefficients[1:]:
        y = n.binary("add", n.binary("mul", y, x), c)
    return y


@importer("erf_inv", dialect="chlo", scalar=True)
def _erf_inv(n: Node) -> Value:
    """Giles, "Approximating the erfinv function", GPU Computing Gems, 2011, table 5 (single precision)."""
    x = n.inputs[0]
    if x.type.dtype is not f32:
        raise Unsupported(f"for {x.type.dtype.label}; float32 is supported")
    w = n.unary("neg", n.unary("log1p", n.unary("neg", n.binary("mul", x, x))))
    small = [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087]
    small += [-0.00125372503, -0.00417768164, 0.246640727, 1.50140941]
    large = [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773]
    large += [-0.0076224613, 0.00943887047, 1.00167406, 2.83297682]
    near = polynomial(n, n.binary("sub", w, 2.5), small)
    far = polynomial(n, n.binary("sub", n.unary("sqrt", w), 3.0), large)
    y = n.binary("mul", x, n.select(n.binary("lt", w, 5.0), near, far))
    edge = n.binary("mul", x, float("inf"))
    return n.select(n.binary("eq", n.unary("abs", x), 1.0), edge, y)


@importer("top_k", dialect="chlo")
def _top_k(n: Node) -> Sequence[Value]:
    x = n.inputs[0]
    if n.has("mhlo.attributes"):
        raise Unsupported("top_k as a custom call")
    values, order = n.emit(g.Topk(x, k=n.number("k"), axis=-1, largest=True))
    return [values, n.cast(order, n.dtype(1))]


@importer("bitcast_convert")
def _bitcast_convert(n: Node) -> Value:
    x, dtype = n.inputs[0], n.dtype()
    if x.type.dtype.bits != dtype.bits:
        raise Unsupported(f"between {x.type.dtype.label} and {dtype.label}, which differ in width")
    return n.emit(g.Bitcast(x, dtype=dtype))  # type: ignore[no-any-return]
