"""Modules of PyTorch for training: exported in training mode and in inference mode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialects.func import Func
from ..frontends.torch import import_torch
from ..frontends.trace import Tensor
from .graph_model import Graph, GraphModel
from .models import chosen
from .request import Found, Request, targets_of

if TYPE_CHECKING:
    import torch

Mode = Callable[[Any, bool], AbstractContextManager[None]]


def torch_model(request: Request, mode: Mode | None = None) -> Found:
    """Return a module of PyTorch, with a loss of PyTorch's as part of its graph.

    A loss that is defined in this package is computed from the graph's outputs instead.

    Args:
        request: The module and its loss.
        mode: Puts the module into training mode (True) or inference mode while it is exported; None: by its
            methods ``train`` and ``eval``.
    """
    import torch

    mode = mode or _mode

    module, loss = request.model, request.loss
    own_loss = loss is None or not getattr(loss, "__module__", "").startswith("tilewright")
    unique = {id(p): n for n, p in reversed(list(module.named_parameters(remove_duplicate=False)))}
    names = [n for n, p in module.named_parameters() if p.is_floating_point() and unique[id(p)] == n]
    trained = chosen(names, request.trainable)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    whole = _joined(module, loss if own_loss else None, request, is_loss=own_loss)
    with mode(module, True), torch.enable_grad():
        training = _graph(whole, request.examples if own_loss else request.inputs, request, trained)
    changed = [n for n in training.held.values() if n not in trained]
    inference = None
    if loss is not None:
        with mode(module, False):
            alone = _joined(module, None, request, is_loss=False)
            inference = _graph(alone, request.inputs, request, [*trained, *changed])
    first = {n: Tensor(_array(tensors[n])) for n in (*trained, *changed)}

    def sync(values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(torch.from_numpy(np.array(value)).to(tensors[name].dtype))

    return Found(GraphModel(training, inference, first, trained, sync, own_loss), None if own_loss else loss)


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    from ..frontends.torch.tensors import array_of

    return np.array(array_of(tensor.detach().contiguous(), "a parameter"))


def _graph(module: torch.nn.Module, examples: Sequence[Any], request: Request, kept: Sequence[str]) -> Graph:
    """Import a module of `_joined` whose tensors called `kept` are arguments of the function."""
    import torch

    names = list(inspect.signature(module.forward).parameters)
    tensors = [torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x for x in examples]
    imported = import_torch(
        module, tensors, request.dims_of(names), kept=frozenset(f"model.{n}" for n in kept)
    )
    function = imported.symbol("main")
    assert isinstance(function, Func)
    return Graph(imported, {n: n.removeprefix("model.") for n, _ in function.states})


def _joined(
    module: torch.nn.Module, loss: Callable[..., Any] | None, request: Request, *, is_loss: bool
) -> torch.nn.Module:
    """A module that calls another with inputs by name, and a loss with its outputs. If it computes the loss,
    it returns a dictionary of it and of further results.
    """
    import torch

    names = request.names_of(module.forward)
    by_name = bool(request.by_name)

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.loss = loss

    def forward(self: Any, *args: Any) -> Any:
        inputs = args[: len(names)]
        found = self.model(**dict(zip(names, inputs, strict=True))) if by_name else self.model(*inputs)
        if self.loss is not None:
            found = self.loss(found, *args[len(names) :])
        elif not is_loss:
            return found
        elif isinstance(found, dict):
            return {**found}
        value, more = found if isinstance(found, tuple) else (found, {})
        return {"loss": value, **more}

    targets = [] if loss is None else list(request.by_name[len(names) :]) or targets_of(loss)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", kind), *(inspect.Parameter(n, kind) for n in [*names, *targets])]
    )
    Joined.forward = forward
    return Joined()


@contextmanager
def _mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """Export in a mode, and give each submodule its own mode back.

    A module that the user has put into inference mode on purpose stays in it, as a frozen normalization.
    """
    before = {m: m.training for m in module.modules()}
    if not training:
        module.eval()
    elif not module.training:
        module.train()
    try:
        yield
    finally:
        for m, mode in before.items():
            m.training = mode


__all__ = ["torch_model"]
