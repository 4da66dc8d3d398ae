"""The front ends of this package. Each imports its framework when it is called, not before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CompileError
from .frontend_registry import Examples, Frontend, has_base

if TYPE_CHECKING:
    from ..frontends.dims import DimsArgument
    from ..ir.core import Module


def _no_other_files(path: Path) -> Sequence[Path]:
    return ()


def _is_module(model: object) -> bool:
    from ..ir.core import Module

    return isinstance(model, Module)


def _copy_quantized(model: Any, args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None) -> Module:
    return _copy_module(model.module, args, kwargs, dims)


def _copy_module(model: Module, args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None) -> Module:
    module: Module = model.clone()
    return module


def _read_text(path: Path, args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None) -> Module:
    """A module in the text that `ir.printer` writes."""
    from ..dialects.func import Func
    from ..ir.parser import parse
    from ..ir.verifier import verify

    try:
        module = parse(path.read_text())
        verify(module)
        if not any(isinstance(op, Func) for op in module.body.ops):
            raise CompileError("it has no function")
    except Exception as error:  # attributes of a wrong kind fail in many ways
        raise CompileError(f"{path}: not a valid module in Tilewright's text form: {error}") from error
    return module


def _import_onnx(model: object, args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None) -> Module:
    from ..frontends.onnx import import_onnx

    return import_onnx(model, dims, args, kwargs)


_ARTIFACT_SUFFIXES = (".so", ".wasm", ".tar", ".h", ".py", ".json")
"""Suffixes of files beside an ONNX model that are not its external data."""


def _onnx_data_files(path: Path) -> Sequence[Path]:
    """The files in an ONNX model's folder, and below it, that may hold tensors of it."""
    from .cached_weights import may_have_data_elsewhere

    if not may_have_data_elsewhere(path):
        return ()
    return [
        file
        for file in sorted(path.parent.rglob("*"))
        if file.is_file() and file != path and file.suffix not in _ARTIFACT_SUFFIXES
    ]


def _import_torch(model: object, args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None) -> Module:
    from ..frontends.torch import import_torch

    return import_torch(model, args, dims, kwargs)


def _is_saved_model(model: object) -> bool:
    from ..frontends.stablehlo.saved_model import is_saved_model

    return isinstance(model, Path) and is_saved_model(model)


def _import_saved_model(
    path: Path, args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None
) -> Module:
    from ..frontends.stablehlo.saved_model import import_saved_model

    if dims:
        raise CompileError(
            f"{path}: TensorFlow generates StableHLO for static shapes only: leave 'dims' out and give "
            "example inputs"
        )
    return import_saved_model(path, args, kwargs)


def _import_stablehlo(
    model: object, args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None
) -> Module:
    from ..frontends.stablehlo import import_stablehlo

    return import_stablehlo(model, dims)


def _is_jitted_jax(model: object) -> bool:
    return type(model).__module__.partition(".")[0] in ("jax", "jaxlib") and callable(model)


def _import_jitted_jax(
    model: Callable[..., Any], args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None
) -> Module:
    """Export a function of `jax.jit`, which has no shapes of its own, with the shapes of the examples."""
    from ..frontends.stablehlo.exporting import export_function

    if args is None and not kwargs:
        raise CompileError(
            "a function of jax.jit has no shapes: give examples, tw.compile(f, args), "
            "or export it with shapes, which may be symbolic: jax.export.export(f)(...)"
        )
    exported = export_function(model, args or (), kwargs, dims)
    return _import_stablehlo(exported, None, {}, dims)


def _import_function(
    model: Callable[..., Any], args: Examples, kwargs: dict[str, Any], dims: DimsArgument | None
) -> Module:
    from ..frontends.trace import import_function

    return import_function(getattr(model, "jitted_function", model), args, dims, kwargs)


BUILTIN = (
    Frontend("onnx", _import_onnx, "an onnx.ModelProto", (".onnx",),
             lambda model: has_base(model, "onnx", "ModelProto"), other_files=_onnx_data_files),
    Frontend("torch", _import_torch, "a torch.nn.Module",
             matches=lambda model: has_base(model, "torch", "Module")),
    Frontend("torch.export", _import_torch, "a torch.export.ExportedProgram", (".pt2",),
             lambda model: has_base(model, "torch", "ExportedProgram"), False, _no_other_files),
    Frontend("stablehlo", _import_stablehlo, "a jax.export.Exported", (".mlir",),
             lambda model: has_base(model, "jax", "Exported"), False, _no_other_files),
    Frontend("jax.jit", _import_jitted_jax, "a function of jax.jit", matches=_is_jitted_jax),
    Frontend("tensorflow", _import_saved_model, "the folder of a TensorFlow "
        "SavedModel", matches=_is_saved_model),
    Frontend("text", _read_text, "a file of Tilewright's IR", (".tw",), None, False, _no_other_files),
    Frontend("ir", _copy_module, "a tilewright.ir Module", matches=_is_module, uses_examples=False),
    Frontend("quantized", _copy_quantized, "a tilewright.QuantizedModel",
             matches=lambda model: has_base(model, "tilewright", "QuantizedModel"), uses_examples=False),
)  # fmt: skip
PYTHON_FUNCTION = Frontend(
    "python",
    _import_function,
    "a tilewright.nn Module, a Python function over tilewright.Tensor",
    matches=callable,
)

__all__ = ["BUILTIN", "PYTHON_FUNCTION"]
