"""Parallel products of one left operand with constants (the projections to Q, K and V) as one product, then slices.

The left operand is read once, and one large contraction keeps all workers busy where three small ones would not. Biases are
concatenated likewise. Products that meet in an elementwise operator, such as the gate of a feed-forward block, stay apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialects import func, graph
from ..dialects.graph.base import tensor_type
from ..dialects.graph.elementwise import same_shape
from ..ir.builder import Builder
from ..ir.constant import Constant
from ..ir.core import Module, Operation, Value
from .match import ELEMENTWISE, array_of, new_constant
from .simplify import slice_along


@dataclass
class _Product:
    """A matmul by a constant and the bias addition after it, if there is one; `last` is the result that users see."""

    matmul: Any
    weight: Constant
    bias: np.ndarray[Any, Any] | None
    last: Any


def merge_matmuls(module: Module) -> int:
    """Merge matmuls that share their left operand; returns how many were merged into others."""
    merged = 0
    for function in module.functions(func.Func):
        groups: dict[Value, list[_Product]] = {}
        for op in function.body.ops:
            found = _product(op)
            if found is not None:
                groups.setdefault(found.matmul.a, []).append(found)
        order = {op: k for k, op in enumerate(function.body.ops)} if any(len(g) > 1 for g in groups.values()) else {}
        for products in groups.values():
            products = _apart(products)
            if len(products) > 1:
                _merge(products, order)
                merged += len(products) - 1
    return merged


def _product(op: Operation) -> _Product | None:
    if not isinstance(op, graph.Matmul) or op.dtype is not None:
        return None  # integer products stay apart: what makes real numbers of each is its epilogue
    constant = op.b.defining_op
    weight = constant.value if isinstance(constant, graph.Constant) else None
    if weight is None or len(weight.shape) != 2 or tensor_type(op.a).rank < 2 or array_of(op.a) is not None:
        return None
    users = op.result.users
    if op.result.has_one_use and isinstance(users[0], graph.Add) and users[0].parent is op.parent:
        add: Any = users[0]
        bias = array_of(add.b) if add.a is op.result else array_of(add.a)
        if (
            bias is not None
            and bias.shape == (weight.shape[1],)
            and same_shape(add.result.type.shape, op.result.type.shape)
        ):
            return _Product(op, weight, bias, add)
    return _Product(op, weight, None, op)


def _apart(products: list[_Product]) -> list[_Product]:
    """Those whose results do not meet in an elementwise operator (a gate): there one product is the other's epilogue."""
    reached = [_reached(p.last) for p in products]
    return [
        p for k, p in enumerate(products) if not any(reached[k] & other for j, other in enumerate(reached) if j != k)
    ]


def _reached(op: Operation, depth: int = 4) -> set[Operation]:
    """The elementwise operators that read a result, directly or through others."""
    if depth == 0:
        return set()
    found = {u for u in op.results[0].users if isinstance(u, ELEMENTWISE)}
    return found.union(*(_reached(u, depth - 1) for u in found))


def _merge(products: list[_Product], order: dict[Operation, int]) -> None:
    first = min((p.matmul for p in products), key=order.__getitem__)
    b = Builder.before(first)
    sizes = [p.weight.shape[1] for p in products]
    name = products[0].matmul.b.defining_op.value.name
    weights = [p.weight for p in products]

    def join(out: np.ndarray[Any, Any]) -> None:
        np.concatenate([w.array for w in weights], 1, out=out)

    shape = weights[0].shape[0], sum(sizes)
    joined_weight = Constant.made(shape, weights[0].numpy_dtype, join, name, recipe=("joined", *weights))
    joined_weight.made_of(weights, "columns joined")
    joined = b(graph.Matmul(first.a, b(graph.Constant(value=joined_weight))))
    if any(p.bias is not None for p in products):
        dtype = products[0].weight.numpy_dtype
        parts = [np.zeros(n, dtype) if p.bias is None else p.bias for p, n in zip(products, sizes, strict=True)]
        joined = b(graph.Add(joined, new_constant(b, np.concatenate(parts), name)))
    start = 0
    axis = tensor_type(joined).rank - 1
    slices = []
    for n in sizes:
        slices.append(slice_along(b, joined, axis, start, start + n))
        start += n
    for p, part in zip(products, slices, strict=True):
        p.last.replace_by(part)
        if p.last is not p.matmul:
            p.matmul.erase()
