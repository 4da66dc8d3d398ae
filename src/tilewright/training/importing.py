"""The model of a training step, from what the user gives: a module, a file, a function of a framework."""

from __future__ import annotations

from pathlib import Path

from ..errors import CompileError
from ..frontends.nn import Module
from .models import ModuleModel
from .request import Found, Request, TrainableModel


def as_model(request: Request) -> Found:
    """Return the model to train.

    Raises:
        CompileError: There is no way to train such a model.
    """
    from ..driver.frontend_registry import has_base

    model = request.model
    if isinstance(model, Module):
        predicts = request.loss is not None
        names = request.names_of(model.forward)
        return Found(ModuleModel(model, names, request.inputs, request.trainable, predicts), request.loss)
    if has_base(model, "torch", "Module"):
        from .torch_model import torch_model

        return torch_model(request)
    if isinstance(model, TrainableModel):
        return Found(model.training_model(request), request.loss)
    is_file = isinstance(model, (str, Path))
    suffix = Path(model).suffix.lower() if is_file else ""
    if has_base(model, "torch.export", "ExportedProgram") or suffix == ".pt2":
        from .exported_model import exported_model

        return exported_model(request)
    if has_base(model, "onnx", "ModelProto") or suffix == ".onnx":
        from .onnx_model import onnx_model

        return Found(onnx_model(request), request.loss)
    if request.parameters is not None and (callable(model) or has_base(model, "jax", "Exported")):
        from .jax_model import jax_model

        return Found(jax_model(request), request.loss)
    raise CompileError(
        f"cannot train a {type(model).__name__}: expected a tw.nn module, a torch.nn.Module or an exported "
        "program of it, an ONNX model, or a JAX function with parameters=..."
    )


__all__ = ["as_model"]
