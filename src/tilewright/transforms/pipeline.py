"""The graph level's passes, in order: a table of contents."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.cleanup import cse, dce
from ..ir.core import Module
from ..ir.passes import Pipeline
from .checks import drop_known_checks
from .choose_layout import choose_layout
from .flatten_indices import flatten_indices
from .fold_batch_norm import fold_batch_norm
from .fold_constants import fold_constants
from .hoist import hoist
from .integer_contractions import integer_contractions
from .merge_matmuls import merge_matmuls
from .recognize import recognize
from .simplify import simplify
from .update_slices import update_slices

GRAPH_PASSES: list[Callable[[Module], object]] = [
    cse,
    update_slices,
    integer_contractions,
    fold_constants,
    drop_known_checks,
    simplify,
    drop_known_checks,
    cse,
    recognize,
    fold_batch_norm,
    hoist,
    merge_matmuls,
    choose_layout,
    flatten_indices,
    simplify,
    cse,
    dce,
]


def graph_pipeline() -> Pipeline:
    """The passes as a pipeline called ``graph``."""
    return Pipeline(GRAPH_PASSES, "graph")
