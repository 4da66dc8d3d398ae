"""Merges products of one left operand with several constants (the projections to Q, K and V) into one, then
slices it.

The left operand is read once, and one large contraction keeps all workers busy where three small ones would
not. The same holds for quantized weights and their scales (`graph.quantized_matmul`). Biases are concatenated
likewise. Products that an elementwise operator combines, such as the gate of a feed-forward block, are not
merged.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialects import func, graph
from ...dialects.graph.base import tensor_type
from ...dialects.graph.elementwise import same_shape
from ...ir import notes
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Module, Operation, Value
from ...ir.refusal import Refusal, refused
from .match import ELEMENTWISE, array_of, new_constant
from .simplify import slice_along


@dataclass
class _Product:
    """A product with constants: a matrix, or quantized values and scales.

    `last` is the result that consumers read: that of the bias addition behind the product, if there is one.
    """

    op: Any
    weights: tuple[Constant, ...]
    axis: int
    """The axis of the result's columns in each of the weights."""
    bias: np.ndarray[Any, Any] | None
    last: Any

    @property
    def columns(self) -> int:
        return int(self.weights[0].shape[self.axis])


def merge_matmuls(module: Module) -> int:
    """Merge products that share their left operand.

    Returns how many were merged into others.
    """
    merged = 0
    for function in module.functions(func.Func):
        groups: dict[Hashable, list[_Product]] = {}
        of_left: dict[Value, list[tuple[Operation, _Product | Refusal]]] = {}
        for op in function.body.ops:
            product = _product(op)
            if product is None:
                continue
            of_left.setdefault(op.operands[0], []).append((op, product))
            if isinstance(product, _Product):
                groups.setdefault(_kind(product), []).append(product)
        _tell_refusals(of_left)
        order = (
            {op: k for k, op in enumerate(function.body.ops)}
            if any(len(g) > 1 for g in groups.values())
            else {}
        )
        for products in groups.values():
            products = _apart(products)
            if len(products) > 1:
                _merge(products, order)
                merged += len(products) - 1
    return merged


def _tell_refusals(of_left: Mapping[Value, Sequence[tuple[Operation, _Product | Refusal]]]) -> None:
    """Tell why products that share their left operand with others stay by themselves."""
    for found in of_left.values():
        products = [p for _, p in found if isinstance(p, _Product)]
        for op, product in found if len(found) > 1 else ():
            if isinstance(product, Refusal):
                refused(_NAME, product, op)
                continue
            alike = [p for p in products if _kind(p) == _kind(product)]
            if len(alike) == 1 < len(products):
                other = "the other products of its left operand have other data types or other rows"
                refused(_NAME, Refusal(other), op)
            elif len(alike) > 1 and product not in _apart(alike):
                gate = (
                    "an elementwise operator combines its result with that of another product, as in a gate"
                )
                refused(_NAME, Refusal(gate), op)


_NAME = "merge-matmuls"


def _kind(product: _Product) -> Hashable:
    """The key that products must share to be merged; None for products that cannot be.

    It holds the left operand, the kind of product, and the weights' shapes but for the number of columns.
    """
    op = product.op
    shapes = tuple(
        (w.numpy_dtype, *w.shape[: product.axis], *w.shape[product.axis + 1 :]) for w in product.weights
    )
    attributes = tuple((k, v) for k, v in sorted(op.attributes.items()) if not notes.is_note(k))
    return type(op), op.operands[0], attributes, shapes


def _product(op: Operation) -> _Product | Refusal | None:
    """The product that an operator is; a reason where it cannot be merged, None for other operators."""
    if isinstance(op, graph.Matmul):
        if op.dtype is not None:
            return Refusal(
                "it is a product of integers, and the epilogue of each converts it to real numbers"
            )
        axis = 1
    elif isinstance(op, graph.QuantizedMatMul):
        axis = 0
    else:
        return None
    constants = [v.defining_op for v in op.operands[1:]]
    left = op.operands[0]
    if not all(isinstance(c, graph.Constant) and len(c.value.shape) == 2 for c in constants):
        return Refusal("its right operand is not a constant matrix")
    if tensor_type(left).rank < 2 or isinstance(left.defining_op, graph.Constant):
        return Refusal("its left operand is a vector or a constant")
    product = _Product(op, tuple(c.value for c in constants), axis, None, op)
    users = op.result.users
    if op.result.has_one_use and isinstance(users[0], graph.Add) and users[0].parent is op.parent:
        add: Any = users[0]
        bias = array_of(add.b) if add.a is op.result else array_of(add.a)
        if (
            bias is not None
            and bias.shape == (product.columns,)
            and same_shape(add.result.type.shape, op.result.type.shape)
        ):
            product.bias, product.last = bias, add
    return product


def _apart(products: list[_Product]) -> list[_Product]:
    """The products whose results no elementwise operator combines (a gate): there, one product is the other's
    epilogue.
    """
    reached = [_reached(p.last) for p in products]
    return [
        p
        for k, p in enumerate(products)
        if not any(reached[k] & other for j, other in enumerate(reached) if j != k)
    ]


def _reached(op: Operation, depth: int = 4) -> set[Operation]:
    """The elementwise operators that read a result, directly or through others."""
    if depth == 0:
        return set()
    readers = {u for u in op.results[0].users if isinstance(u, ELEMENTWISE)}
    return readers.union(*(_reached(u, depth - 1) for u in readers))


def _merge(products: list[_Product], order: dict[Operation, int]) -> None:
    first = min((p.op for p in products), key=order.__getitem__)
    b = Builder.before(first)
    axis = products[0].axis
    weights = [_joined([p.weights[k] for p in products], axis) for k in range(len(products[0].weights))]
    constants = iter([first.operands[0], *(b(graph.Constant(value=w)) for w in weights)])
    attributes = {k: v for k, v in first.attributes.items() if not notes.is_note(k)}
    sizes = attributes.pop("operand_segments", (1,) * len(first.operands))
    joined = b(type(first)(*(next(constants) if n else None for n in sizes), **attributes))
    if any(p.bias is not None for p in products):
        dtype = tensor_type(joined).dtype.numpy
        parts = [np.zeros(p.columns, dtype) if p.bias is None else p.bias for p in products]
        joined = b(graph.Add(joined, new_constant(b, np.concatenate(parts), weights[0].name)))
    start, axis = 0, tensor_type(joined).rank - 1
    slices = []
    for p in products:
        slices.append(slice_along(b, joined, axis, start, start + p.columns))
        start += p.columns
    for p, part in zip(products, slices, strict=True):
        p.last.replace_by(part)
        if p.last is not p.op:
            p.op.erase()


@dataclass(frozen=True)
class _Joined:
    """Writes the concatenation of constants along an axis."""

    axis: int
    weights: tuple[Constant, ...]

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        start = 0
        for w in self.weights:
            place = [slice(None)] * out.ndim
            place[self.axis] = slice(start, start := start + w.shape[self.axis])
            w.write_to(out[tuple(place)])


def _joined(weights: list[Constant], axis: int) -> Constant:
    """The concatenation of the weights."""
    shape = list(weights[0].shape)
    shape[axis] = sum(w.shape[axis] for w in weights)
    joined = Constant.made(shape, weights[0].numpy_dtype, _Joined(axis, tuple(weights)), weights[0].name)
    return joined.made_of(weights, "columns joined")
