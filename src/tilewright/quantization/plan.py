"""Decides which operators are quantized, and which tensors are stored as integers.

A *layer* is a convolution or matrix product with a constant weight. Its input is stored as integers. An
operator that only moves elements or picks the largest, `PASS_THROUGH`, works on the integers themselves: its
operands and its result are of one *group* and share scale and zero point. In networks of convolutions the
operands of additions and poolings are stored as integers, too, unless they are the layer's own result, which
is added before it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..dialects import graph
from ..dialects.func import Func
from ..dialects.graph.base import tensor_type
from ..dialects.graph.elementwise import Activation, Binary, Unary
from ..errors import CompileError
from ..ir.core import Operation, Value
from ..ir.types import f32
from ..passes.graph.match import constant_of

PASS_THROUGH = (graph.MaxPool, graph.Reshape, graph.Transpose, graph.Slice, graph.Concat, graph.Identity)
"""Operators whose results have no elements that their operands lack."""
MIXING = (graph.Add, graph.Sub, graph.Mul)
POOLING = (graph.AvgPool, graph.AdaptiveAvgPool, graph.ReduceMean)
DEEPEST = (1 << 31) // 255**2
"""The most products of differences of bytes whose sum fits 32 bits."""
MOST_STEPS = 64
"""The most elementwise operators between a convolution and an addition that are looked through."""


@dataclass(eq=False)
class Layer:
    """An operator that can be quantized.

    Attributes:
        op: The convolution or matrix product.
        name: Its name in the model, unique among the layers.
        weight_axis: The axis of the weight's output channels.
        channel_axis: The axis of the input's channels.
    """

    op: Any
    name: str
    weight_axis: int
    channel_axis: int

    @property
    def x(self) -> Value:
        """The input."""
        value: Value = self.op.operands[0]
        return value

    @property
    def w(self) -> Value:
        """The weight."""
        value: Value = self.op.operands[1]
        return value

    @property
    def kind(self) -> str:
        """The operator's name."""
        return str(self.op.name).removeprefix("graph.")


@dataclass(frozen=True)
class Skipped:
    """An operator that stays in floating point, with the reason."""

    name: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}): {self.reason}"


@dataclass(eq=False)
class Group:
    """Tensors that share scale and zero point.

    Attributes:
        members: The tensors, in the order of the program.
        is_image: Whether additions and poolings read the integers, too.
    """

    members: list[Value] = field(default_factory=list)
    is_image: bool = False

    @property
    def roots(self) -> list[Value]:
        """The tensors that no operator of the group makes."""
        return [v for v in self.members if not isinstance(v.defining_op, PASS_THROUGH)]


@dataclass(eq=False)
class Plan:
    """Layers, what stays in floating point, and the group of each tensor that is stored as integers."""

    layers: list[Layer]
    skipped: list[Skipped]
    groups: list[Group]
    group_of: dict[Value, Group]

    def layers_of(self, group: Group) -> list[Layer]:
        """The layers that read a tensor of a group."""
        return [layer for layer in self.layers if self.group_of.get(layer.x) is group]


def make_plan(function: Func, skip: Sequence[str] = ()) -> Plan:
    """The plan for a prepared function. Operators whose names fit a pattern of `skip` stay in floating point.

    Raises:
        CompileError: A pattern fits no operator, or there is nothing to quantize.
    """
    layers, skipped = _layers(function, skip)
    if not layers:
        reasons = "; ".join(map(str, skipped)) or "it has no convolution and no matrix product"
        raise CompileError(f"the model has nothing to quantize: {reasons}")
    convolutions = {layer.op for layer in layers if isinstance(layer.op, graph.Conv)}
    images = _images(function, convolutions)
    demanded = [*(layer.x for layer in layers), *_between(convolutions, images, function)]
    groups, group_of = _grouped(function, demanded)
    for group in groups:
        group.is_image = any(v in images for v in group.members)
    return Plan(layers, skipped, groups, group_of)


def _layers(function: Func, skip: Sequence[str]) -> tuple[list[Layer], list[Skipped]]:
    layers: list[Layer] = []
    skipped: list[Skipped] = []
    used: dict[str, int] = {}
    unused = set(skip)
    for op in function.walk():
        if not isinstance(
            op, (graph.Conv, graph.ConvTranspose, graph.Matmul, graph.Einsum, graph.GroupedMatMul,
                 graph.Attention)
        ):  # fmt: skip
            continue
        kind = op.name.removeprefix("graph.")
        name = op.location.name or kind
        used[name] = used.get(name, 0) + 1
        if used[name] > 1:
            name = f"{name}#{used[name]}"
        fitting = [p for p in skip if fnmatchcase(name, p)]
        unused -= set(fitting)
        reason = "'skip' names it" if fitting else _obstacle(op, function)
        if reason:
            skipped.append(Skipped(name, kind, reason))
        else:
            axes = (0, 1) if isinstance(op, graph.Conv) else (-1, -1)
            layers.append(Layer(op, name, *axes))
    if unused:
        known = ", ".join([layer.name for layer in layers][:5])
        raise CompileError(f"skip: no operator is called {min(unused)!r}; the first of the model are {known}")
    return layers, skipped


def _obstacle(op: Any, function: Func) -> str:
    """Why an operator stays in floating point; empty if it need not."""
    if op.parent is not function.body:
        return "it stands inside of a loop or branch"
    if isinstance(op, graph.Attention):
        return "both factors of its products are computed"
    if not isinstance(op, (graph.Conv, graph.Matmul)):
        return "the operator has no form for integers"
    x, w = (tensor_type(v) for v in op.operands[:2])
    if constant_of(op.operands[1]) is None:
        return "its weight is computed" if isinstance(op, graph.Conv) else "both factors are computed"
    if constant_of(op.operands[0]) is not None:
        return "its input is a constant"
    if x.dtype is not f32 or w.dtype is not f32 or op.dtype is not None:
        return f"its operands are {x.dtype.label}, not f32"
    if isinstance(op, graph.Conv):
        if op.layout != "channels_first":
            return "its channels are last"
        depth = math.prod(n for n in w.shape[1:] if isinstance(n, int))
    else:
        if w.rank != 2 or x.rank < 2:
            return f"its weight has {w.rank} dimensions, its input {x.rank}"
        depth = int(w.shape[0])  # type: ignore[arg-type]
    return f"sums of {depth} products may not fit 32 bits" if depth > DEEPEST else ""


# -- Tensors between the layers of convolutional networks --------------------------------------------------


def _between(own: set[Any], images: set[Value], function: Func) -> Iterator[Value]:
    """The operands of additions and poolings behind the convolutions `own` that are stored as integers."""
    order = {op: k for k, op in enumerate(function.body.ops)}
    for op in function.body.ops:
        if not isinstance(op, (*MIXING, *POOLING)):
            continue
        operands = [v for v in op.operands if tensor_type(v).rank >= 3 and v in images]
        if isinstance(op, POOLING):
            yield from operands
        else:
            operands = [v for v in operands if tensor_type(v).shape == op.result.type.shape]
            direct = {v: order[conv] for v in operands if (conv := _only_conv(v, own)) is not None}
            # The last convolution adds what the others have stored.
            kept = max(direct, key=direct.__getitem__) if direct else None
            yield from (v for v in operands if v is not kept)


def _images(function: Func, own: set[Any]) -> set[Value]:
    """Tensors that come from a convolution by elementwise operators and those that pass through."""
    found: set[Value] = set()
    for op in function.body.ops:
        moves = isinstance(op, (Unary, Activation, Binary, *PASS_THROUGH, *POOLING))
        if op in own or (moves and any(v in found for v in op.operands)):
            found.update(op.results)
    return found


def _only_conv(value: Value, own: set[Any]) -> Operation | None:
    """The convolution that a tensor is the result of, with elementwise operators of one operand behind it,
    all of a single use; otherwise None.
    """
    for _ in range(MOST_STEPS):
        op = value.defining_op
        if op is None or not value.has_one_use:
            return None
        if op in own:
            return op
        computed = [v for v in op.operands if constant_of(v) is None]
        if not isinstance(op, (Unary, Activation, Binary)) or len(computed) != 1:
            return None
        (value,) = computed
    return None


def _grouped(function: Func, demanded: Iterable[Value]) -> tuple[list[Group], dict[Value, Group]]:
    group_of: dict[Value, Group] = {}
    groups: dict[Group, None] = {}
    for first in demanded:
        joined = Group()
        todo = [first]
        seen: dict[Value, None] = {}
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen[value] = None
            if (known := group_of.get(value)) is not None:
                groups.pop(known, None)
                todo += known.members
            op = value.defining_op
            if isinstance(op, PASS_THROUGH):
                todo += op.operands
        joined.members = list(seen)
        groups[joined] = None
        group_of.update(dict.fromkeys(seen, joined))
    position: dict[Value, int] = {v: k for k, v in enumerate(function.body.args)}
    for op in function.body.ops:
        for v in op.results:
            position[v] = len(position)
    for group in groups:
        group.members.sort(key=position.__getitem__)
    return list(groups), group_of


__all__ = ["PASS_THROUGH", "POOLING", "Group", "Layer", "Plan", "Skipped", "make_plan"]
