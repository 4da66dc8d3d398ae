"""``torch.compile(model, backend="tilewright")``: forward and backward graphs of AOTAutograd, each compiled
to a library.

The input is Dynamo's graph with its example inputs (fake tensors, so that sizes stay symbols). AOTAutograd
makes the graph functional, differentiates it where gradients are needed, and handles mutation, aliasing and
views. A graph that cannot be compiled runs in torch, with a warning that says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..errors import CompileError, InternalError, TilewrightError, UnsupportedOperatorError

if TYPE_CHECKING:
    import torch

    from ..frontends.torch.graph_module import GraphImporter


class FallbackWarning(UserWarning):
    """Parts of a graph run in torch. `operators`: those without an importer, or the kind of error that
    prevented the compilation of a part.
    """

    def __init__(self, message: str, operators: Sequence[str]) -> None:
        super().__init__(message)
        self.operators = tuple(operators)


OPTIONS = {"fallback": True, "threads": None, "precision": None, "checks": True}
"""The options of ``torch.compile(..., options={...})`` with their defaults.

`fallback` False: a graph that cannot be compiled is an error. `threads`, `precision` and `checks` are those
of `tilewright.compile`; `threads` None is ``torch.get_num_threads()`` at the time of compilation.
"""


def tilewright(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend that torch calls under the name "tilewright" (entry point group ``torch_dynamo_backends``,
    or once this module is imported).

    Sizes that Dynamo treats as dynamic are symbols of the compiled library, so it is compiled once for all of
    them: with ``dynamic=True`` from the first call on, otherwise from the second size on. Compiled libraries
    are taken from the disk cache.

    Args:
        module: Dynamo's graph.
        inputs: Its example inputs: fake tensors and symbolic integers.
        options: See `OPTIONS`.

    Returns:
        The compiled function, with the arguments and results of `module`.

    Raises:
        CompileError: An option is unknown, or, with ``fallback=False``, the graph cannot be compiled.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    unknown = set(options or {}) - set(OPTIONS)
    if unknown:
        raise CompileError(
            f"unknown option {', '.join(sorted(unknown))} of this backend; known: {', '.join(OPTIONS)}"
        )
    compiler = partial(compile_graph, options={**OPTIONS, **(options or {})})
    backend = aot_autograd(
        fw_compiler=partial(_compile_forward, compiler),
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

    from ..frontends.torch import attention_gradient
    from ..frontends.torch.registry import decomposition_table

    aten = torch.ops.aten
    table = dict(decomposition_table().items())
    table.pop(aten.bernoulli.p, None)  # torch draws the numbers, the same as in an eager run
    table |= attention_gradient.decompositions()
    return table


def _compile_forward(
    compiler: Callable[..., Any], module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """The forward graph of a training step, which also returns the values that the backward graph reads."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    found = context and context.fw_metadata
    if context is None or found is None or found.tokens or context.output_strides is None:
        return compiler(module, inputs)
    return compiler(module, inputs, first_kept=found.num_forward, strides=context.output_strides)


def compile_graph(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] = OPTIONS,
    first_kept: int | None = None,
    strides: list[Any] | None = None,
) -> Callable[..., Any]:
    """A functional graph, whose nodes carry fake tensors, as a function of the list of its arguments. The
    function empties the list.

    Args:
        module: The graph.
        inputs: Its example inputs: fake tensors in the memory layouts of calls, and symbolic integers.
        options: See `OPTIONS`.
        first_kept: The number of the first result that only the backward graph reads, if there are any.
        strides: The list to which the strides of the results are added, None for those that torch expects.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    from ..frontends.torch.graph_module import GraphImporter

    reasons: dict[str, str] = {}
    with _disable_current_modes():
        function = _compiled(GraphImporter(module, inputs, first_kept), options, reasons, strides)
    if reasons:
        listing = "".join(f"\n  - {what}: {why}" for what, why in reasons.items())
        message = (
            "torch runs the parts of this graph that Tilewright does not compile "
            "(an error with options={'fallback': False}):"
        )
        warnings.warn(FallbackWarning(message + listing, list(reasons)), stacklevel=2)
    return function


def _compiled(
    graph: GraphImporter,
    options: Mapping[str, Any],
    reasons: dict[str, str],
    strides: list[Any] | None = None,
) -> Callable[[list[Any]], list[Any]]:
    """The graph, compiled as far as possible. `reasons` collects, by name, why parts of it are not
    compiled.
    """
    module = graph.source
    try:
        function = graph.bind(_library(graph, options))
        if strides is not None:
            strides += graph.strides()
        return function
    except TilewrightError as error:
        if not options["fallback"]:
            raise
        if not isinstance(error, UnsupportedOperatorError):
            reasons[type(error).__name__] = str(error)
            return _as_traced(graph, _boxed(module))
        reasons.update(
            (o.operator, ", ".join([*o.locations[:3], *filter(None, [o.hint])])) for o in error.operators
        )
    return _as_traced(graph, _in_parts(module, graph.refused, options, reasons))


def _as_traced(
    graph: GraphImporter, function: Callable[[list[Any]], list[Any]]
) -> Callable[[list[Any]], list[Any]]:
    """A function that torch runs, with arguments in the layouts that its operators were traced with."""
    if not graph.relaid:
        return function

    def call(args: list[Any]) -> list[Any]:
        graph.restore(args)
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _in_parts(
    module: torch.fx.GraphModule,
    refused: Sequence[torch.fx.Node],
    options: Mapping[str, Any],
    reasons: dict[str, str],
) -> Callable[[list[Any]], list[Any]]:
    """The graph with the `refused` nodes in torch and the parts between them compiled."""
    from ..frontends.torch.graph_module import GraphImporter
    from ..frontends.torch.partition import split

    whole, names = split(module, set(refused))
    for name in names:
        part = getattr(whole, name)
        function = _compiled(GraphImporter(part), options, reasons)
        delattr(whole, name)
        setattr(whole, name, _unboxed(function, _is_single(part)))
    return _boxed(whole)


def _is_single(module: torch.fx.GraphModule) -> bool:
    """Whether a part returns a single tensor rather than a list."""
    output = next(n for n in module.graph.nodes if n.op == "output")
    return not isinstance(output.args[0], (list, tuple))


def _boxed(module: torch.fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
    """A graph as a function from a list to a list, run by torch."""
    from torch._functorch.aot_autograd import make_boxed_func

    forward = module.forward
    flat = (lambda *args: [forward(*args)]) if _is_single(module) else forward
    boxed: Callable[[list[Any]], list[Any]] = make_boxed_func(flat)
    return boxed


def _unboxed(function: Callable[[list[Any]], list[Any]], single: bool) -> Callable[..., Any]:
    if single:
        return lambda *args: function(list(args))[0]
    return lambda *args: function(list(args))


def _library(graph: GraphImporter, options: Mapping[str, Any]) -> Any:
    """The library that computes the tensors of a graph; None where there are none to compute."""
    import torch

    from ..driver.compile import compile

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
    """Register the backend's name with torch where the package runs from its sources, without the entry point
    that its installation makes.
    """
    try:
        import torch._dynamo as dynamo
    except ImportError:  # the backend needs torch
        return
    if "tilewright" not in dynamo.list_backends():
        dynamo.register_backend(tilewright)


_register()

__all__ = ["OPTIONS", "FallbackWarning", "compile_graph", "tilewright"]
