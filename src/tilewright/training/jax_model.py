"""Functions of JAX for training: the first argument is a tree of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import CompileError
from ..frontends.stablehlo import import_stablehlo
from ..frontends.stablehlo.exporting import export_function
from ..frontends.trace import Tensor
from .graph_model import Graph, GraphModel
from .models import chosen
from .request import Request, targets_of


def jax_model(request: Request) -> GraphModel:
    """Return a function ``f(parameters, *inputs)`` of JAX, or an export of one, whose parameters are trained.

    Raises:
        CompileError: There are no parameters, or `dims` do not fit the function.
    """
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(request.parameters)[0]
    names = [".".join(map(_label, path)) or "parameters" for path, _ in leaves]
    if not leaves:
        raise CompileError("parameters: the tree has no arrays")
    exported = request.model
    if not isinstance(exported, jax.export.Exported):
        inputs = list(map(np.asarray, request.inputs))
        arguments = list(inspect.signature(exported).parameters)[1 : 1 + len(inputs)]
        dims = request.dims_of(arguments)
        exported = export_function(exported, (request.parameters, *inputs), None, dims)
        module = import_stablehlo(exported, dims)
    else:
        targets = [] if request.loss is None else targets_of(request.loss)
        own = {n: d for n, d in (request.dims or {}).items() if n not in targets}
        module = import_stablehlo(exported, own or None)
    main = module.symbol("main")
    held = dict(zip(main.attributes["arg_names"], names, strict=False))
    floating = [
        n for n, (_, x) in zip(names, leaves, strict=True) if jax.numpy.issubdtype(x, jax.numpy.floating)
    ]
    trained = chosen(floating, request.trainable)
    first = {n: Tensor(np.array(x)) for n, (_, x) in zip(names, leaves, strict=True)}

    def sync(values: Mapping[str, Any]) -> None:
        raise CompileError("JAX's arrays do not change: take the parameters from step.state_dict()")

    graph = Graph(module, held)
    return GraphModel(graph, None if request.loss is None else graph, first, trained, sync)


def _label(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


__all__ = ["jax_model"]
