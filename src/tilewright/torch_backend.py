"""``torch.compile(model, backend="tilewright")``: forward and backward graphs of AOTAutograd, each compiled to a library.

Comes in: Dynamo's graph and its example inputs (fake tensors, so that sizes stay symbols). AOTAutograd makes it functional, differentiates it where
gradients are wanted, and keeps mutation, aliasing and views to itself. A graph that cannot be compiled runs in torch, and a warning says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from .errors import CompileError, InternalError, TilewrightError

OPTIONS = {"fallback": True, "threads": None, "precision": None}
"""What ``torch.compile(..., options={...})`` may say. `fallback` False: a graph that cannot be compiled is an error; `threads` and `precision` as
`tilewright.compile` takes them, `threads` None being ``torch.get_num_threads()`` at the time of compilation."""


def tilewright(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The backend that torch finds under the name "tilewright" (entry point group ``torch_dynamo_backends``).

    Sizes that Dynamo treats as dynamic are symbols of the compiled library, so it is compiled once for all of them (``dynamic=True`` from the first
    call on; Dynamo itself tries the second size). Objects and whole libraries are found in the disk cache again.

    Raises:
        CompileError: an unknown option.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    unknown = set(options or {}) - set(OPTIONS)
    if unknown:
        raise CompileError(f"unknown option {', '.join(sorted(unknown))} of this backend; known: {', '.join(OPTIONS)}")
    compiler = partial(compile_graph, options={**OPTIONS, **(options or {})})
    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=False,
    )
    return backend(module, inputs)


@cache
def _decompositions() -> dict[Any, Any]:
    import torch

    from .frontends.torch.registry import decomposition_table

    aten = torch.ops.aten
    table = dict(decomposition_table().items())
    table.pop(aten.bernoulli.p, None)  # drawn by torch, with the numbers that an eager run draws
    table[aten.native_dropout.default] = _native_dropout
    return table


def _native_dropout(x: Any, p: float, train: bool | None) -> tuple[Any, Any]:
    import torch

    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x), 1 - p)
    return x * (mask * (1 / (1 - p))), mask.bool()


def compile_graph(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] = OPTIONS) -> Callable[..., Any]:
    """A functional graph whose nodes carry fake tensors as a function of a list of its arguments, which it empties."""
    from torch._functorch.aot_autograd import make_boxed_func
    from torch.utils._python_dispatch import _disable_current_modes

    try:
        with _disable_current_modes():
            return _compiled(module, options)
    except TilewrightError as error:
        if not options["fallback"]:
            raise
        warnings.warn(f"this graph runs in torch, not compiled by Tilewright: {error}", stacklevel=2)
    return make_boxed_func(module.forward)  # type: ignore[no-any-return]


def _compiled(module: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
    import torch

    from .compiler import compile
    from .frontends.torch.graph_module import GraphImporter

    try:
        graph = GraphImporter(module)
    except TilewrightError:
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error
    if graph.module is None:
        return graph.bind(None)
    threads = options["threads"] or torch.get_num_threads()
    return graph.bind(compile(graph.module, threads=threads, precision=options["precision"]))


__all__ = ["OPTIONS", "compile_graph", "tilewright"]
