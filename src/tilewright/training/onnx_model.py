"""ONNX models for training: initializers that training changes become inputs of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CompileError
from ..frontends.onnx import import_onnx
from ..frontends.trace import Tensor
from .graph_model import Graph, GraphModel
from .models import ModelFile, chosen
from .request import Request

if TYPE_CHECKING:
    import onnx

_STATISTICS = {"BatchNormalization": (3, 4)}
"""Operators with inputs that are no parameters but statistics, and the places of these inputs."""
_FLOATS = (1, 10, 11, 16)
"""ONNX's numbers of the element types float, float16, double and bfloat16."""


def onnx_model(request: Request) -> GraphModel:
    """Return an ONNX model, or the file of one, whose initializers are trained.

    By default these are all floating-point ones with a dimension, except statistics of normalizations. The
    graph is the same in training as in inference.
    """
    import onnx

    model, source = request.model, None
    if isinstance(model, (str, Path)):
        source = model
        if not Path(source).exists():
            raise CompileError(f"{source}: no such file")
        model = onnx.load(str(source))
    trained = chosen(_candidates(model, request), request.trainable)
    initializers = {t.name: t for t in model.graph.initializer}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    declared = {i.name for i in graph.input}
    for name in trained:
        tensor = initializers[name]
        if name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    kept = [t for t in graph.initializer if t.name not in trained]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    names = [i.name for i in graph.input if i.name not in trained and i.name not in {t.name for t in kept}]
    examples = dict(zip(names, request.inputs, strict=False))
    module = import_onnx(changed, request.dims_of(names), None, examples)
    first = {n: Tensor(onnx.numpy_helper.to_array(initializers[n])) for n in trained}

    def sync(values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        for name, value in values.items():
            initializers[name].CopyFrom(onnx.numpy_helper.from_array(value, name))

    function = Graph(module, {n: n for n in trained})
    found = GraphModel(function, None if request.loss is None else function, first, trained, sync)
    found.file = ModelFile(lambda place: onnx.save(model, str(place)), source)
    return found


def _candidates(model: onnx.ModelProto, request: Request) -> list[str]:
    statistics = {
        node.input[k]
        for node in model.graph.node
        for k in _STATISTICS.get(node.op_type, ())
        if k < len(node.input)
    }
    found = [t for t in model.graph.initializer if t.data_type in _FLOATS]
    if request.trainable is None:
        found = [t for t in found if t.dims and t.name not in statistics]
    return [t.name for t in found]


__all__ = ["onnx_model"]
