"""Values inside of an ONNX model: the results of its nodes, which ONNX Runtime returns as outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CompileError
from ..verify import onnx_runner
from .places import Array, InnerValues, Place, Visit

if TYPE_CHECKING:
    import onnx

    from ...frontends.dims import DimsArgument
    from ...ir.core import Module

_WITHOUT_A_TENSOR = re.compile(r"Constant$|Sequence|SplitToSequence|Optional")


class OnnxValues(InnerValues):
    """An ``.onnx`` file or a ``ModelProto``. Functions and branches are one place each."""

    def __init__(
        self,
        model: Any,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        dims: DimsArgument | None,
    ) -> None:
        import onnx

        from ...frontends.onnx.locations import location_of

        self.proto = onnx.load(str(model)) if isinstance(model, str | Path) else model
        self.examples, self.dims = (args, kwargs), dims
        needed = _needed(self.proto.graph)
        nodes = [
            n
            for n in self.proto.graph.node
            if not _WITHOUT_A_TENSOR.search(n.op_type) and n.output[:1] and n.output[0] in needed
        ]
        self.values = [n.output[0] for n in nodes]
        self.places = tuple(Place.at(location_of(n)) for n in nodes)
        self.framework, _ = onnx_runner(_serialized(self._showing(())), optimize=False)

    def module(self, shown: Sequence[int]) -> Module:
        from ...frontends.onnx import import_onnx

        args, kwargs = self.examples
        return import_onnx(self._showing(shown), self.dims, args, dict(kwargs or {}))

    def run(self, inputs: Mapping[str, Array], visit: Visit) -> list[Array]:
        own = len(self.proto.graph.output)
        _, run = onnx_runner(_serialized(self._showing(range(len(self.values)))), optimize=False)
        results = run(dict(inputs))
        for number, value in enumerate(results[own:]):
            visit(number, np.asarray(value))
        return [np.asarray(x) for x in results[:own]]

    def _showing(self, shown: Sequence[int]) -> onnx.ModelProto:
        """The model with further outputs. A value that is an output already is copied to another name."""
        import onnx

        changed = onnx.ModelProto()
        changed.CopyFrom(self.proto)
        for k in shown:
            name = f"shown_{k}"
            changed.graph.node.append(onnx.helper.make_node("Identity", [self.values[k]], [name], name))
            changed.graph.output.append(onnx.ValueInfoProto(name=name))
        return changed


def _needed(graph: onnx.GraphProto) -> set[str]:
    """The values that the outputs depend on."""
    needed = {output.name for output in graph.output}
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            inner = [a.g for a in node.attribute] + [g for a in node.attribute for g in a.graphs]
            for subgraph in inner:
                needed.update(name for n in subgraph.node for name in n.input)
                needed.update(output.name for output in subgraph.output)
    return needed


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        data: bytes = model.SerializeToString()
    except Exception as error:  # protobuf's own classes
        raise CompileError(
            f"the model is too large for one message, which showing inner values needs: {error}"
        ) from error
    return data


__all__ = ["OnnxValues"]
