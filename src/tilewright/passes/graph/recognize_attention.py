"""Recognizes scaled dot-product attention that is written out as products and a softmax.

The form is ``product(softmax(masks(scale * product(q, k))), v)``. Between the products there may be, in any
order that keeps the meaning: factors (on q, on k, behind the product, behind masks), a cap ``c * tanh(scores
/ c)``, masks that are added or selected, conversions between float types, reshapes of the leading dimensions,
and guards against rows with all keys hidden. The products are matmuls or einsums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import broadcast_shapes, normalize_axis, tensor_type
from ...dialects.graph.elementwise import constant, same_shape, splat_value
from ...ir.builder import Builder
from ...ir.core import IRError, Value
from ...ir.refusal import Refusal
from ...ir.rewrite import Rewriter, pattern
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import Shape, TensorType, boolean
from .match import array_of, broadcast_to, is_one, number, producer, rebuild, reshape, transpose
from .simplify_index import as_iota

LOWEST = -1e30
"""A number added to a score hides a key if it is at most this, in a row that keeps another key."""

STEPS = 12
"""Largest number of operators between a softmax and a product."""


def _scaled_by(value: Value) -> tuple[Value, float]:
    """``x`` and ``c`` of ``c * x`` with a positive number c, 1 if there is no factor."""
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
    """As `_scaled_by`, but through transposes, reshapes and broadcasts, which are rebuilt without the
    factor.
    """
    value, scale = _scaled_by(value)
    below, moved, renewed = value, [], 0
    while isinstance(op := below.defining_op, (graph.Transpose, graph.Reshape, graph.BroadcastTo)):
        moved.append(op)
        below, factor = _scaled_by(op.x)
        if factor != 1.0:
            value, scale, renewed = below, scale * factor, len(moved)
    for op in reversed(moved[:renewed]):
        value = b(rebuild(op, [value]))
    return value, scale


# -- From the weights to the product of queries and keys --


def _unchanged(value: Value) -> Value | None:
    """The operand of an operator that changes leading dimensions or the float type only; None for other
    operators.
    """
    op: Any = value.defining_op
    if isinstance(op, graph.Reshape):
        before, after = tensor_type(op.x).shape, tensor_type(value).shape
        return op.x if len(before) > 2 < len(after) and same_shape(before[-2:], after[-2:]) else None
    return op.x if isinstance(op, graph.Cast) and tensor_type(op.x).dtype.is_float else None


def _softmax_of(weights: Value) -> Value | None:
    """The scores of a softmax over the last dimension; None for other values.

    The softmax may be guarded so that rows without a key are zero, as attention's are.
    """
    value = weights
    while value.has_one_use:
        op: Any = value.defining_op
        if isinstance(op, graph.Select):
            test = producer(op.condition, graph.Isnan)
            if test is None or test.x is not op.b or number(op.a) != 0 or len(list(op.b.uses)) != 2:
                return None
            op = op.b.defining_op
        if isinstance(op, graph.Softmax):
            rank = tensor_type(op.x).rank
            return op.x if normalize_axis(op.axis, rank) == rank - 1 else None
        below = _unchanged(value)
        if below is None:
            return None
        value = below
    return None


@dataclass(frozen=True)
class _Mask:
    """A mask of scores of the shape `frame`.

    ``factor * value`` is added to the scores. A boolean `value` instead keeps scores where it is true (with
    `hides`, where it is false); the others become the number `low`.
    """

    value: Value
    frame: Shape
    factor: float = 1.0
    low: float = -np.inf
    hides: bool = False


@dataclass
class _Scores:
    """The operations between a softmax and the product of its scores; a cap of 0 means that there is none."""

    product: Value
    scale: float = 1.0
    cap: float = 0.0
    masks: list[_Mask] = field(default_factory=list)


def _taken_apart(scores: Value) -> _Scores | None:
    """The steps from a product to the scores of a softmax; None if one is not a factor, a mask, a cap or
    irrelevant.
    """
    chain = _Scores(scores)
    value = scores
    for _ in range(STEPS):
        op: Any = value.defining_op
        if isinstance(op, (graph.Matmul, graph.Einsum)):
            chain.product = value
            return chain
        inner, factor = _scaled_by(value)
        if not value.has_one_use:
            return None
        if factor != 1.0:
            value, chain.scale = inner, chain.scale * factor
        elif (below := _unchanged(value)) is not None:
            value = below
        elif isinstance(op, graph.Tanh) and not chain.cap:
            value, chain.cap, chain.scale = op.x, chain.scale, 1.0
        elif chain.cap:
            return None  # a mask below the cap would be capped, too
        elif isinstance(op, (graph.Add, graph.Sub)):
            sides = (0, 1) if isinstance(op, graph.Add) else (0,)
            side = next((k for k in sides if _leads_to_product(op.operands[k])), None)
            if side is None:
                return None
            sign = 1 if isinstance(op, graph.Add) else -1
            chain.masks.append(_Mask(op.operands[1 - side], tensor_type(value).shape, sign * chain.scale))
            value = _of_same_shape(op.operands[side], value)
        elif isinstance(op, graph.Select):
            hides = number(op.a) is not None
            low, kept = (number(op.a), op.b) if hides else (number(op.b), op.a)
            if low is None or low > LOWEST:
                return None
            chain.masks.append(_Mask(op.condition, tensor_type(value).shape, low=low, hides=hides))
            value = _of_same_shape(kept, value)
        else:
            return None
        if value is None:
            return None
    return None


def _of_same_shape(value: Value, other: Value) -> Any:
    """The value, or None if it is broadcast to the shape of the other."""
    return value if same_shape(tensor_type(value).shape, tensor_type(other).shape) else None


def _leads_to_product(value: Value, steps: int = STEPS) -> bool:
    op: Any = value.defining_op
    if steps == 0 or not value.has_one_use or op is None:
        return False
    if isinstance(op, (graph.Matmul, graph.Einsum)):
        return True
    below = _unchanged(value)
    if below is not None:
        return _leads_to_product(below, steps - 1)
    if isinstance(op, (graph.Add, graph.Sub, graph.Mul, graph.Div, graph.Select, graph.Tanh)):
        return any(_leads_to_product(x, steps - 1) for x in op.operands)
    return False


def _lifted(mask: _Mask, shape: Shape, b: Builder) -> Value | None:
    """A mask in the four dimensions of the scores; None if it does not broadcast to them."""
    dims = tensor_type(mask.value).shape
    lead, target = mask.frame[:-2], shape[:-2]
    dims = (*(1 for _ in mask.frame[len(dims) :]), *dims)
    if len(dims) > len(mask.frame):
        return None
    if all(is_one(n) for n in dims[:-2]):
        dims = (1, 1, *dims[-2:])
    elif same_shape(dims[:-2], lead):
        # one mask for each pair of batch and head, whatever the leading dimensions
        dims = (*target, *dims[-2:])
    elif not same_shape(lead, target):
        return None
    try:
        fits = same_shape(broadcast_shapes(dims, shape), shape)
    except IRError:
        fits = False
    return reshape(b, mask.value, dims) if fits else None


def _joined(masks: list[_Mask], shape: Shape, like: Value, b: Builder) -> Value | None:
    """The conjunction of all masks: boolean if each of them hides keys completely, otherwise the sum of added
    values.
    """
    lifted = [(_lifted(m, shape, b), m) for m in masks]
    keep: Value | None = None
    added: Value | None = None
    for value, m in lifted:
        assert value is not None
        if m.hides:
            value = b(graph.Not(value))
        if tensor_type(value).dtype is boolean and m.low == -np.inf:
            keep = value if keep is None else b(graph.And(keep, value))
            continue
        if tensor_type(value).dtype is boolean:
            value = b(graph.Select(value, constant(b, 0, like), constant(b, m.low, like)))
        elif m.factor != 1.0:
            value = b(graph.Mul(value, constant(b, m.factor, value)))
        added = value if added is None else b(graph.Add(added, value))
    if keep is None or added is None:
        return keep if added is None else added
    return b(graph.Select(keep, added, constant(b, -np.inf, added)))


# -- The two products --


@dataclass(frozen=True)
class _Product:
    """A batched product of operands with dimensions (batches..., left, contracted) and (batches...,
    contracted, right).

    `order` permutes (batches..., left, right) to the dimensions of the result.
    """

    left: Value
    right: Value
    order: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        return self.order == tuple(range(len(self.order)))


def _product(op: graph.Matmul | graph.Einsum, side: int, b: Builder) -> _Product | None:
    """A matmul, or an einsum of two operands, as a batched product with operand number `side` as its left
    operand.
    """
    if isinstance(op, graph.Matmul):
        ranks = {tensor_type(x).rank for x in (op.a, op.b, op.result)}
        return _Product(op.a, op.b, tuple(range(*ranks))) if side == 0 and len(ranks) == 1 else None
    terms, _, output = op.equation.replace(" ", "").partition("->")
    letters = terms.split(",")
    if len(letters) != 2 or not all(t.isalpha() and len(set(t)) == len(t) for t in (*letters, output)):
        return None
    left, right = letters[side], letters[1 - side]
    batch = [x for x in output if x in left and x in right]
    rows = [x for x in output if x not in right]
    columns = [x for x in output if x not in left]
    contracted = [x for x in left if x not in output]
    if [len(x) for x in (rows, columns, contracted)] != [1, 1, 1] or len(batch) + 2 != len(left) != len(
        right
    ):
        return None
    if {*batch, *rows, *contracted} != set(left) or {*batch, *contracted, *columns} != set(right):
        return None
    x = transpose(b, op.inputs[side], [left.index(c) for c in (*batch, *rows, *contracted)])
    y = transpose(b, op.inputs[1 - side], [right.index(c) for c in (*batch, *contracted, *columns)])
    return _Product(x, y, tuple([*batch, *rows, *columns].index(c) for c in output))


def _with_lead(x: Value, lead: Shape, b: Builder) -> Value | None:
    """(..., rows, depth) with other leading dimensions; None if it is broadcast to them.

    A single head that serves all remains single.
    """
    old = tensor_type(x)
    shape = (*lead, *old.shape[-2:])
    if old.rank == 4 and is_one(old.shape[1]) and prove_eq(old.shape[0], lead[0]):
        return x
    return reshape(b, x, shape) if prove_eq(old.size, TensorType(old.dtype, shape).size) else None


def _swapped(x: Value, b: Builder) -> Value:
    """The last two dimensions exchanged; the operand of a transpose that does just that."""
    rank = tensor_type(x).rank
    swap = (*range(rank - 2), rank - 1, rank - 2)
    inner = producer(x, graph.Transpose)
    if inner is not None:
        return transpose(b, inner.x, [inner.permutation[p] for p in swap])
    return transpose(b, x, swap)


@pattern(graph.Matmul, graph.Einsum)
def attention(op: graph.Matmul | graph.Einsum, rewriter: Rewriter) -> bool | Refusal:
    """Products and a softmax -> attention (see the module's docstring)."""
    verdict: bool | Refusal = False
    for side, weights in enumerate(op.operands[:2]):
        scores = _softmax_of(weights)
        below = _taken_apart(scores) if scores is not None else None
        if scores is not None and below is not None:
            return _replace(op, side, scores, below, rewriter)
        if scores is not None:
            verdict = NOT_SCORES
    return verdict


NOT_SCORES = Refusal(
    "between the softmax and a product of queries and keys are other steps than factors, masks and one cap, "
    "or a step has further readers"
)
NO_HEADS = Refusal(
    "queries, keys and values do not have the same sequences and heads, or their sizes are unknown"
)


def _replace(
    op: graph.Matmul | graph.Einsum, side: int, scores: Value, below: _Scores, rewriter: Rewriter
) -> bool | Refusal:
    b = rewriter.builder
    kind = tensor_type(scores)
    if kind.rank not in (3, 4) or not kind.dtype.is_float:
        return Refusal(f"the scores are {kind}, not three or four dimensions of floating-point numbers")
    inner = below.product.defining_op
    assert inner is not None
    values = _product(op, side, b)
    pairs = (_product(inner, k, b) for k in (0, 1))
    product = next((p for p in pairs if p is not None and p.is_plain), None)
    if (
        values is None
        or product is None
        or tensor_type(values.left).shape[-2:] != tensor_type(op.operands[side]).shape[-2:]
    ):
        return Refusal("one of the products is no product of matrices with the rows of queries and keys")
    q, first = _unscaled(product.left, b)
    k, second = _unscaled(product.right, b)
    lead = kind.shape[:-2] if kind.rank == 4 else (kind.shape[0], 1)
    shape = (*lead, *kind.shape[-2:])
    if any(_lifted(m, shape, b) is None for m in below.masks):
        return Refusal("a mask has no form that is broadcast to the scores")
    queries, keys, v = (_with_lead(x, lead, b) for x in (q, _swapped(k, b), values.right))
    if queries is None or keys is None or v is None:
        return NO_HEADS
    single_heads = tensor_type(queries).shape[1] != 1 and [is_one(tensor_type(x).shape[1]) for x in (keys, v)]
    # `grouped_queries` matches the broadcasts that make them equal
    if single_heads == [True, False] or single_heads == [False, True]:
        keys, v = (broadcast_to(b, x, (*lead, *tensor_type(x).shape[-2:])) for x in (keys, v))
    if not _is_attention(queries, keys, v):
        return NO_HEADS
    mask = _joined(list(reversed(below.masks)), shape, scores, b)
    scale = first * second * below.scale * (below.cap or 1.0)
    y = b(graph.Attention(queries, keys, v, mask, scale=scale, softcap=below.cap))
    outer = tensor_type(values.left).shape[:-2]
    y = reshape(b, y, (*outer, *tensor_type(y).shape[-2:]))
    y = reshape(b, transpose(b, y, values.order), op.result.type.shape)
    if y.type.dtype is not op.result.type.dtype:  # a cast of the queries was looked through
        y = b(graph.Cast(y, dtype=op.result.type.dtype))
    rewriter.replace(op, y)
    return True


def _is_attention(q: Value, k: Value, v: Value) -> bool:
    a, c, e = (tensor_type(x).shape for x in (q, k, v))
    return (
        isinstance(a[1], int)
        and c[1] == e[1]
        and (c[1] == a[1] or is_one(c[1]))
        and prove_eq(a[0], c[0])
        and prove_eq(a[0], e[0])
        and prove_eq(a[3], c[3])
        and prove_eq(c[2], e[2])
    )


# -- Inside attention --


def _repeated_heads(value: Value) -> tuple[Value, int] | None:
    """``x`` of shape (B, G, T, D) and r, if `value` is each head of ``x`` repeated r times in a row;
    otherwise None.

    ``x`` may have an axis of one point behind G.
    """
    joined = producer(value, graph.Reshape)
    wide = producer(value if joined is None else joined.x, graph.BroadcastTo)
    if wide is None:
        return None
    narrow, full = tensor_type(wide.x).shape, tuple(wide.shape)
    at = 1 if joined is None else 2
    if (
        len(narrow) != 3 + at
        or len(full) != 3 + at
        or not is_one(narrow[at])
        or not isinstance(full[at], int)
    ):
        return None
    if not same_shape((*narrow[:at], *narrow[at + 1 :]), (*full[:at], *full[at + 1 :])):
        return None
    groups = 1 if at == 1 else full[1]
    if not isinstance(groups, int):
        return None
    repeat = full[at]
    heads = (full[0], groups * repeat, *full[-2:])
    return (wide.x, repeat) if same_shape(tensor_type(value).shape, heads) else None


@pattern(graph.Attention)
def grouped_queries(op: graph.Attention, rewriter: Rewriter) -> bool:
    """Keys and values repeated for each query head -> fewer key and value heads."""
    k, v = _repeated_heads(op.k), _repeated_heads(op.v)
    if op.k_scale is not None or op.v_scale is not None:
        return False  # there are as many key heads as query heads
    if k is None or v is None or k[1] != v[1]:
        return False
    b = rewriter.builder
    for index, (x, repeat) in ((1, k), (2, v)):
        full = tensor_type(op.operands[index]).shape
        op.set_operand(index, reshape(b, x, (full[0], full[1] // repeat, *full[2:])))
    rewriter.changed(op)
    return True


def _is_causal(value: Value, rows: Dim, keys: Dim) -> bool:
    """Whether a boolean value is ``key <= row`` for scores of `rows` by `keys`."""
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
    """Whether a value counts 0, 1, ... along an axis, which is negative as from the end."""
    t = tensor_type(value)
    if t.rank < -axis:
        return False
    table = array_of(value)
    if table is not None:
        n = table.shape[axis]
        return table.size == n and bool(np.array_equal(table.reshape(-1), np.arange(n)))
    x = as_iota(value)
    return x is not None and x.axis % t.rank == t.rank + axis and prove_eq(x.start, 0) and prove_eq(x.step, 1)


def _masked(op: graph.Attention, mask: Value | None, causal: bool) -> graph.Attention:
    """The same attention with another mask."""
    return graph.Attention(
        op.q,
        op.k,
        op.v,
        mask,
        op.k_scale,
        op.v_scale,
        op.sinks,
        scale=op.scale,
        causal=causal,
        softcap=op.softcap,
    )


@pattern(graph.Attention)
def causal_mask(op: graph.Attention, rewriter: Rewriter) -> bool:
    """A mask that only hides later keys -> the attribute; also as part of a conjunction, if the mask is
    boolean.
    """
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
    rewriter.replace(op, rewriter.builder(_masked(op, rest, True)))
    return True


def _adds_causal(mask: Value, rows: Dim, keys: Dim) -> bool:
    """Whether an added mask is 0 up to the row's own key and hides the others.

    Every row keeps a key, so any sufficiently low number has the same effect.
    """
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
def selected_mask(op: graph.Attention, rewriter: Rewriter) -> bool:
    """An added mask of 0 and minus infinity -> the boolean mask it is computed from."""
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
def no_mask(op: graph.Attention, rewriter: Rewriter) -> bool:
    """A mask that hides nothing -> no mask."""
    if op.mask is None:
        return False
    element = splat_value(op.mask)
    if element is None or bool(element) != (tensor_type(op.mask).dtype is boolean):
        return False
    rewriter.replace(op, rewriter.builder(_masked(op, None, op.causal)))
    return True


ATTENTION_PATTERNS = [attention, grouped_queries, causal_mask, selected_mask, no_mask]
