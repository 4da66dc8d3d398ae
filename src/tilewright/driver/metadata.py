"""The metadata of an artifact: plain data for JSON, from which the runtime and the tools read all they know
of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact.structure import KEY as STRUCTURE
from ..ir.shape_solver import Check, Define, ShapeSolver
from ..ir.symbolic import Dim, bounds, free_symbols
from ..ir.types import BufferType, TensorType
from .structure import describe_structure

if TYPE_CHECKING:
    from ..dialects.func import Func
    from ..ir.core import Module
    from ..lowering.memory_plan import MemoryPlan
    from ..lowering.pipeline import Lowered
    from .options import CompileOptions
    from .report import Report

FORMAT = 1
"""The version of the metadata's layout; a reader refuses a later one."""

Tensors = Sequence[tuple[str, TensorType | BufferType]]


def artifact_metadata(
    graph: Module,
    lowered: Lowered,
    plan: MemoryPlan,
    source: Mapping[str, str],
    options: CompileOptions,
    report: Report,
) -> dict[str, Any]:
    """The metadata of an artifact.

    Args:
        graph: The optimized graph-level module.
        lowered: Its host program and kernels.
        plan: The memory plan of the host program.
        source: A description of the source model: see `describe_source`.
        options: The options it was compiled with; their `extra_metadata` are included.
        report: The report of the compilation so far.
    """
    from ..artifact.sources import ABI_VERSION
    from ..artifact.version import __version__
    from ..dialects.func import entries, shared_states

    functions = entries(graph)
    interfaces = _describe_functions(functions, plan)
    if states := shared_states(functions):
        interfaces["states"] = [
            {"name": n, "dtype": t.dtype.label, "shape": list(t.shape)} for n, (t, _) in states.items()
        ]
    return {
        **options.extra_metadata,
        "format": FORMAT,
        "abi": ABI_VERSION,
        "compiler": f"tilewright {__version__}",
        "source": source,
        **interfaces,
        "target": options.target.describe(),
        "precision": None if options.precision is None else options.precision.name,
        "opt": options.opt.name,
        "checks": options.keeps_checks,
        "passes": report.passes,
        "contractions": lowered.contractions,
        "conversions": lowered.conversions,
        "kernels": _describe_kernels(lowered),
        **({"replaced": report.replaced} if report.replaced else {}),
        **({"libraries": report.libraries} if report.libraries else {}),
        # JSON has no numbers as keys.
        **({"unfit_schedules": list(lowered.unfit.items())} if lowered.unfit else {}),
        "memory": plan.to_metadata(),
        "parameters": plan.parameters(),
        STRUCTURE: describe_structure(graph, lowered.module, plan),
        "fusion": {
            "kernels_before": report.kernels_before,
            "kernels_after": report.kernels_after,
            "bytes_before": report.bytes_before,
            "bytes_after": report.bytes_after,
        },
    }


def mixed_metadata(
    module: Module, source: Mapping[str, str], options: CompileOptions, kernels: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The metadata of a model that the interpreter runs in part, with the kernels of its compiled parts."""
    from ..dialects.func import Func

    main = module.symbol("main")
    assert isinstance(main, Func)
    return {
        "source": source,
        **_describe_function(main),
        "target": options.target.describe(),
        "precision": None if options.precision is None else options.precision.name,
        "opt": options.opt.name,
        "checks": options.keeps_checks,
        "kernels": list(kernels),
    }


def describe_source(model: object, module: Module) -> dict[str, str]:
    """The source model's kind and name, and a hash of its imported graph and weights (``xxh3_128``)."""
    from .cache import hash_module

    digest = {"xxh3_128": hash_module(module)}
    if isinstance(model, (str, Path)):
        return {"kind": Path(model).suffix.lstrip("."), "name": Path(model).name, **digest}
    if isinstance(model, Mapping):
        return {"kind": "functions", "name": ", ".join(model), **digest}
    kind = type(model)
    return {"kind": kind.__module__.partition(".")[0], "name": kind.__name__, **digest}


def _describe_kernels(lowered: Lowered) -> list[dict[str, Any]]:
    """Per distinct kernel: its launches in a run, and operations and bytes of one launch (numbers or
    formulas). Variants follow their kernel."""
    return [
        {
            "name": k.name,
            "kind": k.kind,
            "launches": k.launches,
            "flops": _text(k.flops),
            "bytes": _text(k.bytes),
            "operators": list(k.origins),
            **({"slower": k.slower} if k.slower else {}),
            **({"tuned": k.tuned} if k.tuned else {}),
            **({"variant_of": base.name, "when": k.when.text} if k.when else {}),
            "choices": [choice.to_metadata() for choice in k.choices],
            "trace": [[x.name, list(x.arguments), dict(x.options), x.result] for x in k.trace],
            "locations": [str(p.portable) for p in (k.location, *k.location.fused) if p.name or p.file][:4],
        }
        for base in lowered.kernels.values()
        for k in (base, *base.variants)
    ]


def _describe_functions(functions: Sequence[Func], plan: MemoryPlan) -> dict[str, Any]:
    """The interface of "main" as the model's own; of several functions each under ``functions``, by name."""
    from ..analysis.index_limits import index_limits

    by_name: dict[str, dict[str, Any]] = {}
    for function in functions:
        entry = by_name[function.sym_name] = _describe_function(function)
        limits = index_limits(function)
        for tensor in entry["inputs"]:
            if tensor["name"] in limits:
                tensor["limit"] = limits[tensor["name"]]
    main = by_name.get("main", {"inputs": [], "outputs": [], "symbols": {}, "solver": []})
    if list(by_name) == ["main"]:
        return main
    memory = {name: {"memory": plan.functions[name].to_metadata()} for name in by_name}
    return {**main, "functions": {name: {**entry, **memory[name]} for name, entry in by_name.items()}}


def _describe_function(main: Func) -> dict[str, Any]:
    """A function's interface, with what its calls change, nest and draw at random."""
    types = {n: v.type for n, v in zip(main.arg_names, main.body.args, strict=True)}
    states = dict(main.states)
    entry = interface(
        [(n, t) for n, t in types.items() if n not in states],
        [(n, v.type) for n, v in zip(main.result_names, main.outputs, strict=True)],
    )
    for tensor in entry["inputs"]:
        if tensor["name"] in main.updates:
            tensor["updated"] = True
    if main.nested:
        entry["nested"] = dict(zip(("inputs", "outputs"), main.nested, strict=True))
    return entry | ({"seed": main.seed} if main.seed else {})


def interface(inputs: Tensors, outputs: Tensors) -> dict[str, Any]:
    """A description of a function's tensors and of the dimensions' symbols.

    Returns:
        ``inputs`` and ``outputs``: name, dtype and shape of each tensor; a size is a number or a formula in
        text. ``"late": True`` marks an output with a size that is known after a run only. ``symbols``: bounds
        ``[lower, upper]`` by name. ``solver``: the steps by which `runtime.expressions.solve_symbols` gets
        the symbols from the inputs' shapes.
    """
    dims = [d for _, type_ in (*inputs, *outputs) for d in type_.shape]
    solver = ShapeSolver([(name, type_.shape) for name, type_ in inputs])

    def describe(name: str, type_: TensorType | BufferType) -> dict[str, Any]:
        late = any(s not in solver.symbols for d in type_.shape for s in free_symbols(d))
        shape = [_text(d) for d in type_.shape]
        return {"name": name, "dtype": type_.dtype.label, "shape": shape, **({"late": True} if late else {})}

    return {
        "inputs": [describe(*tensor) for tensor in inputs],
        "outputs": [describe(*tensor) for tensor in outputs],
        "symbols": {s.name: list(bounds(s)) for d in dims for s in sorted(free_symbols(d), key=str)},
        "solver": [_step(step) for step in solver.steps],
    }


def _step(step: Define | Check) -> dict[str, Any]:
    where: dict[str, Any] = {"input": step.input, "dim": step.dim}
    if not isinstance(step, Define):
        return {**where, "expr": _text(step.expr)}
    lower, upper = bounds(step.symbol)
    return {
        **where,
        "symbol": step.symbol.name,
        "coefficient": _text(step.coefficient),
        "offset": _text(step.offset),
        "lower": lower,
        "upper": upper,
    }


def _text(d: Dim) -> int | str:
    return d if isinstance(d, int) else str(d)


__all__ = ["FORMAT", "artifact_metadata", "describe_source", "interface", "mixed_metadata"]
