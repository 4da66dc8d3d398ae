"""Random operators. What they draw is an input of the module: see `graph_module.DRAWS`."""

from __future__ import annotations

from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import boolean
from ..importer import Node, Unsupported
from ..registry import importer


def noise_of(node: Any) -> tuple[str, Any]:
    """Where an importer keeps the value of the noise that was drawn for a node."""
    return "noise", node


@importer("aten.native_dropout.default")
def native_dropout(n: Node, x: Value, p: float, train: bool | None) -> tuple[Value, Value | None]:
    """The elements that stay, scaled to keep the mean, and which they are."""
    if train is False:
        return x, None
    noise = n.importer.values.get(noise_of(n.fx))
    if noise is None:
        raise Unsupported("this operator is random; it vanishes after model.eval()")
    scale = 1 / (1 - p) if p < 1 else 0.0
    scaled = n.binary("mul", noise, n.constant(scale, x.type.dtype))
    return n.binary("mul", x, scaled), n.emit(g.Cast(noise, dtype=boolean))
