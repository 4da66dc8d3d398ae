"""``torch.compile(model, backend="tilewright")``: forward and backward graphs of AOTAutograd, each compiled to a library.

Comes in: Dynamo's graph and its example inputs (fake tensors, so that sizes stay symbols). AOTAutograd makes it functional, differentiates it where
gradients are wanted, and keeps mutation, aliasing and views to itself. A graph that cannot be compiled runs in torch, and a warning says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from .errors import CompileError, InternalError, TilewrightError, UnsupportedOperatorError

if TYPE_CHECKING:
    from .frontends.torch.graph_module import GraphImporter


class FallbackWarning(UserWarning):
    """Parts of a graph run in torch. `operators`: those that nobody imports, or the kind of error that kept a part from being compiled."""

    def __init__(self, message: str, operators: Sequence[str]) -> None:
        super().__init__(message)
        self.operators = tuple(operators)


OPTIONS = {"fallback": True, "threads": None, "precision": None, "checks": True}
"""What ``torch.compile(..., options={...})`` may say. `fallback` False: a graph that cannot be compiled is an error; `threads`, `precision` and `checks` as
`tilewright.compile` takes them, `threads` None being ``torch.get_num_threads()`` at the time of compilation."""


def tilewright(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The backend that torch finds under the name "tilewright" (entry point group ``torch_dynamo_backends``, or once this module is imported).

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
    return table


def compile_graph(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] = OPTIONS) -> Callable[..., Any]:
    """A functional graph whose nodes carry fake tensors as a function of a list of its arguments, which it empties."""
    from torch.utils._python_dispatch import _disable_current_modes

    reasons: dict[str, str] = {}
    with _disable_current_modes():
        function = _compiled(module, options, reasons)
    if reasons:
        listing = "".join(f"\n  - {what}: {why}" for what, why in reasons.items())
        message = (
            "torch runs what Tilewright does not compile of this graph (an error with options={'fallback': False}):"
        )
        warnings.warn(FallbackWarning(message + listing, list(reasons)), stacklevel=2)
    return function


def _compiled(module: Any, options: Mapping[str, Any], reasons: dict[str, str]) -> Callable[[list[Any]], list[Any]]:
    """The graph as compiled as it can be; `reasons` is told by what name and why parts of it are not."""
    from .frontends.torch.graph_module import GraphImporter

    graph = GraphImporter(module)
    try:
        return graph.bind(_library(graph, options))
    except TilewrightError as error:
        if not options["fallback"]:
            raise
        if not isinstance(error, UnsupportedOperatorError):
            reasons[type(error).__name__] = str(error)
            return _boxed(module)
        reasons.update((o.operator, ", ".join([*o.locations[:3], *filter(None, [o.hint])])) for o in error.operators)
    return _in_parts(module, graph.refused, options, reasons)


def _in_parts(
    module: Any, refused: Sequence[Any], options: Mapping[str, Any], reasons: dict[str, str]
) -> Callable[[list[Any]], list[Any]]:
    """The graph with `refused` nodes in torch and the parts between them compiled."""
    from .frontends.torch.partition import split

    whole, names = split(module, set(refused))
    for name in names:
        part = getattr(whole, name)
        function = _compiled(part, options, reasons)
        delattr(whole, name)
        setattr(whole, name, _unboxed(function, _is_single(part)))
    return _boxed(whole)


def _is_single(module: Any) -> bool:
    """Whether a part's result comes without a list around it."""
    output = next(n for n in module.graph.nodes if n.op == "output")
    return not isinstance(output.args[0], (list, tuple))


def _boxed(module: Any) -> Callable[[list[Any]], list[Any]]:
    """What torch makes of a graph as a function of a list that gives a list."""
    from torch._functorch.aot_autograd import make_boxed_func

    forward = module.forward
    return make_boxed_func((lambda *args: [forward(*args)]) if _is_single(module) else forward)  # type: ignore[no-any-return]


def _unboxed(function: Callable[[list[Any]], list[Any]], single: bool) -> Callable[..., Any]:
    if single:
        return lambda *args: function(list(args))[0]
    return lambda *args: function(list(args))


def _library(graph: GraphImporter, options: Mapping[str, Any]) -> Any:
    """What computes the tensors of a graph, None where it has none to compute."""
    import torch

    from .compiler import compile

    try:
        module = graph.run()
    except TilewrightError:
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error
    if module is None:
        return None
    threads = options["threads"] or torch.get_num_threads()
    return compile(module, threads=threads, precision=options["precision"], checks=options["checks"])


def _register() -> None:
    """Make the backend's name known to torch where the package runs from its sources, without the entry point that installing it makes."""
    try:
        import torch._dynamo as dynamo
    except ImportError:  # without torch nobody asks for it
        return
    if "tilewright" not in dynamo.list_backends():
        dynamo.register_backend(tilewright)


_register()

__all__ = ["OPTIONS", "FallbackWarning", "compile_graph", "tilewright"]
