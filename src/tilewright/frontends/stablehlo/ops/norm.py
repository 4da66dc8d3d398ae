"""Batch normalization along the dimension `feature_index`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....ir.core import Value
from ..registry import importer

if TYPE_CHECKING:
    from ..node import Node


def _wide(n: Node, v: Value) -> Value:
    """Broadcast a vector with one element per feature."""
    x, feature = n.inputs[0], n.number("feature_index")
    return n.reshape(v, [x.type.shape[feature] if d == feature else 1 for d in range(x.type.rank)])


def _mean(n: Node, x: Value) -> Value:
    """Return the mean over all dimensions but the feature's."""
    feature = n.number("feature_index")
    return n.emit(g.ReduceMean(x, axes=tuple(d for d in range(x.type.rank) if d != feature), keepdims=False))


def _over_deviation(n: Node, variance: Value) -> Value:
    return n.unary("rsqrt", n.binary("add", variance, float(n.attr("epsilon").value)))


def _normalized(n: Node, mean: Value, variance: Value) -> Value:
    x = n.inputs[0]
    return n.binary("mul", n.binary("sub", x, _wide(n, mean)), _wide(n, _over_deviation(n, variance)))


@importer("batch_norm_inference")
def _inference(n: Node) -> Value:
    _, scale, shift, mean, variance = n.inputs
    y = _normalized(n, mean, variance)
    return n.binary("add", n.binary("mul", y, _wide(n, scale)), _wide(n, shift))


@importer("batch_norm_training")
def _training(n: Node) -> Sequence[Value]:
    x, scale, shift = n.inputs
    mean = _mean(n, x)
    off = n.binary("sub", x, _wide(n, mean))
    variance = _mean(n, n.binary("mul", off, off))
    y = _normalized(n, mean, variance)
    return [n.binary("add", n.binary("mul", y, _wide(n, scale)), _wide(n, shift)), mean, variance]


@importer("batch_norm_grad")
def _gradient(n: Node) -> Sequence[Value]:
    """Return the gradients of the training form by operand, scale and offset; `mean` and `variance` are those
    of the batch.
    """
    x, scale, mean, variance, dy = n.inputs
    y = _normalized(n, mean, variance)
    feature = n.number("feature_index")
    axes = tuple(d for d in range(x.type.rank) if d != feature)
    by_shift = n.emit(g.ReduceSum(dy, axes=axes, keepdims=False))
    by_scale = n.emit(g.ReduceSum(n.binary("mul", dy, y), axes=axes, keepdims=False))
    steady = n.binary(
        "add", _wide(n, _mean(n, dy)), n.binary("mul", y, _wide(n, _mean(n, n.binary("mul", dy, y))))
    )
    factor = n.binary("mul", scale, _over_deviation(n, variance))
    return [n.binary("mul", n.binary("sub", dy, steady), _wide(n, factor)), by_scale, by_shift]
