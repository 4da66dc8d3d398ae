"""Scaled dot-product attention, written out as products and a softmax, as one operator.

The form: ``matmul(softmax(scale * matmul(q, k^T) + masks), v)`` where the scale may stand on q, on k^T, on both or behind, masks are added
or selected, and exporters may guard the softmax against rows with every key hidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dialects import graph
from ..dialects.graph.base import broadcast_shapes, normalize_axis, tensor_type
from ..dialects.graph.elementwise import same_shape, splat_value
from ..ir.builder import Builder
from ..ir.core import IRError, Value
from ..ir.rewrite import Rewriter, pattern
from ..ir.symbolic import prove_eq
from ..ir.types import TensorType, boolean
from .match import array_of, is_one, number, only, producer, rebuild, reshape, transpose
from .simplify_index import as_iota

LOWEST = -1e30
"""A number added to a score hides a key when it is at most this, in a row that keeps another."""


def _scaled_by(value: Value) -> tuple[Value, float]:
    """``x`` and ``c`` of ``c * x`` with a positive number c (1 when there is none)."""
    scale = 1.0
    while True:
        op = value.defining_op
        if isinstance(op, graph.Mul) and (c := number(op.b)) and c > 0:
            value, scale = op.a, scale * c
        elif isinstance(op, graph.Div) and (c := number(op.b)) and c > 0:
            value, scale = op.a, scale / c
        else:
            return value, scale


def _unscaled(value: Value, b: Builder) -> tuple[Value, float]:
    """As `_scaled_by`, through transposes, reshapes and broadcasts, which are built anew without the number."""
    value, scale = _scaled_by(value)
    op: Any = value.defining_op
    if isinstance(op, (graph.Transpose, graph.Reshape, graph.BroadcastTo)):
        inner, factor = _unscaled(op.x, b)
        if factor != 1.0:
            return b(rebuild(op, [inner])), scale * factor
    return value, scale


def _softmax_of(value: Value) -> Value | None:
    """The scores of a softmax over the last dimension, perhaps guarded: rows without a key are zero, which attention's are too."""
    guard = only(value, graph.Select)
    if guard is not None:
        test = producer(guard.condition, graph.Isnan)
        if test is None or test.x is not guard.b or number(guard.a) != 0:
            return None
        value = guard.b
        if len(list(value.uses)) != 2:
            return None
    elif not value.has_one_use:
        return None
    op: Any = producer(value, graph.Softmax)
    if op is None or normalize_axis(op.axis, value.type.rank) != value.type.rank - 1:
        return None
    return op.x  # type: ignore[no-any-return]


def _masks(scores: Value) -> tuple[Value, float, list[Value]] | None:
    """The product below the masks, its scale, and what is added to it."""
    added: list[Value] = []
    scale = 1.0
    value = scores
    for _ in range(6):
        if isinstance(value.defining_op, (graph.Matmul, graph.Einsum)):
            return value, scale, added
        if not value.has_one_use:
            return None
        inner, factor = _scaled_by(value)
        if factor != 1.0:
            value, scale = inner, scale * factor
            continue
        op = value.defining_op
        if isinstance(op, graph.Add):
            if scale != 1.0:  # the masks would be scaled as well
                return None
            side = next((k for k in (0, 1) if _leads_to_product(op.operands[k])), None)
            if side is None:
                return None
            value, other = op.operands[side], op.operands[1 - side]
            added.append(other)
            continue
        return None
    return None


def _leads_to_product(value: Value) -> bool:
    for _ in range(6):
        op = value.defining_op
        if isinstance(op, (graph.Matmul, graph.Einsum)):
            return value.has_one_use
        if not value.has_one_use or not isinstance(op, (graph.Add, graph.Mul, graph.Div)):
            return False
        value = op.a
    return False


def _fits(mask: Value, shape: Any) -> bool:
    """Whether a mask broadcasts to the scores without making them larger."""
    try:
        return same_shape(broadcast_shapes(tensor_type(mask).shape, shape), shape)
    except IRError:
        return False


@pattern(graph.Matmul)
def attention(op: Any, rewriter: Rewriter) -> bool:
    """Products and a softmax -> attention (see the module's docstring)."""
    scores = _softmax_of(op.a)
    if scores is None:
        return False
    kind = tensor_type(scores)
    v = tensor_type(op.b)
    if kind.rank not in (3, 4) or v.rank != kind.rank or not kind.dtype.is_float:
        return False
    below = _masks(scores)
    if below is None:
        return False
    product, scale, masks = below
    factors = _factors(product, rewriter.builder)
    if factors is None:
        return False
    q, k, inner = factors
    scale *= inner
    if not all(_fits(m, kind.shape) for m in masks):
        return False
    b = rewriter.builder
    value = op.b
    if kind.rank == 3:
        q, k, value = (reshape(b, x, (tensor_type(x).shape[0], 1, *tensor_type(x).shape[1:])) for x in (q, k, value))
        masks = [_lifted(b, m) for m in masks]
    if not _is_attention(q, k, value):
        return False
    mask = None
    for m in reversed(masks):
        mask = m if mask is None else b(graph.Add(mask, m))
    y = b(graph.Attention(q, k, value, mask, scale=scale))
    rewriter.replace(op, reshape(b, y, op.result.type.shape))
    return True


def _factors(product: Value, b: Builder) -> tuple[Value, Value, float] | None:
    """Queries, keys and scale of ``q k^T``."""
    op: Any = product.defining_op
    if isinstance(op, graph.Matmul):
        q, first = _unscaled(op.a, b)
        turned, second = _unscaled(op.b, b)
        rank = tensor_type(product).rank
        if tensor_type(q).rank != rank or tensor_type(turned).rank != rank:
            return None
        swap = (*range(rank - 2), rank - 1, rank - 2)
        inner = producer(turned, graph.Transpose)
        if inner is not None:
            return q, transpose(b, inner.x, [inner.permutation[p] for p in swap]), first * second
        return q, transpose(b, turned, swap), first * second
    if len(op.inputs) == 2:
        equation = op.equation.replace(" ", "")
        left, _, output = equation.partition("->")
        terms = left.split(",")
        if all(t.isalpha() for t in (*terms, output)) and len(output) == 4 and all(len(t) == 4 for t in terms):
            a, c = terms
            wanted = (output[:3] + a[3], output[:2] + output[3] + a[3])
            if a[3] not in output and (a, c) == wanted:
                q, first = _unscaled(op.inputs[0], b)
                k, second = _unscaled(op.inputs[1], b)
                return q, k, first * second
    return None


def _is_attention(q: Value, k: Value, v: Value) -> bool:
    a, c, e = (tensor_type(x).shape for x in (q, k, v))
    return (
        isinstance(a[1], int)
        and a[1] == c[1] == e[1]
        and prove_eq(a[0], c[0])
        and prove_eq(a[0], e[0])
        and prove_eq(a[3], c[3])
        and prove_eq(c[2], e[2])
    )


def _lifted(b: Builder, mask: Value) -> Value:
    """A mask of (N, S, T) for scores (N, 1, S, T)."""
    shape = tensor_type(mask).shape
    return reshape(b, mask, (shape[0], 1, *shape[1:])) if len(shape) == 3 else mask


# -- Inside of attention -----------------------------------------------------------------------------------------------------------


def _repeated_heads(value: Value) -> tuple[Value, int] | None:
    """``x`` (B, G, T, D) and r when `value` is each of its heads repeated r times in a row."""
    joined = producer(value, graph.Reshape)
    wide = producer(joined.x, graph.BroadcastTo) if joined is not None else None
    if wide is None or tensor_type(wide.x).rank != 5 or len(wide.shape) != 5:
        return None
    narrow = tensor_type(wide.x).shape
    batch, groups, one, rows, depth = narrow
    repeat = wide.shape[2]
    if not is_one(one) or not isinstance(repeat, int) or not isinstance(groups, int):
        return None
    if not same_shape(tensor_type(value).shape, (batch, groups * repeat, rows, depth)):
        return None
    return wide.x, repeat


@pattern(graph.Attention)
def grouped_queries(op: Any, rewriter: Rewriter) -> bool:
    """Keys and values repeated for each query head -> fewer key and value heads."""
    k, v = _repeated_heads(op.k), _repeated_heads(op.v)
    if k is None or v is None or k[1] != v[1]:
        return False
    b = rewriter.builder
    for index, (x, _) in ((1, k), (2, v)):
        shape = tensor_type(x).shape
        op.set_operand(index, reshape(b, x, (*shape[:2], *shape[3:])))
    rewriter.changed(op)
    return True


def _is_causal(value: Value, rows: Any, keys: Any) -> bool:
    """Whether a boolean value says key <= row for scores of `rows` by `keys`."""
    t: TensorType = tensor_type(value)
    if t.rank < 2 or any(not is_one(n) for n in t.shape[:-2]):
        return False
    if not prove_eq(t.shape[-2], rows) or not prove_eq(t.shape[-1], keys):
        return False
    table = array_of(value)
    if table is not None:
        return bool(np.array_equal(table.reshape(table.shape[-2:]), np.tri(*table.shape[-2:], dtype=bool)))
    op = producer(value, graph.Le)
    if op is not None:
        return _positions(op.a, -1) and _positions(op.b, -2)
    op = producer(value, graph.Triangular)
    if op is not None:
        ones = number(op.x)
        return bool(ones) and not op.upper and prove_eq(op.diagonal, 0)
    return False


def _positions(value: Value, axis: int) -> bool:
    """Whether a value counts 0, 1, ... along the axis, negative as from the end."""
    t = tensor_type(value)
    if t.rank < -axis:
        return False
    table = array_of(value)
    if table is not None:
        n = table.shape[axis]
        return table.size == n and bool(np.array_equal(table.reshape(-1), np.arange(n)))
    x = as_iota(value)
    return x is not None and x.axis % t.rank == t.rank + axis and prove_eq(x.start, 0) and prove_eq(x.step, 1)


@pattern(graph.Attention)
def causal_mask(op: Any, rewriter: Rewriter) -> bool:
    """A mask that only hides later keys -> the attribute; out of a conjunction too, where the mask is boolean."""
    if op.mask is None or op.causal:
        return False
    rows, keys = tensor_type(op.q).shape[2], tensor_type(op.k).shape[2]
    mask: Value | None = op.mask
    assert mask is not None
    rest: Value | None = None
    if tensor_type(mask).dtype is boolean:
        conjunction = producer(mask, graph.And)
        if _is_causal(mask, rows, keys):
            pass
        elif conjunction is not None:
            side = next((k for k in (0, 1) if _is_causal(conjunction.operands[k], rows, keys)), None)
            if side is None:
                return False
            rest = conjunction.operands[1 - side]
        else:
            return False
    elif not _adds_causal(mask, rows, keys):
        return False
    rewriter.replace(op, rewriter.builder(graph.Attention(op.q, op.k, op.v, rest, scale=op.scale, causal=True)))
    return True


def _adds_causal(mask: Value, rows: Any, keys: Any) -> bool:
    """Whether an added mask is 0 up to the row's own key and hides the rest. Every row keeps a key, so that how low is all the same."""
    table = array_of(mask)
    if table is not None and table.ndim >= 2 and table.size == table.shape[-2] * table.shape[-1]:
        if (table.shape[-2], table.shape[-1]) != (rows, keys):
            return False
        plain = table.reshape(table.shape[-2:]).astype(np.float64)
        keep = np.tri(*plain.shape) > 0
        return bool((plain[keep] == 0).all() and (plain[~keep] <= LOWEST).all())
    op = producer(mask, graph.Select)
    if op is None or number(op.a) != 0 or (low := number(op.b)) is None or low > LOWEST:
        return False
    return _is_causal(op.condition, rows, keys)


@pattern(graph.Attention)
def selected_mask(op: Any, rewriter: Rewriter) -> bool:
    """An added mask of 0 and minus infinity -> the boolean mask it was made from."""
    if op.mask is None or (chosen := producer(op.mask, graph.Select)) is None:
        return False
    if number(chosen.a) != 0 or number(chosen.b) != -np.inf:
        return False
    if not same_shape(tensor_type(chosen.condition).shape, tensor_type(op.mask).shape):
        return False
    op.set_operand(3, chosen.condition)
    rewriter.changed(op)
    return True


@pattern(graph.Attention)
def no_mask(op: Any, rewriter: Rewriter) -> bool:
    """A mask that hides nothing -> none."""
    if op.mask is None:
        return False
    element = splat_value(op.mask)
    if element is None or bool(element) != (tensor_type(op.mask).dtype is boolean):
        return False
    rewriter.replace(op, rewriter.builder(graph.Attention(op.q, op.k, op.v, scale=op.scale, causal=op.causal)))
    return True


ATTENTION_PATTERNS = [attention, grouped_queries, causal_mask, selected_mask, no_mask]
