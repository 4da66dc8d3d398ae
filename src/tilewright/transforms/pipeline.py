"""The graph level's passes, in order: a table of contents."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.cleanup import cse, dce
from ..ir.core import Module
from ..ir.passes import Pipeline
from .fold_constants import fold_constants
from .recognize import recognize
from .simplify import simplify

GRAPH_PASSES: list[Callable[[Module], object]] = [
    cse,
    fold_constants,
    simplify,
    recognize,
    simplify,
    cse,
    dce,
]


def graph_pipeline() -> Pipeline:
    """The passes as a pipeline called ``graph``."""
    return Pipeline(GRAPH_PASSES, "graph")
