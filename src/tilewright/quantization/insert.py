"""Puts the conversions to and from integers into a module, as a plan says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialects import graph
from ..ir.builder import Builder
from ..ir.core import Module, Operation, Value
from ..passes.graph.match import array_of, constant_of, new_constant, rebuild
from .observers import Array
from .parameters import Parameters, quantized_weight
from .plan import MIXING, PASS_THROUGH, POOLING, Group, Layer, Plan
from .prepare import main_function

PRECISIONS = ("int8", "int16", "float")
"""Precisions of a layer, the narrowest first: 8-bit activations, 16-bit activations, neither."""


@dataclass(frozen=True)
class Weights:
    """How weights are quantized: with one scale for each output channel or one for all, by ``minmax`` or
    ``mse``, to integers of 4 or 8 bits.
    """

    per_channel: bool = True
    observer: str = "minmax"
    bits: int = 8

    def of(self, layer: Layer) -> tuple[Array, Array]:
        """The integers and scales of a layer's weight."""
        w = array_of(layer.w)
        assert w is not None
        axis = layer.weight_axis if self.per_channel else None
        return quantized_weight(w, axis, self.observer, self.bits)

    def rounded(self, layer: Layer) -> Array:
        """A layer's weight with the errors of quantization."""
        q, scale = self.of(layer)
        return q.astype(np.float32) * scale


@dataclass(frozen=True)
class Scheme:
    """Everything that is inserted.

    Attributes:
        weights: How weights are quantized.
        parameters: The parameters of each group and precision.
        precision: The precision of each layer.
        corrections: Numbers to add to the results of a layer, by output channel.
    """

    weights: Weights
    parameters: Mapping[tuple[Group, str], Parameters]
    precision: Mapping[Layer, str]
    corrections: Mapping[Layer, Array]

    def precisions(self, group: Group, plan: Plan) -> list[str]:
        """The precisions in which the tensors of a group are stored, the narrowest first."""
        layers = plan.layers_of(group)
        used = {self.precision[layer] for layer in layers or plan.layers} - {"float"}
        return sorted(used, key=PRECISIONS.index)[: None if layers else 1]


def insert(module: Module, plan: Plan, scheme: Scheme) -> tuple[Module, dict[Value, Value]]:
    """A copy of a module with integers in it, and the place in it of each tensor of the module."""
    mapping: dict[Value, Value] = {}
    changed = module.clone(mapping)
    copies = {op: _maker(mapping[op.results[0]]) for op in main_function(module).body.ops if op.results}
    for group in plan.groups:
        used = scheme.precisions(group, plan)
        for precision in used:
            _store(group, precision, plan, scheme, mapping, copies, is_narrowest=precision == used[0])
    for layer in plan.layers:
        if scheme.precision[layer] == "float":
            continue
        op: Any = copies[layer.op]
        b = Builder.before(op)
        op.set_operand(1, stored_weight(b, layer, scheme.weights))
        if (correction := scheme.corrections.get(layer)) is not None:
            mapping[layer.op.result] = add_correction(op, correction)
        if isinstance(op, graph.Conv) and (bias := _stored_bias(b, op)) is not None:
            op.set_operand(2, bias)
    return changed, mapping


def _maker(value: Value) -> Operation:
    op = value.defining_op
    assert op is not None
    return op


def _store(
    group: Group,
    precision: str,
    plan: Plan,
    scheme: Scheme,
    mapping: Mapping[Value, Value],
    copies: Mapping[Operation, Operation],
    is_narrowest: bool,
) -> None:
    """Store the tensors of a group as integers, and let the layers of a precision read them; if it
    `is_narrowest`, also the other operators that may.
    """
    p = scheme.parameters[group, precision]
    layers = {layer.op for layer in plan.layers_of(group) if scheme.precision[layer] == precision}
    stored: dict[Value, Value] = {}
    for value in group.members:
        copy = mapping[value]
        b = Builder.after(_maker(copy)) if copy.defining_op else _at_start(copy)
        constants = [new_constant(b, p.scale)]
        if p.zero:
            constants.append(new_constant(b, np.array(p.zero, p.dtype.numpy)))
        op = value.defining_op
        if isinstance(op, PASS_THROUGH):
            stored[value] = b(rebuild(copies[op], [stored[v] for v in op.operands]))
        else:
            stored[value] = b(graph.Quantize(copy, *constants, dtype=p.dtype))
        users = readers(value, group, layers, is_narrowest)
        if users:
            real = b(graph.Dequantize(stored[value], *constants))
            for user, k in users:
                copies[user].set_operand(k, real)


def readers(
    value: Value, group: Group, layers: Collection[Operation], is_narrowest: bool = True
) -> list[tuple[Operation, int]]:
    """The operators that read the integers of a tensor of a group, with the number of the operand: `layers`
    and, if they read the narrowest integers of the group, operators that may.
    """
    found = []
    for user, k in value.uses:
        tolerant = is_narrowest and group.is_image and isinstance(user, (*MIXING, *POOLING))
        if (user in layers and k == 0) or tolerant:
            found.append((user, k))
    return found


def _at_start(argument: Value) -> Builder:
    """Inserts before everything in the block of an argument."""
    block = argument.block  # type: ignore[attr-defined]
    return Builder(block, block.first)


def stored_weight(b: Builder, layer: Layer, weights: Weights) -> Value:
    q, scale = weights.of(layer)
    w = constant_of(layer.w)
    if scale.size == 1:
        scale = scale.reshape(())
    elif layer.weight_axis == -1:
        scale = scale.reshape(-1)
    stored = new_constant(b, q, "" if w is None else w.name)
    value: Value = b(graph.Dequantize(stored, new_constant(b, scale)))
    return value


def _stored_bias(b: Builder, op: graph.Conv) -> Value | None:
    """The bias of a convolution of integers as i32 with the scale of its sums, as other programs expect it in
    files; None if there is none, or 32 bits do not hold it.
    """
    bias = None if op.bias is None else array_of(op.bias)
    factors = [v.defining_op for v in (op.x, op.w)]
    if bias is None or not all(isinstance(f, graph.Dequantize) for f in factors):
        return None
    of_x, of_w = (array_of(f.scale) for f in factors)
    assert of_x is not None and of_w is not None
    scale = np.broadcast_to((of_x * of_w).reshape(-1), bias.shape).astype(np.float32)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        q = np.rint(bias.astype(np.float64) / scale)
    if not (np.abs(q) < 2.0**31).all():
        return None
    value: Value = b(graph.Dequantize(new_constant(b, q.astype(np.int32)), new_constant(b, scale)))
    return value


def add_correction(op: Any, correction: Array, unless: Value | None = None) -> Value:
    """Add a correction by output channel to the result of a layer; return the new result.

    Args:
        op: The layer's operator.
        correction: One number for each output channel.
        unless: A condition (boolean, one element) under which nothing is added.
    """
    shape = (-1, *[1] * (op.result.type.rank - 2)) if isinstance(op, graph.Conv) else (-1,)
    bias = array_of(op.bias) if isinstance(op, graph.Conv) and op.bias is not None else None
    if bias is not None and unless is None:
        op.set_operand(2, new_constant(Builder.before(op), (bias + correction).astype(np.float32)))
        value: Value = op.result
        return value
    users = op.result.users
    b = Builder.after(op)
    added = new_constant(b, correction.reshape(shape).astype(np.float32))
    if unless is not None:
        added = b(graph.Select(unless, new_constant(b, np.zeros((), np.float32)), added))
    shifted = b(graph.Add(op.result, added))
    for user in users:
        for k, v in enumerate(user.operands):
            if v is op.result:
                user.set_operand(k, shifted)
    return shifted


__all__ = ["PRECISIONS", "Scheme", "Weights", "add_correction", "insert", "readers", "stored_weight"]
