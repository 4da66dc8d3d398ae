"""Convert operators of older opsets to their newest form: attributes that became inputs, other defaults,
other broadcasting.

Each rule takes a `Node` of an opset below the one in which the operator changed, and changes its inputs and
attributes. Importers know only the newest form. A change of an operator without visible effect has no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...dialects import graph as g
from ...dialects.graph.base import normalize_axis
from ...ir.symbolic import Dim
from ...ir.types import i64
from ..unsupported import Unsupported
from .node import Node
from .registry import importers

Rule = Callable[[Node], Any]

_RULES: dict[str, list[tuple[int, Rule]]] = {}


def modernize(node: Node) -> Any:
    """Bring a node of the domain ai.onnx to its newest form.

    Returns the node's result if it takes more than one node in the newest form, else None.

    Raises:
        Unsupported: newer opsets have no equivalent.
    """
    if node.opset < 13:
        node.attributes.pop("consumed_inputs", None)
    for below, rule in _RULES.get(node.op_type, ()):
        if node.opset < below:
            result = rule(node)
            if result is not None:
                return result
    return None


def _older(below: int, *names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators of opsets before `below`. Rules of an operator run in the order of
    registration.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES.setdefault(name, []).append((below, rule))
        return rule

    return register


def _to_input(node: Node, name: str, index: int, dtype: DTypeLike = np.int64) -> None:
    """Replace an attribute by the input `index`."""
    value = node.attributes.pop(name, None)
    if value is None:
        return
    node.inputs.extend([None] * (index + 1 - len(node.inputs)))
    node.inputs[index] = node.importer.data_tensor(np.asarray(value, dtype))


@_older(20, "DFT")
def _dft(node: Node) -> None:
    node.attributes.setdefault("axis", 1)
    _to_input(node, "axis", 2)


@_older(20, "GridSample")
def _grid_sample(node: Node) -> None:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attributes.get("mode", "bilinear")
    node.attributes["mode"] = names.get(mode, mode)


@_older(16, "RoiAlign")
def _roi_align(node: Node) -> None:
    node.attributes["coordinate_transformation_mode"] = "output_half_pixel"


@_older(13, "Squeeze", "Unsqueeze", "ReduceSum")
def _axes(node: Node) -> None:
    _to_input(node, "axes", 1)


@_older(13, "Split")
def _split(node: Node) -> None:
    _to_input(node, "split", 1)


@_older(13, "Softmax", "LogSoftmax", "Hardmax")
def _rows(node: Node) -> Any:
    """Normalize over all dimensions from `axis` on, flattened into one."""
    x = node.value(0)
    shape = x.type.shape
    axis = normalize_axis(node.attributes.pop("axis", 1), x.type.rank) if x.type.rank else 0
    if axis == x.type.rank - 1:
        node.attributes["axis"] = -1
        return None
    rows = node.emit(g.Reshape(x, shape=(_product(shape[:axis]), _product(shape[axis:]))))
    node.inputs[0] = node.importer.tensor_of(rows)
    node.attributes["axis"] = 1
    return node.emit(g.Reshape(importers()["", node.op_type](node), shape=shape))


def _product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


@_older(12, "Dropout")
def _dropout(node: Node) -> None:
    ratio, training = (
        node.attributes.pop("ratio", 0.5),
        node.opset < 7 and not node.attributes.pop("is_test", 0),
    )
    if training:
        node.inputs[1:] = [node.importer.data_tensor(np.array(x)) for x in (np.float32(ratio), True)]


@_older(11, "Clip")
def _clip(node: Node) -> None:
    dtype = node.tensor(0).dtype.numpy
    _to_input(node, "min", 1, dtype)
    _to_input(node, "max", 2, dtype)


@_older(11, "Pad")
def _pad(node: Node) -> None:
    _to_input(node, "paddings" if node.opset < 2 else "pads", 1)
    _to_input(node, "value", 2, node.tensor(0).dtype.numpy)


@_older(11, "Resize")
def _resize(node: Node) -> None:
    """The coordinates were those of opset 11's modes "asymmetric" and "floor"."""
    node.inputs[1:] = [None, *node.inputs[1:]]
    node.attributes["coordinate_transformation_mode"] = "asymmetric"
    node.attributes["nearest_mode"] = "floor"


@_older(10, "Slice")
def _slice(node: Node) -> None:
    for index, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        _to_input(node, name, index)


@_older(10, "TopK")
def _topk(node: Node) -> None:
    k = node.attributes.pop("k", None)
    if k is not None:
        node.inputs.append(node.importer.data_tensor(np.array([k], np.int64)))


@_older(28, "Upsample")
def _upsample(node: Node) -> Any:
    if node.opset < 7:
        raise Unsupported("the form before opset 7")
    _to_input(node, "scales", 1, np.float32)
    node.op_type = "Resize"
    _resize(node)
    return importers()["", "Resize"](node)


@_older(9, "BatchNormalization")
def _batch_norm(node: Node) -> None:
    if not node.attributes.pop("spatial", 1):
        raise Unsupported("statistics for each place (spatial = 0)")
    if node.opset < 7 and not node.attributes.pop("is_test", 0):
        raise Unsupported("training mode; export the model in evaluation mode")


@_older(7, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "PRelu")
def _broadcast(node: Node) -> None:
    """The second operand's dimensions were aligned with those of the first from `axis` on."""
    aligned = node.attributes.pop("broadcast", 0)
    axis = node.attributes.pop("axis", None)
    if not aligned or axis is None:
        return
    a, b = node.tensor(0), node.tensor(1)
    trailing = a.rank - normalize_axis(axis, a.rank) - b.rank
    shape = (*b.shape, *(1,) * trailing)
    node.inputs[1] = node.importer.tensor_of(node.emit(g.Reshape(b.value, shape=shape)))


@_older(7, "PRelu")
def _slopes(node: Node) -> None:
    """A vector of slopes had one element per channel."""
    x, slope = node.tensor(0), node.tensor(1)
    if slope.rank == 1 and x.rank > 2 and slope.shape != (1,):
        shape = (*slope.shape, *(1,) * (x.rank - 2))
        node.inputs[1] = node.importer.tensor_of(node.emit(g.Reshape(slope.value, shape=shape)))


@_older(7, "Gemm")
def _gemm(node: Node) -> None:
    node.attributes.pop("broadcast", None)


@_older(6, "Cast")
def _cast(node: Node) -> None:
    import onnx

    to = node.attributes["to"]
    if isinstance(to, str):
        node.attributes["to"] = onnx.TensorProto.DataType.Value(to)


@_older(6, "Tile")
def _tile(node: Node) -> None:
    tiles, axis = node.numbers(1)[0], node.numbers(2)[0]
    repeats = [1] * node.tensor(0).rank
    repeats[axis] = tiles
    node.inputs[1:] = [node.importer.content_tensor(i64, np.array(repeats, object))]


@_older(5, "Reshape")
def _reshape(node: Node) -> None:
    _to_input(node, "shape", 1)


@_older(4, "Concat")
def _concat(node: Node) -> None:
    node.attributes.setdefault("axis", 1)


__all__ = ["modernize"]
