"""The PyTorch front end: ``nn.Module``, ``ExportedProgram`` or ``.pt2`` file in, a module of ``graph.*`` operators out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...dialects.func import Func
from ...ir.core import Module
from ..dims import DimsArgument, warn_of_fewer_sizes

__all__ = ["import_torch"]


def import_torch(
    model: Any,
    args: Sequence[Any] | None = None,
    dims: DimsArgument | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Module:
    """The graph-level module of a PyTorch model.

    `model` is a ``torch.nn.Module`` (then `args` and `kwargs` are example inputs of ``forward``, kept as they are or, where a dynamic
    dimension has size 1, repeated), a ``torch.export.ExportedProgram``, or the path of a ``.pt2`` file. `dims` names dynamic dimensions
    by parameter of ``forward``: ``{"input_ids": {0: "batch<=8", 1: "seq<=512"}}``; of an exported program it names and narrows the
    dimensions that were exported as dynamic. Numbers, strings and None among the inputs are fixed. Weights are kept by reference.

    A dimension's lower bound is the user's (1 if not given), although torch traces with sizes of at least 2: torch itself vouches
    for a ``Dim`` that starts at 1. Where tracing finds a narrower range or a multiple, the symbol's bounds say so.
    Threads take turns, since torch exports one program at a time.

    A `DimsWarning` tells of dimensions of which fewer sizes are accepted than `dims` say.

    Raises:
        CompileError: torch cannot export the model; the model changes a buffer or an input; `dims` do not fit.
        UnsupportedOperatorError: lists every operator that has no importer, with the modules that use it.
    """
    from .export import export_program
    from .program import import_program
    from .turns import one_at_a_time

    with one_at_a_time():
        program = export_program(model, args, kwargs, dims)
        module = import_program(program, dims)
    if dims and program is not model and not isinstance(model, (str, os.PathLike)):
        got = [
            (name, v.type.shape)
            for main in module.functions(Func)
            for name, v in zip(main.arg_names, main.inputs, strict=True)
        ]
        warn_of_fewer_sizes(dims, got, got)
    return module
