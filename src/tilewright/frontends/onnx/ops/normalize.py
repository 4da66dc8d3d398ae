"""Normalizations and softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast, scalar
from .run_time import Arithmetic
from .shape import slice_

if TYPE_CHECKING:
    from ..node import Node


@importer("Softmax", "LogSoftmax")
def _softmax(n: Node) -> Value:
    operator = g.Softmax if n.op_type == "Softmax" else g.LogSoftmax
    return n.emit(operator(n.value(0), axis=n.attr("axis", -1)))


@importer("LayerNormalization")
def _layer_norm(n: Node) -> Value:
    if n.wants(1) or n.wants(2):
        raise Unsupported("the second and third output (mean and deviation)")
    return layer_norm(n, n.value(0), n.value(1), n.optional(2), n.attr("axis", -1), n.attr("epsilon", 1e-5))


def layer_norm(
    n: Node, x: Value, scale: Value | None, bias: Value | None, axis: int, epsilon: float
) -> Value:
    """Layer normalization over the axes from `axis` on."""
    rank = x.type.rank
    axes = tuple(range(normalize_axis(axis, rank), rank))
    return n.emit(g.LayerNorm(x, scale, bias, axes=axes, epsilon=epsilon))


@importer("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(n: Node) -> Value:
    if n.wants(1):
        raise Unsupported("the second output (deviation)")
    rank = n.tensor(0).rank
    axes = tuple(range(normalize_axis(n.attr("axis", -1), rank), rank))
    return n.emit(g.RmsNorm(n.value(0), n.value(1), axes=axes, epsilon=n.attr("epsilon", 1e-5)))


@importer("GroupNormalization")
def _group_norm(n: Node) -> Value:
    x, scale = n.value(0), n.value(1)
    groups = n.attr("num_groups")
    if n.opset < 21 and scale.type.shape[0] != x.type.shape[1]:
        # opset 18 scales groups, not channels; the standard's function body expresses this
        raise Unsupported("")
    return n.emit(g.GroupNorm(x, scale, n.value(2), groups=groups, epsilon=n.attr("epsilon", 1e-5)))


@importer("InstanceNormalization")
def _instance_norm(n: Node) -> Value:
    x = n.value(0)
    return n.emit(
        g.GroupNorm(x, n.value(1), n.value(2), groups=x.type.shape[1], epsilon=n.attr("epsilon", 1e-5))
    )


@importer("BatchNormalization")
def _batch_norm(n: Node) -> Any:
    epsilon = n.attr("epsilon", 1e-5)
    x, scale, bias, *running = (n.value(k) for k in range(5))
    if not n.attr("training_mode", 0):
        if n.wants(1):
            raise Unsupported("training mode before opset 14; convert the model with onnx.version_converter")
        return n.emit(g.BatchNorm(x, scale, bias, *running, epsilon=epsilon))
    axes = tuple(k for k in range(x.type.rank) if k != 1)
    wide = cast(n, x, running[0].type.dtype)
    batch = [n.emit(operator(wide, axes=axes, keepdims=False)) for operator in (g.ReduceMean, g.Variance)]
    a, kept = Arithmetic(n, running[0].type.dtype), n.attr("momentum", 0.9)
    after = [a.Add(a.Mul(old, kept), a.Mul(new, 1 - kept)) for old, new in zip(running, batch, strict=True)]
    return [n.emit(g.BatchNorm(x, scale, bias, *batch, epsilon=epsilon)), *after]


@importer("LpNormalization")
def _lp_norm(n: Node) -> Value:
    x, axis = n.value(0), n.attr("axis", -1)
    if n.attr("p", 2) == 1:
        norm = n.emit(g.ReduceSum(n.emit(g.Abs(x)), axes=(axis,), keepdims=True))
    else:
        norm = n.emit(g.Sqrt(n.emit(g.ReduceSum(n.emit(g.Mul(x, x)), axes=(axis,), keepdims=True))))
    # A zero vector stays zero.
    zero = n.emit(g.Eq(norm, scalar(n, 0, norm)))
    return n.emit(g.Div(x, n.emit(g.Select(zero, scalar(n, 1, norm), norm))))


@importer("LRN")
def _local_response_norm(n: Node) -> Any:
    """Divide each element by a power of the sum of squares over `size` neighbouring channels (Krizhevsky et
    al., 2012).
    """
    x = n.value(0)
    size, channels, rank = n.attr("size"), x.type.shape[1], x.type.rank
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    square = n.emit(g.Mul(x, x))
    rest = (0,) * (rank - 2)
    padded = n.emit(g.Pad(square, low=(0, low, *rest), high=(0, high, *rest)))
    total = slice_(n, padded, 1, 0, channels)
    for k in range(1, size):
        total = n.emit(g.Add(total, slice_(n, padded, 1, k, channels + k)))
    scaled = n.emit(g.Mul(total, scalar(n, n.attr("alpha", 1e-4) / size, x)))
    base = n.emit(g.Add(scaled, scalar(n, n.attr("bias", 1.0), x)))
    return n.emit(g.Div(x, n.emit(g.Pow(base, scalar(n, n.attr("beta", 0.75), x)))))
