"""Changes of a float model that keep its results and make it easier to quantize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialects import graph
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..passes.graph.match import array_of, constant_of, new_constant
from .observers import Array, Statistics
from .plan import Layer, Plan

ROUNDS = 20
"""Rounds of equalization. Ranges of long chains converge slowly; a larger value costs time at compilation."""
CONVERGED = 1e-3
"""Equalization ends when no factor differs from 1 by more."""


# -- Cross-layer equalization ------------------------------------------------------------------------------


@dataclass(eq=False)
class _Pair:
    """Two layers with operators in between that a positive factor of a channel passes through."""

    first: Layer
    second: Layer
    between: list[Any]


def equalize(plan: Plan) -> int:
    """Give the output channels of a layer and the input channels of the next equal ranges of weights, by
    factors that cancel: cross-layer equalization (Nagel et al., "Data-free quantization through weight
    equalization and bias correction", 2019).

    Between the layers there may be biases, ReLUs and clamps at zero, whose upper limits are scaled.

    Returns the number of pairs of layers.
    """
    by_op = {layer.op: layer for layer in plan.layers}
    pairs = [pair for layer in plan.layers if (pair := _pair(layer, by_op)) is not None]
    factors = {pair: np.ones(_outputs(pair.first)) for pair in pairs}
    weights = {layer: _weight(layer).astype(np.float64) for p in pairs for layer in (p.first, p.second)}
    for _ in range(ROUNDS):
        furthest = 0.0
        for pair in pairs:
            a = _peak(weights[pair.first], pair.first.weight_axis)
            b = _input_peak(pair.second, weights[pair.second])
            known = (a > 0) & (b > 0)
            factor = np.where(known, np.sqrt(np.where(known, a, 1) / np.where(known, b, 1)), 1.0)
            weights[pair.first] = weights[pair.first] / _along(
                factor, pair.first.weight_axis, weights[pair.first]
            )
            weights[pair.second] = _times_inputs(pair.second, weights[pair.second], factor)
            factors[pair] *= factor
            furthest = max(furthest, float(np.abs(factor - 1).max(initial=0.0)))
        if furthest < CONVERGED:
            break
    for layer, w in weights.items():
        _set_weight(layer, w)
    for pair in pairs:
        _scale_between(pair, factors[pair])
    return len(pairs)


def _pair(first: Layer, by_op: Mapping[Operation, Layer]) -> _Pair | None:
    value: Value = first.op.result
    if isinstance(first.op, graph.Conv) and first.op.bias is not None and array_of(first.op.bias) is None:
        return None
    between: list[Any] = []
    while value.has_one_use:
        (user,) = value.users
        if user in by_op and by_op[user].x is value:
            second = by_op[user]
            if type(second.op) is not type(first.op):
                return None
            return _Pair(first, second, between)
        if isinstance(user, graph.Clamp):
            if user.minimum != 0:
                return None
        elif isinstance(user, graph.Add):
            bias = user.b if user.a is value else user.a
            array = array_of(bias)
            if not isinstance(first.op, graph.Matmul) or array is None or array.ndim > 1:
                return None
        elif not isinstance(user, graph.Relu):
            return None
        between.append(user)
        value = user.result
    return None


def _scale_between(pair: _Pair, factor: Array) -> None:
    op = pair.first.op
    if isinstance(op, graph.Conv) and op.bias is not None:
        op.set_operand(2, new_constant(Builder.before(op), (array_of(op.bias) / factor).astype(np.float32)))
    for user in pair.between:
        b = Builder.before(user)
        if isinstance(user, graph.Add):
            k = 1 if array_of(user.b) is not None else 0
            user.set_operand(k, new_constant(b, (array_of(user.operands[k]) / factor).astype(np.float32)))
        elif isinstance(user, graph.Clamp) and user.maximum is not None:
            rank = user.result.type.rank
            limit = user.maximum / factor
            shape = (-1, *[1] * (rank - 2)) if isinstance(op, graph.Conv) else (-1,)
            limited = b(
                graph.Min(b(graph.Relu(user.x)), new_constant(b, limit.reshape(shape).astype(np.float32)))
            )
            user.replace_by(limited)


def _weight(layer: Layer) -> Array:
    w = array_of(layer.w)
    assert w is not None
    return w


def _set_weight(layer: Layer, w: Array) -> None:
    old = constant_of(layer.w)
    name = "" if old is None else old.name
    layer.op.set_operand(1, new_constant(Builder.before(layer.op), w.astype(np.float32), name))


def _outputs(layer: Layer) -> int:
    return int(_weight(layer).shape[layer.weight_axis])


def _along(factor: Array, axis: int, w: Array) -> Array:
    shape = [1] * w.ndim
    shape[axis] = -1
    return factor.reshape(shape)


def _peak(w: Array, axis: int) -> Array:
    rest = tuple(d for d in range(w.ndim) if d != axis % w.ndim)
    return np.asarray(np.abs(w).max(rest))


def _by_input(layer: Layer, w: Array) -> Array:
    """A convolution's weight as (groups, outputs of a group, inputs of a group, *kernel)."""
    groups = layer.op.groups
    return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def _input_peak(layer: Layer, w: Array) -> Array:
    """The greatest magnitude of the weights of each input channel."""
    if not isinstance(layer.op, graph.Conv):
        return _peak(w, -2)
    parts = _by_input(layer, w)
    rest = (1, *range(3, parts.ndim))
    return np.asarray(np.abs(parts).max(rest)).reshape(-1)


def _times_inputs(layer: Layer, w: Array, factor: Array) -> Array:
    """A weight whose input channels are multiplied by factors."""
    if not isinstance(layer.op, graph.Conv):
        return w * factor[:, None]
    parts = _by_input(layer, w)
    per = factor.reshape(parts.shape[0], 1, parts.shape[2], *[1] * (parts.ndim - 3))
    return (parts * per).reshape(w.shape)


# -- SmoothQuant -------------------------------------------------------------------------------------------


def smooth(plan: Plan, seen: Mapping[Value, Statistics], strength: float) -> int:
    """Move the outliers of channels of matrix products' inputs into the weights, by factors that cancel:
    SmoothQuant (Xiao et al., 2022).

    The factor of a channel is ``max |x| ** strength / max |w| ** (1 - strength)``. It is folded into the
    normalization that makes the input, or multiplied before the input is rounded.

    Returns the number of inputs.
    """
    inputs: dict[Value, list[Layer]] = {}
    for layer in plan.layers:
        if isinstance(layer.op, graph.Matmul):
            inputs.setdefault(layer.x, []).append(layer)
    for x, layers in inputs.items():
        peak = np.maximum(seen[x].channel_peak.astype(np.float64), 1e-5)
        weight = np.maximum(np.max([_peak(_weight(layer), -2) for layer in layers], axis=0), 1e-5)
        factor = np.maximum(peak**strength / weight ** (1 - strength), 1e-5)
        for layer in layers:
            _set_weight(layer, _weight(layer) * factor[:, None])
        if not _fold_into_norm(x, layers, factor):
            _divide(x, layers, factor)
    return len(inputs)


def _fold_into_norm(x: Value, layers: Sequence[Layer], factor: Array) -> bool:
    """Divide a normalization's constants by factors, if only the layers read its result."""
    op = x.defining_op
    if not isinstance(op, (graph.LayerNorm, graph.RmsNorm)) or op.scale is None:
        return False
    readers = {layer.op for layer in layers}
    parameters = [(k, array_of(v)) for k, v in enumerate(op.operands) if k]
    if any(user not in readers for user in x.users) or any(
        a is None or a.shape != factor.shape for _, a in parameters
    ):
        return False
    for k, array in parameters:
        assert array is not None
        op.set_operand(k, new_constant(Builder.before(op), (array / factor).astype(np.float32)))
    return True


def _divide(x: Value, layers: Sequence[Layer], factor: Array) -> None:
    first = min((layer.op for layer in layers), key=list(layers[0].op.parent.ops).index)
    b = Builder.before(first)
    divided = b(graph.Mul(x, new_constant(b, (1 / factor).astype(np.float32))))
    for layer in layers:
        layer.op.set_operand(0, divided)


# -- Bias correction ---------------------------------------------------------------------------------------


def bias_correction(layer: Layer, rounded: Array, mean: Array) -> Array:
    """The loss of a layer's mean result by the rounding of its weight, by output channel (Nagel et
    al., 2019).

    Args:
        layer: The layer.
        rounded: Its weight with the errors of quantization.
        mean: The mean of each channel of its input.
    """
    lost = _weight(layer).astype(np.float64) - rounded
    if not isinstance(layer.op, graph.Conv):
        return np.asarray(mean @ lost)
    parts = _by_input(layer, lost)
    kernel = parts.sum(tuple(range(3, parts.ndim)))  # (groups, outputs, inputs)
    means = mean.reshape(kernel.shape[0], 1, kernel.shape[2])
    return np.asarray((kernel * means).sum(-1).reshape(-1))


__all__ = ["bias_correction", "equalize", "smooth"]
