"""Losses that torch computes by dedicated operators."""

from __future__ import annotations

import math
from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import f32, f64, i64
from ..importer import Node
from ..registry import importer


def _cross_entropy(
    n: Node, x: Value, weight: Value, target: Value, bias: Value | None, shares: Value | None, ignored: int
) -> tuple[Value, Value]:
    """Return the loss of each row under a linear layer, and its weight by class; rows of class `ignored` have
    weight 0.
    """
    dtype = x.type.dtype if x.type.dtype is f64 else f32
    rows, classes = x.type.shape[0], weight.type.shape[0]
    logits = n.cast(n.emit(g.Matmul(x, n.transpose(weight, (1, 0)))), dtype)
    if bias is not None:
        logits = n.binary("add", logits, n.cast(bias, dtype))
    target = n.cast(target, i64)  # An ignored class may be negative.
    skipped = n.binary("eq", target, n.constant(ignored, i64))
    known = n.emit(g.Select(skipped, n.constant(0, i64), target))
    n.expect_index(known, classes, wraps=False)
    target_logit = n.emit(g.GatherElements(logits, n.reshape(known, (rows, 1)), axis=1))
    loss = n.binary("sub", n.emit(g.LogSumExp(logits, axes=(1,))), n.reshape(target_logit, (rows,)))
    if shares is None:
        shares = n.broadcast(n.constant(1, dtype), (classes,))
    weighs = n.emit(g.Gather(n.cast(shares, dtype), known, axis=0))
    return loss, n.emit(g.Select(skipped, n.constant(0, dtype), weighs))


@importer("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def linear_cross_entropy_of_rows(
    n: Node,
    x: Value,
    weight: Value,
    target: Value,
    bias: Value | None,
    shares: Value | None,
    ignored: int,
    *_: object,
) -> Value:
    loss, weighs = _cross_entropy(n, x, weight, target, bias, shares, ignored)
    return n.cast(n.binary("mul", loss, weighs), n.result_dtype())


@importer("torch_nn._linear_cross_entropy_batch_chunked.default")
def linear_cross_entropy(
    n: Node,
    x: Value,
    weight: Value,
    target: Value,
    bias: Value | None,
    shares: Value | None,
    reduction: str,
    ignored: int,
    *_: object,
) -> tuple[Any, ...]:
    """Import the loss under a linear layer; the mean is NaN if all rows have weight 0."""
    loss, weighs = _cross_entropy(n, x, weight, target, bias, shares, ignored)
    total = n.emit(g.ReduceSum(n.binary("mul", loss, weighs), axes=(0,)))
    if reduction == "mean":
        whole = n.emit(g.ReduceSum(weighs, axes=(0,)))
        dtype = whole.type.dtype
        none = n.binary("eq", whole, n.constant(0, dtype))
        total = n.binary("div", total, n.emit(g.Select(none, n.constant(math.nan, dtype), whole)))
    return n.cast(total, n.result_dtype(0)), None, None, None
