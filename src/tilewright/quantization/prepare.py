"""Brings a model into the form that is quantized: one function of whole operators, with batch normalization
folded into the weights before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..dialects.func import Func, entries
from ..driver.frontend_registry import import_model
from ..errors import CompileError
from ..frontends.dims import DimsArgument
from ..ir.cleanup import cse, dce
from ..ir.core import Module
from ..passes.graph.fold_batch_norm import fold_batch_norm
from ..passes.graph.fold_constants import fold_constants
from ..passes.graph.recognize import recognize
from ..passes.graph.remove_checks import drop_known_checks
from ..passes.graph.simplify import simplify
from ..passes.graph.update_slices import update_slices

_PASSES = (
    cse, update_slices, fold_constants, drop_known_checks, simplify, cse, recognize, fold_batch_norm,
    simplify, cse, dce,
)  # fmt: skip
"""A part of the compiler's pipeline. Layouts and merged products are chosen when the result is compiled."""


def prepared(
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None,
    kwargs: Mapping[str, Any] | None,
    dims: DimsArgument | None,
) -> Module:
    """The graph-level module of a model, simplified.

    Raises:
        CompileError: The model cannot be imported, or has several functions.
    """
    module = import_model(model, args, kwargs, dims)
    functions = entries(module)
    if len(functions) != 1:
        raise CompileError(
            f"quantize takes a model of one function, this one has {len(functions)}: quantize each alone"
        )
    for step in _PASSES:
        step(module)
    return module


def main_function(module: Module) -> Func:
    """The only function of a prepared module."""
    (function,) = entries(module)
    return function


__all__ = ["main_function", "prepared"]
