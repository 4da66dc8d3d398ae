"""CHLO's operations that broadcast their operands: along the attribute ``broadcast_dimensions`` or, without
it, as NumPy does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....dialects.graph.base import broadcast_shapes
from ....ir.core import IRError
from ...unsupported import Unsupported
from ..registry import importer, importers
from .shape import broadcast_in_dim

if TYPE_CHECKING:
    from ..node import Node

OF_CHLO = ("next_after", "polygamma", "zeta")
NAMES = (
    *("add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "multiply", "or", "power"),
    *(
        "remainder",
        "select",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "subtract",
        "xor",
    ),
    *OF_CHLO,
)


@importer(*(f"broadcast_{name}" for name in NAMES), dialect="chlo", complex="whole")
def _broadcast(n: Node) -> Any:
    """Broadcast the operands, then import the operation without broadcasting."""
    rank = max(x.type.rank for x in n.inputs)
    places, shapes = [], []
    for x in n.inputs:
        axes = n.ints("broadcast_dimensions") if x.type.rank < rank else []
        axes = axes or list(range(rank - x.type.rank, rank))
        places.append(axes)
        shapes.append(tuple(x.type.shape[axes.index(d)] if d in axes else 1 for d in range(rank)))
    try:
        shape = broadcast_shapes(*shapes)
    except IRError as error:
        raise Unsupported(
            f"sizes for which it is known only at run time whether they broadcast: {error}"
        ) from None
    n.inputs = [broadcast_in_dim(n, x, axes, shape) for x, axes in zip(n.inputs, places, strict=True)]
    name = n.name.removeprefix("chlo.broadcast_")
    n.name = f"chlo.{name}" if name in OF_CHLO else f"stablehlo.{name}"
    return importers()[n.name](n)
