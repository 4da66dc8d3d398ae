"""Normalizations, each as one operator."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import boolean, f32
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from .reduce import vector_norm


def _axes(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(range(-len(shape), 0))


@importer("aten.layer_norm.default")
def layer_norm(
    n: Node,
    x: Value,
    shape: Sequence[Any],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    _: object = None,
) -> Value:
    return n.emit(g.LayerNorm(x, weight, bias, axes=_axes(shape), epsilon=eps))


@importer("aten.native_layer_norm.default")
def native_layer_norm(
    n: Node, x: Value, shape: Sequence[Any], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Any, ...]:
    axes = _axes(shape)
    wide = n.cast(x, f32) if x.type.dtype.bits == 16 else x
    mean, deviation = _statistics(n, wide, axes, eps)
    return layer_norm(n, x, shape, weight, bias, eps), *(
        n.cast(v, n.result_dtype(k)) for k, v in ((1, mean), (2, deviation))
    )


def _statistics(n: Node, x: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value]:
    """Return the mean, and ``1 / sqrt(variance + eps)``, over `axes`, which are kept with size 1. They are
    computed as `graph.layer_norm` does, so that there is one of each.
    """
    mean = n.emit(g.ReduceMean(x, axes=axes, keepdims=True))
    centered = n.binary("sub", x, mean)
    variance = n.emit(g.ReduceMean(n.binary("mul", centered, centered), axes=axes, keepdims=True))
    return mean, n.unary("rsqrt", n.binary("add", variance, n.constant(eps, x.type.dtype)))


@importer("aten.rms_norm.default")
def rms_norm(
    n: Node, x: Value, shape: Sequence[Any], weight: Value | None = None, eps: float | None = None
) -> Value:
    return n.emit(g.RmsNorm(x, weight, axes=_axes(shape), epsilon=_epsilon(x, eps)))


def _epsilon(x: Value, eps: float | None) -> float:
    """Return the epsilon of RMS norm, by default that of the element type."""
    import torch

    return torch.finfo(getattr(torch, x.type.dtype.label)).eps if eps is None else eps


@importer("aten._fused_rms_norm.default")
def fused_rms_norm(
    n: Node, x: Value, shape: Sequence[Any], weight: Value | None, eps: float | None
) -> tuple[Any, ...]:
    dtype = n.result_dtype(1)
    wide = n.cast(x, dtype)
    square = n.emit(g.ReduceMean(n.binary("mul", wide, wide), axes=_axes(shape), keepdims=True))
    return rms_norm(n, x, shape, weight, eps), n.unary(
        "rsqrt", n.binary("add", square, n.constant(_epsilon(x, eps), dtype))
    )


@importer("aten.group_norm.default")
def group_norm(
    n: Node,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    _: object = None,
) -> Value:
    return n.emit(g.GroupNorm(x, weight, bias, groups=groups, epsilon=eps))


@importer("aten.native_group_norm.default")
def native_group_norm(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Dim,
    channels: Dim,
    size: Dim,
    groups: int,
    eps: float,
) -> tuple[Any, ...]:
    wide = n.cast(x, f32) if x.type.dtype.bits == 16 else x
    rows = n.reshape(wide, (batch, groups, channels // groups, *x.type.shape[2:]))
    axes = tuple(range(2, rows.type.rank))
    mean, deviation = (n.reshape(v, (batch, groups)) for v in _statistics(n, rows, axes, eps))
    return group_norm(n, x, groups, weight, bias, eps), *(
        n.cast(v, n.result_dtype(k)) for k, v in ((1, mean), (2, deviation))
    )


@importer("aten.instance_norm.default")
def instance_norm(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    _: object = None,
) -> Value:
    if not use_input_stats:
        assert mean is not None and variance is not None
        return batch_norm(n, x, weight, bias, mean, variance, False, momentum, eps)
    return n.emit(g.GroupNorm(x, weight, bias, groups=x.type.shape[1], epsilon=eps))


@importer("aten.batch_norm.default")
def batch_norm(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    _: object = None,
) -> Value:
    if training and mean is not None:
        raise Unsupported(
            "batch normalization over the batch itself (training mode); call model.eval() before compiling"
        )
    if x.type.rank == 1:  # torch accepts a tensor without elements.
        return x
    dtype = f32 if x.type.dtype.bits == 16 else x.type.dtype
    shape = (x.type.shape[1],)
    if mean is None or variance is None:  # Without running statistics, those of the batch are used.
        axes, wide = (0, *range(2, x.type.rank)), n.cast(x, dtype)
        mean = n.emit(g.ReduceMean(wide, axes=axes, keepdims=False))
        variance = n.emit(g.Variance(wide, axes=axes, keepdims=False))
    weight = n.broadcast(n.constant(1, dtype), shape) if weight is None else weight
    bias = n.broadcast(n.constant(0, dtype), shape) if bias is None else bias
    return n.emit(g.BatchNorm(x, weight, bias, mean, variance, epsilon=eps))


@importer("aten._native_batch_norm_legit_no_training.default")
def native_batch_norm(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    y = batch_norm(n, x, weight, bias, mean, variance, False, momentum, eps)
    unused = (n.broadcast(n.constant(0, n.result_dtype(k)), n.result_shape(k)) for k in (1, 2))
    return y, *unused  # The tensors that training keeps for the gradient are empty here.


@importer("aten._native_batch_norm_legit_functional.default")
def batch_norm_with_statistics(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_variance: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Return the result, the batch's mean and inverse deviation, and the new running statistics, that of the
    variance from the unbiased one.
    """
    if not training:
        found = native_batch_norm(n, x, weight, bias, running_mean, running_variance, momentum, eps)
        return *found, running_mean, running_variance
    dtype = f32 if x.type.dtype.bits == 16 else x.type.dtype
    axes, wide = (0, *range(2, x.type.rank)), n.cast(x, dtype)
    mean = n.emit(g.ReduceMean(wide, axes=axes, keepdims=False))
    variance = n.emit(g.Variance(wide, axes=axes, keepdims=False))
    y = batch_norm(n, x, weight, bias, mean, variance, False, momentum, eps)
    deviation = n.unary("rsqrt", n.binary("add", variance, n.constant(eps, dtype)))
    count: Any = reduce(operator.mul, (x.type.shape[a] for a in axes), 1)
    size = n.scalar(count, dtype)
    unbiased = n.binary("mul", variance, n.binary("div", size, n.scalar(count - 1, dtype)))
    share, rest = (n.constant(s, dtype) for s in (momentum, 1 - momentum))

    def moved(old: Value, new: Value) -> Value:
        mixed = n.binary("add", n.binary("mul", n.cast(old, dtype), rest), n.binary("mul", new, share))
        return n.cast(mixed, old.type.dtype)

    kept = (n.cast(v, n.result_dtype(k)) for k, v in ((1, mean), (2, deviation)))
    return y, *kept, moved(running_mean, mean), moved(running_variance, unbiased)


@importer("aten.embedding_renorm.default")
def embedding_renorm(n: Node, table: Value, indices: Value, limit: float, order: float) -> Value:
    """Return the table with the rows that `indices` name scaled down to a norm of at most `limit`."""
    rows, dtype = table.type.shape[0], table.type.dtype
    size = vector_norm(n, table, order, 1, True)
    most = n.constant(limit, dtype)
    factor = n.binary("div", most, n.binary("add", size, n.constant(1e-7, dtype)))
    flat = n.reshape(indices, (indices.type.size,))
    yes, no = (n.constant(v, boolean) for v in (True, False))
    named = n.emit(
        g.ScatterElements(n.broadcast(no, (rows,)), flat, n.broadcast(yes, flat.type.shape), axis=0)
    )
    long = n.binary("and", n.reshape(named, (rows, 1)), n.binary("gt", size, most))
    return n.emit(g.Select(long, n.binary("mul", table, factor), table))
