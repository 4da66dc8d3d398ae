"""CHLO's operators of several tensors that broadcast them: their dimensions lie at places that are told or, as NumPy has it, last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....dialects.graph.base import broadcast_shapes
from ....ir.core import IRError
from .shape import broadcast_in_dim
from .table import IMPORTERS, Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node

OF_CHLO = ("next_after", "polygamma", "zeta")
NAMES = (
    *("add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "multiply", "or", "power"),
    *("remainder", "select", "shift_left", "shift_right_arithmetic", "shift_right_logical", "subtract", "xor"),
    *OF_CHLO,
)


@importer(*(f"broadcast_{name}" for name in NAMES), dialect="chlo", complex="whole")
def _broadcast(n: Node) -> Any:
    """The operator without broadcasting, of operands that have been broadcast."""
    rank = max(x.type.rank for x in n.inputs)
    places, shapes = [], []
    for x in n.inputs:
        own = n.ints("broadcast_dimensions") if x.type.rank < rank else []
        own = own or list(range(rank - x.type.rank, rank))
        places.append(own)
        shapes.append(tuple(x.type.shape[own.index(d)] if d in own else 1 for d in range(rank)))
    try:
        shape = broadcast_shapes(*shapes)
    except IRError as error:
        raise Unsupported(f"of sizes that broadcast, if at all, when the program runs: {error}") from None
    n.inputs = [broadcast_in_dim(n, x, own, shape) for x, own in zip(n.inputs, places, strict=True)]
    name = n.name.removeprefix("chlo.broadcast_")
    n.name = f"chlo.{name}" if name in OF_CHLO else f"stablehlo.{name}"
    return IMPORTERS[n.name](n)
