"""The PyTorch front end: imports an ``nn.Module``, an ``ExportedProgram`` or a ``.pt2`` file as a module of
``graph.*`` operators.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...dialects.func import Func
from ...ir.core import Module
from ..dims import DimsArgument, warn_of_fewer_sizes

if TYPE_CHECKING:
    from .export import TorchModel

__all__ = ["import_torch"]


def import_torch(
    model: TorchModel,
    args: Sequence[Any] | None = None,
    dims: DimsArgument | None = None,
    kwargs: Mapping[str, Any] | None = None,
    kept: Collection[str] = (),
) -> Module:
    """Return the graph-level module of a PyTorch model.

    Args:
        model: A ``torch.nn.Module``, a ``torch.export.ExportedProgram``, or the path of a ``.pt2`` file.
            Weights are kept by reference, not copied.
        args: Example inputs of ``forward`` for an ``nn.Module``. They are used as they are; a dynamic
            dimension of size 1 is repeated. Numbers, strings and None among them are fixed.
        dims: Dynamic dimensions by parameter of ``forward``: ``{"input_ids": {0: "batch<=8", 1:
            "seq<=512"}}``. For an exported program they name and narrow the dimensions that were exported as
            dynamic.
        kwargs: Example inputs by name.
        kept: Parameters and buffers, by name, that become states of the function as those that the model
            changes do; the others are constants.

    The lower bound of a dimension is the one in `dims` (default 1), although torch traces with sizes of at
    least 2: torch guarantees that a ``Dim`` that starts at 1 works. If tracing finds a narrower range or a
    multiple, the symbol's bounds say so. Threads take turns, since torch exports one program at a time.

    Warns:
        DimsWarning: The model accepts fewer sizes of a dimension than `dims` say.

    Raises:
        CompileError: torch cannot export the model, the model changes a buffer or an input, or `dims` do not
            fit.
        UnsupportedOperatorError: Operators have no importer; the message lists them with the modules that use
            them.
    """
    from .export import export_program
    from .export_lock import one_at_a_time
    from .program import import_program

    with one_at_a_time():
        program = export_program(model, args, kwargs, dims)
        module = import_program(program, dims, kept)
    if dims and program is not model and not isinstance(model, (str, os.PathLike)):
        got = [
            (name, v.type.shape)
            for main in module.functions(Func)
            for name, v in zip(main.arg_names, main.inputs, strict=False)  # states come last
        ]
        warn_of_fewer_sizes(dims, got, got)
    return module
