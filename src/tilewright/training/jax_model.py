"""Functions of JAX for training: the first argument is a tree of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import CompileError
from ..frontends.stablehlo import import_stablehlo
from ..frontends.trace import Tensor
from .graph_model import Graph, GraphModel
from .models import chosen
from .request import Request


def jax_model(request: Request) -> GraphModel:
    """Return a function ``f(parameters, *inputs)`` of JAX, or an export of one, whose parameters are trained.

    Raises:
        CompileError: There are no parameters, or `dims` are given, which `jax.export` has in its shapes.
    """
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(request.parameters)[0]
    names = [".".join(map(_label, path)) or "parameters" for path, _ in leaves]
    if not leaves:
        raise CompileError("parameters: the tree has no arrays")
    exported = request.model
    if not isinstance(exported, jax.export.Exported):
        if request.dims:
            raise CompileError(
                "dims: a function of JAX has the sizes of its examples; export it with symbolic ones, "
                "jax.export.export(jax.jit(f))(...)"
            )
        function = exported if hasattr(exported, "lower") else jax.jit(exported)
        exported = jax.export.export(function, platforms=["cpu"])(
            request.parameters, *map(np.asarray, request.inputs)
        )
    module = import_stablehlo(exported, None)
    main = module.symbol("main")
    arguments = dict(zip(main.attributes["arg_names"], names, strict=False))
    floating = [
        n for n, (_, x) in zip(names, leaves, strict=True) if jax.numpy.issubdtype(x, jax.numpy.floating)
    ]
    trained = chosen(floating, request.trainable)
    first = {n: Tensor(np.array(x)) for n, (_, x) in zip(names, leaves, strict=True)}

    def sync(values: Mapping[str, Any]) -> None:
        raise CompileError("JAX's arrays do not change: take the parameters from step.state_dict()")

    graph = Graph(module, arguments)
    return GraphModel(graph, None if request.loss is None else graph, first, trained, sync)


def _label(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


__all__ = ["jax_model"]
