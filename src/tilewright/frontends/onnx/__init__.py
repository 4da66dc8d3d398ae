"""The ONNX front end: it translates a model file to a module of graph operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import CompileError, InternalError, TilewrightError
from ..dims import DimsArgument

if TYPE_CHECKING:
    from ...ir.core import Module
    from .model import Source

__all__ = ["import_onnx"]


def import_onnx(
    model_or_path: Source,
    dims: DimsArgument | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Module:
    """Translate an ONNX model (a path, bytes or an ``onnx.ModelProto``) to a module with one function
    ``main`` of graph operators.

    Arguments and results keep the model's names. Dynamic dimensions become symbols, named by the model's
    ``dim_param`` unless `dims` (``{"input_ids": {0: "batch<=8", 1: "16<=seq<=512"}}``, also ``"4*n"``) names
    and bounds them; the default bounds of a symbol are ``[1, infinity)``. Weights are kept by reference;
    external data is mapped, not read. Shape computations are evaluated at import and do not reach the graph.

    `args`, and `kwargs` by name, are examples of the inputs. If the value of an input must be known (the
    number of axes to squeeze, say), the example's value is compiled in, and every run compares its input with
    it. The location of every operation is the node's name (or ``Type(first output)``).

    Raises:
        CompileError: the file cannot be read, `dims` or the names of examples do not fit, or shapes
            contradict each other; the message names the node.
        UnsupportedOperatorError: the model has operators that cannot be translated; it lists all of them with
            their places.
    """
    from .importer import Importer
    from .model import explain_invalid, read_model

    file = read_model(model_or_path)
    try:
        try:
            return Importer(file, dims, args, kwargs).run()
        except CompileError:
            # Sizes that depend on data may be related in ways that only their values show.
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
        raise CompileError(f"{file.name}: subgraphs, functions or attributes are nested too deeply") from None
    except Exception as error:
        # Either the model breaks a rule of ONNX, which its checker explains best, or the importer has a bug.
        reason = explain_invalid(file)
        if reason is None:
            raise InternalError(f"importing {file.name} failed: {type(error).__name__}: {error}") from error
        raise CompileError(f"{file.name} is not valid ONNX: {reason}") from error
