"""Removes what only differentiation reads, once nothing is differentiated any more."""

from __future__ import annotations

from ...dialects import graph
from ...ir.builder import Builder
from ...ir.core import Module


def drop_derivative_marks(module: Module) -> None:
    """A `graph.checkpoint` -> the operations of its region; a `graph.custom_gradient` -> its values."""
    while marks := [op for op in module.walk() if isinstance(op, (graph.Checkpoint, graph.CustomGradient))]:
        for op in marks[::-1]:  # inner ones first
            op.replace_by(op.decompose(Builder.before(op)))


__all__ = ["drop_derivative_marks"]
