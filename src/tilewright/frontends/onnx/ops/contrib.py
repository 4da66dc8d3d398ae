"""Operators of ONNX Runtime's domain ``com.microsoft`` that its transformer optimizer makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from .elementwise import scalar
from .matrix import transposed
from .normalize import layer_norm
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node

_MS = "com.microsoft"


@importer("Gelu", "FastGelu", "BiasGelu", domain=_MS)
def _gelu(n: Node) -> Value:
    x = n.value(0)
    x = n.emit(g.Add(x, n.value(1))) if n.has(1) else x
    return n.emit(g.Gelu(x, approximate="tanh" if n.op_type == "FastGelu" else "none"))  # type: ignore[no-any-return]


@importer("QuickGelu", domain=_MS)
def _quick_gelu(n: Node) -> Value:
    x = n.value(0)
    return n.emit(g.Mul(x, n.emit(g.Sigmoid(n.emit(g.Mul(x, scalar(n, n.attr("alpha", 1.702), x)))))))  # type: ignore[no-any-return]


@importer("FusedMatMul", domain=_MS)
def _fused_matmul(n: Node) -> Value:
    if n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        raise Unsupported("transBatchA and transBatchB")
    a, b = n.value(0), n.value(1)
    a = transposed(n, a) if n.attr("transA", 0) and a.type.rank > 1 else a
    b = transposed(n, b) if n.attr("transB", 0) and b.type.rank > 1 else b
    y: Value = n.emit(g.Matmul(a, b))
    alpha = n.attr("alpha", 1.0)
    return y if alpha == 1.0 else n.emit(g.Mul(y, scalar(n, alpha, y)))


@importer("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_MS)
def _skip_layer_norm(n: Node) -> Any:
    """``norm(input + skip + bias)``; the fourth output is the sum."""
    if n.wants(1) or n.wants(2):
        raise Unsupported("the outputs mean and deviation")
    simplified = n.op_type == "SkipSimplifiedLayerNormalization"
    total = n.emit(g.Add(n.value(0), n.value(1)))
    bias = 3 if simplified else 4
    if n.has(bias):
        total = n.emit(g.Add(total, n.value(bias)))
    epsilon = n.attr("epsilon", 1e-12 if not simplified else 1e-6)
    if simplified:
        y = n.emit(g.RmsNorm(total, n.value(2), axes=(-1,), epsilon=epsilon))
    else:
        y = layer_norm(n, total, n.value(2), n.optional(3), -1, epsilon)
    return (y, None, None, total)[: len(n.outputs)] if len(n.outputs) > 1 else y
