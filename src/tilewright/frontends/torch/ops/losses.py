"""Losses that torch computes by dedicated operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
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


@importer(
    "tilewright.ctc_loss.default",
    "tilewright.ctc_loss_of_lists.default",
    "aten.ctc_loss.IntList",
    "aten.ctc_loss.Tensor",
)
def ctc_loss(
    n: Node,
    x: Value,
    targets: Value,
    input_lengths: Value | Sequence[Dim],
    target_lengths: Value | Sequence[Dim],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Value:
    single = x.type.rank == 2
    times, counts = (
        n.cast(v, i64) if isinstance(v, Value) else n.emit(g.Symbolic(values=tuple(v), shape=(len(v),)))
        for v in (input_lengths, target_lengths)
    )
    if single:
        x = n.reshape(x, (x.type.shape[0], 1, x.type.shape[1]))
        times, counts = n.reshape(times, (1,)), n.reshape(counts, (1,))
        targets = n.reshape(targets, (1, targets.type.shape[0]))
    targets = n.cast(targets, i64)
    if targets.type.rank == 1:
        targets = _one_row_each(n, targets, counts, target_lengths)
    n.expect_index(times, x.type.shape[0] + 1, wraps=False)
    n.expect_index(counts, targets.type.shape[1] + 1, wraps=False)
    dtype = x.type.dtype
    loss = n.emit(g.CtcLoss(x, targets, times, counts, blank=blank))
    if zero_infinity:
        infinite = n.binary("eq", loss, n.constant(math.inf, dtype))
        loss = n.emit(g.Select(infinite, n.constant(0, dtype), loss))
    if reduction == 1:
        loss = n.binary("div", loss, n.cast(n.binary("max", counts, n.constant(1, i64)), dtype))
        return n.emit(g.ReduceMean(loss, axes=(0,), keepdims=False))
    if reduction == 2:
        return n.emit(g.ReduceSum(loss, axes=(0,), keepdims=False))
    return n.reshape(loss, ()) if single else loss


def _one_row_each(n: Node, targets: Value, counts: Value, lengths: Value | Sequence[Dim]) -> Value:
    """Return labels that follow each other, (sum of lengths), as rows (N, S) of the longest length; where
    only the run knows the lengths, S is the number of all labels.
    """
    total = targets.type.shape[0]
    known = not isinstance(lengths, Value) and all(isinstance(k, int) for k in lengths)
    size: Dim = max(cast("Sequence[int]", lengths), default=0) if known else total
    ends = n.emit(g.Cumsum(counts, axis=0))
    starts = n.reshape(n.binary("sub", ends, counts), (counts.type.shape[0], 1))
    places = n.binary("add", starts, n.emit(g.Iota(shape=(size,), start=0, step=1)))
    last = n.scalar(total - 1, i64)
    return n.emit(g.Gather(targets, n.binary("min", places, last), axis=0))


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
