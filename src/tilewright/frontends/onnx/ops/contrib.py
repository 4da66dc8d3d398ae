"""Operators of ONNX Runtime's domain ``com.microsoft`` that its transformer optimizer creates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import i32
from ...unsupported import Unsupported
from ..registry import importer
from .convolution import conv
from .elementwise import cast, scalar
from .matrix import gemm, transposed
from .normalize import layer_norm
from .run_time import Arithmetic

if TYPE_CHECKING:
    from ..node import Node

_MS = "com.microsoft"


@importer("Gelu", "FastGelu", "BiasGelu", domain=_MS)
def _gelu(n: Node) -> Value:
    x = n.value(0)
    x = n.emit(g.Add(x, n.value(1))) if n.has(1) else x
    return n.emit(g.Gelu(x, approximate="tanh" if n.op_type == "FastGelu" else "none"))


@importer("QuickGelu", domain=_MS)
def _quick_gelu(n: Node) -> Value:
    x = n.value(0)
    return n.emit(g.Mul(x, n.emit(g.Sigmoid(n.emit(g.Mul(x, scalar(n, n.attr("alpha", 1.702), x)))))))


@importer("FusedMatMul", "TransposeMatMul", domain=_MS)
def _fused_matmul(n: Node) -> Value:
    a, b = (_turned(n, n.value(k), side) for k, side in enumerate("AB"))
    y: Value = n.emit(g.Matmul(a, b))
    alpha = n.attr("alpha", 1.0)
    return y if alpha == 1.0 else n.emit(g.Mul(y, scalar(n, alpha, y)))


def _turned(n: Node, x: Value, side: str) -> Value:
    """Return a matrix factor after its optional changes of layout: row dimension before the batch dimensions,
    then transposed.
    """
    rank = x.type.rank
    if n.attr(f"transBatch{side}", 0) and rank > 2:
        x = n.emit(g.Transpose(x, permutation=(*range(1, rank - 1), 0, rank - 1)))
    return transposed(n, x) if n.attr(f"trans{side}", 0) and rank > 1 else x


@importer("FusedConv", domain=_MS)
def _fused_conv(n: Node) -> Value:
    y = conv(n, n.value(0), n.value(1), n.optional(2))
    y = n.emit(g.Add(y, n.value(3))) if n.has(3) else y
    return _activated(n, y, *(n.attr("activation_params") or ()))


@importer("FusedGemm", domain=_MS)
def _fused_gemm(n: Node) -> Value:
    parameters = (n.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma"))
    return _activated(n, gemm(n), *(p for p in parameters if p is not None))


def _activated(n: Node, x: Value, *parameters: float) -> Value:
    match n.attr("activation", ""):
        case "":
            return x
        case "Relu":
            return n.emit(g.Relu(x))
        case "Tanh":
            return n.emit(g.Tanh(x))
        case "Sigmoid":
            return n.emit(g.Sigmoid(x))
        case "LeakyRelu":
            return n.emit(g.LeakyRelu(x, slope=(*parameters, 0.01)[0]))
        case "Clip" if len(parameters) == 2:
            return n.emit(g.Clamp(x, minimum=parameters[0], maximum=parameters[1]))
        case "HardSigmoid" if len(parameters) == 2:
            return n.emit(g.HardSigmoid(x, alpha=parameters[0], beta=parameters[1]))
        case name:
            raise Unsupported(f"the activation {name} of {len(parameters)} parameters")


@importer("EmbedLayerNormalization", domain=_MS)
def _embed_layer_norm(n: Node) -> Any:
    """Return the normalized sum of word, position and segment embeddings; the number of words of each row;
    the sum.
    """
    words = n.value(0)
    batch, rows = words.type.shape
    places = n.optional(8)
    if places is None:
        places = n.emit(g.Iota(shape=(1, rows), axis=1))
    n.expect_index(words, n.value(2).type.shape[0])
    total = n.emit(g.Gather(n.value(2), words, axis=0))
    total = n.emit(g.Add(total, n.emit(g.Gather(n.value(3), places, axis=0))))
    if n.has(4):
        total = n.emit(g.Add(total, n.emit(g.Gather(n.value(4), n.value(1), axis=0))))
    y = layer_norm(n, total, n.value(5), n.value(6), -1, n.attr("epsilon", 1e-12))
    if n.has(7) and n.attr("mask_index_type", 1):
        count = n.emit(g.ReduceSum(cast(n, n.value(7), i32), axes=(1,), keepdims=False))
    else:
        count = n.emit(g.BroadcastTo(n.constant(0, i32), shape=(batch,)))
    return (y, count, total)[: len(n.outputs)] if len(n.outputs) > 1 else y


@importer("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_MS)
def _skip_layer_norm(n: Node) -> Any:
    """Return ``norm(input + skip + bias)``, the mean, the reciprocal of the standard deviation, and the
    sum.
    """
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
    mean = deviation = None
    if n.wants(1) or n.wants(2):
        a, axes = Arithmetic(n), (total.type.rank - 1,)
        mean = None if simplified else a.ReduceMean(total, axes=axes, keepdims=True)
        centered = total if mean is None else a.Sub(total, mean)
        square = a.ReduceMean(a.Mul(centered, centered), axes=axes, keepdims=True)
        deviation = a.Rsqrt(a.Add(square, epsilon))
    return (y, mean, deviation, total)[: len(n.outputs)] if len(n.outputs) > 1 else y
