"""CHLO's special functions and top_k, and bit casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import DType, boolean, f32
from ...complex import Complex, each
from ...unsupported import Unsupported
from ..reading import bindings, scalar_type
from ..registry import importer
from .elementwise import UNSIGNED, total_order

if TYPE_CHECKING:
    from ..node import Node

UNARY = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "sinh", "tan")


def chlo_name(n: Node) -> str:
    """Return the operation's name, also for a call of it under the name of its old dialect."""
    name: str = n.attr("call_target_name").value if n.has("call_target_name") else n.name
    return name.replace("mhlo.", "chlo.", 1)


EXPAND = "chlo-legalize-to-stablehlo,stablehlo-complex-math-expander"

COMPOSED = (
    "bessel_i1e",
    "digamma",
    "erfc",
    "is_neg_inf",
    "is_pos_inf",
    "lgamma",
    "mulhi",
    "next_after",
    "polygamma",
    "zeta",
)


@importer(*COMPOSED, dialect="chlo", scalar=True)
def expanded(n: Node) -> list[Any]:
    """Import the decomposition that jaxlib's pass gives for an elementwise CHLO operation on a scalar,
    applied to all elements.
    """
    ir, stablehlo, _, func = bindings()
    from jaxlib.mlir import passmanager

    with ir.Location.unknown(n.op.context):
        operands, results = (
            [scalar_type(v.type) for v in values] for values in (n.op.operands, n.op.results)
        )
    name = chlo_name(n)
    attributes = {} if n.has("call_target_name") else {a: n.op.attributes[a] for a in n.op.attributes}
    key = name, *map(str, (*operands, *results)), str(attributes)
    known = n.importer.expansions
    if key not in known:
        stablehlo.register_stablehlo_passes()
        with n.op.context, ir.Location.unknown():
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                function = func.FuncOp("main", (operands, results))
            with ir.InsertionPoint(function.add_entry_block()):
                op = ir.Operation.create(name, results, list(function.arguments), attributes)
                func.ReturnOp(op.results)
            passmanager.PassManager.parse(f"builtin.module(func.func({EXPAND}))").run(module.operation)
        known[key] = module
    return n.apply(next(iter(known[key].body.operations)).regions[0].blocks[0], n.inputs)


@importer(*UNARY, dialect="chlo", scalar=True, complex="whole")
def _unary(n: Node) -> Any:
    x = n.inputs[0]
    return expanded(n) if isinstance(x, Complex) else n.unary(chlo_name(n).partition(".")[2], x)


@importer("square", dialect="chlo", scalar=True, complex="whole")
def _square(n: Node) -> Any:
    return n.binary("mul", n.inputs[0], n.inputs[0])


@importer("conj", dialect="chlo", scalar=True, complex="whole")
def _conj(n: Node) -> Any:
    x = n.inputs[0]
    return n.math.conj(x) if isinstance(x, Complex) else x


@importer("constant_like", dialect="chlo", scalar=True)
def _constant_like(n: Node) -> Any:
    x = n.inputs[0]
    return n.broadcast(n.like(n.attr("value").value, x), x.type.shape)


@importer("is_inf", dialect="chlo", scalar=True)
def _is_inf(n: Node) -> Value:
    return n.unary("isinf", n.inputs[0])


def polynomial(n: Node, x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial by Horner's scheme; the coefficient of the highest power is first."""
    y = n.like(coefficients[0], x)
    for c in coefficients[1:]:
        y = n.binary("add", n.binary("mul", y, x), c)
    return y


@importer("erf_inv", dialect="chlo", scalar=True)
def _erf_inv(n: Node) -> Any:
    """Giles, "Approximating the erfinv function", GPU Computing Gems, 2011, table 5 (single precision)."""
    x = n.inputs[0]
    if x.type.dtype is not f32:
        return expanded(n)
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
    if not x.type.dtype.is_float:
        values, order = n.emit_all(g.Topk(x, k=n.number("k"), axis=-1, largest=True))
        return [values, n.cast(order, n.dtype(1))]
    _, order = n.emit_all(g.Topk(total_order(n, x), k=n.number("k"), axis=-1, largest=True))
    return [n.emit(g.GatherElements(x, order, axis=-1)), n.cast(order, n.dtype(1))]


@importer("bitcast_convert", scalar=True, complex="whole")
def _bitcast_convert(n: Node) -> Any:
    """Reinterpret bits. Between widths, the last dimension counts the narrow elements of a wide one: the
    lowest bits first, the real part of complex numbers first.
    """
    x, dtype, shape = n.inputs[0], n.dtype(), n.inputs[0].type.shape
    old, new = x.type.dtype.bits, dtype.bits
    if old == new:
        return each(lambda x: n.emit(g.Bitcast(x, dtype=dtype)), x)
    if n.importer.scalar:
        raise Unsupported(f"bitcasts between {x.type.dtype.label} and {dtype.label} in a body for scalars")
    pair = isinstance(x, Complex)
    if pair:
        x = n.concat([n.reshape(part, (*shape, 1)) for part in (x.real, x.imaginary)], len(shape))
    shape = (*shape, old // new) if old > new else shape[:-1]
    rows = (*shape, 2) if pair else shape
    x = _narrowed(n, x, dtype) if old > new else _widened(n, n.reshape(x, (*rows, new // old)), dtype)
    x = n.reshape(x, rows)
    if not pair:
        return x
    parts = [n.slice(x, [*[0] * len(shape), k], [*shape, k + 1]) for k in (0, 1)]
    return Complex(*(n.reshape(part, shape) for part in parts))


def _narrowed(n: Node, x: Value, dtype: DType) -> Value:
    """Return the parts of each element along a new last dimension."""
    old, new = x.type.dtype.bits, dtype.bits
    wide = UNSIGNED[old]
    words = n.reshape(n.emit(g.Bitcast(x, dtype=wide)), (*x.type.shape, 1))
    parts = n.binary("shr", words, n.constant(np.arange(old // new) * new, wide))
    if dtype is boolean:
        return n.cast(n.binary("and", parts, 1), boolean)
    if new < 8:
        raise Unsupported(f"between {x.type.dtype.label} and {dtype.label}")
    return n.emit(g.Bitcast(n.cast(parts, UNSIGNED[new]), dtype=dtype))


def _widened(n: Node, x: Value, dtype: DType) -> Value:
    """Combine the elements along the last dimension into one."""
    source, shape = x.type.dtype, x.type.shape
    if source.bits < 8 and source is not boolean:
        raise Unsupported(f"between {source.label} and {dtype.label}")
    wide = UNSIGNED[dtype.bits]
    words = n.cast(x if source is boolean else n.emit(g.Bitcast(x, dtype=UNSIGNED[source.bits])), wide)
    total: Any = None
    for k in range(dtype.bits // source.bits):
        part = n.slice(words, (*[0] * (len(shape) - 1), k), (*shape[:-1], k + 1))
        part = n.binary("shl", part, k * source.bits) if k else part
        total = part if total is None else n.binary("or", total, part)
    return n.emit(g.Bitcast(n.reshape(total, shape[:-1]), dtype=dtype))
