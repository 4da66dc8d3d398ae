"""ONNX front end: a model file to a module at the graph level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import CompileError, InternalError, TilewrightError
from ..dims import DimsArgument

if TYPE_CHECKING:
    from ...ir.core import Module

__all__ = ["import_onnx"]


def import_onnx(
    model_or_path: Any,
    dims: DimsArgument | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Module:
    """Translate an ONNX model (a path, bytes or an ``onnx.ModelProto``) to a module with one function ``main`` of graph operators.

    Arguments and results keep the model's names. Dynamic dimensions become symbols, named by the model's ``dim_param`` unless `dims`
    (``{"input_ids": {0: "batch<=8", 1: "16<=seq<=512"}}``, also ``"4*n"``) names and bounds them; a symbol lies in ``[1, infinity)``
    unless bounded. Weights are kept by reference; external data is mapped, not read. Shape computations are evaluated here; none
    reaches the graph. `args`, and `kwargs` by name, are examples of the inputs: the value of one that must be known (how many axes are squeezed) is
    compiled in, and runs compare it. Every operation's location is the node's name (or ``Type(first output)``).

    Raises:
        CompileError: the file cannot be read, `dims` or the names of examples do not fit, or shapes contradict each other; names the node.
        UnsupportedOperatorError: lists every operator that cannot be translated, and where.
    """
    from .importer import Importer
    from .model import explain_invalid, read_model

    file = read_model(model_or_path)
    try:
        try:
            return Importer(file, dims, args, kwargs).run()
        except CompileError:
            # Sizes that are data may be related in ways that show only in their values.
            if args is None and not kwargs:
                raise
            importer = Importer(file, dims, args, kwargs, specialized=True)
            module = importer.run()
            if not importer.specialized:
                raise
            return module
    except TilewrightError:
        raise
    except RecursionError:
        raise CompileError(f"{file.name} is nested too deep") from None
    except Exception as error:
        # Either the model breaks a rule of ONNX, which its own checker tells best, or the importer has a bug.
        reason = explain_invalid(file)
        if reason is None:
            raise InternalError(f"importing {file.name} failed: {type(error).__name__}: {error}") from error
        raise CompileError(f"{file.name} is not valid ONNX: {reason}") from error
