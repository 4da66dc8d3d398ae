"""Values inside of a run: a model is compiled again with the values that are asked for as results, or a
function on tensors is run operator by operator.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialects import graph as g
from ..dialects.func import Func
from ..errors import CompileError
from ..ir.builder import Builder
from ..ir.core import Module, Operation, Value
from ..ir.types import TensorType, i64
from ..runtime.inspection import InspectedValue, Inspection

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel


def inspect_library(
    graph: Module,
    generate: Callable[[Module], CompiledModel],
    library: CompiledModel,
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Inspection:
    """`CompiledModel.inspect` of a library.

    Args:
        graph: The optimized graph-level module that the library was made from.
        generate: Makes a library of such a module, with the options of the first.
        library: The library, whose states the run begins with and does not change.
        names: The names of the values to show.
        args: The library's arguments.
        kwargs: The library's arguments by name.

    Raises:
        CompileError: No value has one of the names.
    """

    def run(module: Module, values: Sequence[Value]) -> list[np.ndarray[Any, Any]]:
        return _run(generate, library, module, name, values, args, kwargs)

    module, name = graph.clone(), getattr(library, "name", "main")
    function = _function(module, name)
    shown = _computed(function.body.ops)
    chosen = {label: _named(label, shown) for label in names}
    broken = _first_nonfinite(run, module, name, shown)
    wanted: dict[Value, None] = dict.fromkeys(chosen.values())
    if broken is not None:
        op = broken.defining_op
        assert op is not None
        wanted |= dict.fromkeys((broken, *(v for v in op.operands if isinstance(v.type, TensorType))))
    arrays = dict(zip(wanted, run(module, list(wanted)), strict=True))
    return _inspection(chosen, shown, arrays, broken)


def inspect(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Inspection:
    """Run a function on tensors, operator by operator, and show values inside of it.

    Args:
        function: A function of tensors, or a `tw.nn` module.
        *args: Its arguments. Strings among them are names of values to show: the path of a module stands for
            its result, ``layers.3.attention``; a path with an operator for that operator's result; ``*``
            stands for any text, and the last value that fits is shown.
        **kwargs: Its arguments by name.

    Returns:
        The values by name, and the first NaN or infinity with what it was computed from.

    Raises:
        CompileError: No value has one of the names; the message has similar ones.
    """
    from ..frontends.trace.eager import run_eagerly

    names = [x for x in args if isinstance(x, str)]
    trace = run_eagerly(function, [x for x in args if not isinstance(x, str)], kwargs)
    shown = _computed(trace.function.body.ops)
    chosen = {name: _named(name, shown) for name in names}
    arrays: dict[Value, Any] = {}
    broken = None
    for value in shown:
        arrays[value] = np.asarray(trace.elements(value))
        if (
            broken is None
            and value.type.dtype.is_float
            and not np.isfinite(arrays[value].astype(float)).all()
        ):
            broken = value
            op = value.defining_op
            arrays |= {v: np.asarray(trace.elements(v)) for v in (op.operands if op is not None else ())}
    return _inspection(chosen, shown, arrays, broken)


def _inspection(
    chosen: Mapping[str, Value], shown: Mapping[Value, str], arrays: Mapping[Value, Any], broken: Value | None
) -> Inspection:
    def described(value: Value) -> InspectedValue:
        op = value.defining_op
        name = shown.get(value) or (op.location.name if op is not None else "") or value.hint or "an input"
        kind = op.name.removeprefix("graph.") if op is not None else "input"
        return InspectedValue(name, str(op.location) if op is not None else name, kind, arrays[value])

    sources = [] if broken is None or broken.defining_op is None else list(broken.defining_op.operands)
    return Inspection(
        {name: described(value) for name, value in chosen.items()},
        list(dict.fromkeys(shown.values())),
        None if broken is None else described(broken),
        [described(v) for v in dict.fromkeys(sources) if v in arrays],
    )


def _function(module: Module, name: str) -> Func:
    (function,) = (f for f in module.functions(Func) if f.sym_name == name)
    return function


def _computed(ops: Iterable[Operation]) -> dict[Value, str]:
    """The tensors that the operators of a block compute, with their names in the model."""
    return {
        r: op.location.name or op.name
        for op in ops
        if not isinstance(op, (g.Constant, g.Symbolic)) and not op.terminator
        for r in op.results
        if isinstance(r.type, TensorType)
    }


def _named(name: str, shown: Mapping[Value, str]) -> Value:
    """The last value whose name is `name`, or begins with it as the path of a module.

    Raises:
        CompileError: There is none.
    """

    def fits(value: Value, label: str) -> bool:
        op = value.defining_op
        labels = [label, *(part.name for part in op.location.fused)] if op is not None else [label]
        return any(
            fnmatchcase(x, name) or x.startswith((f"{name}/", f"{name}.")) or fnmatchcase(x, f"{name}/*")
            for x in labels
        )

    found = [value for value, label in shown.items() if fits(value, label)]
    if not found:
        paths = {label for label in shown.values()} | {label.partition("/")[0] for label in shown.values()}
        near = difflib.get_close_matches(name, paths, 5, 0.3)
        raise CompileError(
            f"no value of the model is called {name!r}"
            + (f"; similar names: {', '.join(near)}" if near else "")
            + ". An inspection's `names` lists all"
        )
    return found[-1]


def _run(
    generate: Callable[[Module], CompiledModel],
    library: CompiledModel,
    module: Module,
    name: str,
    values: Sequence[Value],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[np.ndarray[Any, Any]]:
    """The elements of values of the function `name`, from a run of the module compiled with them as results.
    Arguments and states that a run changes are copies.
    """
    if not values:
        return []
    mapping: dict[Value, Value] = {}
    changed = module.clone(mapping)
    function = _function(changed, name)
    end, own = function.body.terminator, len(function.outputs)
    operands = list(end.operands)
    end.set_operands([*operands[:own], *(mapping[v] for v in values), *operands[own:]])
    shown = tuple(f"inspected_{k}" for k in range(len(values)))
    function.result_names = (*function.result_names[:own], *shown)
    with generate(changed) as made:
        for state in library.metadata.get("states", ()):
            made.state[state["name"]] = library.state[state["name"]]
        called = made if name == "main" else made.functions[name]
        results = called(*(np.array(x) for x in args), **{k: np.array(x) for k, x in kwargs.items()})
        results = results if isinstance(results, tuple) else (results,)
        return [np.array(x) for x in results[-len(values) :]]


def _first_nonfinite(
    run: Callable[[Module, Sequence[Value]], list[np.ndarray[Any, Any]]],
    module: Module,
    name: str,
    shown: Mapping[Value, str],
) -> Value | None:
    """The first float value of a run that has a NaN or an infinity, by its count of these."""
    floats = [v for v in shown if v.type.dtype.is_float]
    if not floats:
        return None
    mapping: dict[Value, Value] = {}
    counted = module.clone(mapping)
    b = Builder.before(_function(counted, name).body.terminator)
    counts = []
    for value in floats:
        x = mapping[value]
        wrong = b(g.Or(b(g.Isnan(x)), b(g.Isinf(x))))
        total = b(g.ReduceSum(b(g.Cast(wrong, dtype=i64)), axes=tuple(range(x.type.rank))))
        counts.append(b(g.Reshape(total, shape=(1,))))
    joined = b(g.Concat(counts, axis=0)) if len(counts) > 1 else counts[0]
    (found,) = run(counted, [joined])
    places = np.flatnonzero(found)
    return floats[int(places[0])] if places.size else None


__all__ = ["inspect", "inspect_library"]
