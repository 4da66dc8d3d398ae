"""Values inside of a function of JAX: those of the equations of its jaxpr."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CompileError
from .places import Array, InnerValues, Place, Visit

if TYPE_CHECKING:
    from ...frontends.dims import DimsArgument
    from ...ir.core import Module

_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameters that hold the body of an equation that only calls it."""
_CALLING = frozenset(
    {"pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint"}
)


class JaxValues(InnerValues):
    """A function of JAX with example arguments. JAX runs its equations one by one; functions that it calls
    are taken apart, loops and branches are one place each.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        dims: DimsArgument | None,
    ) -> None:
        import jax

        if args is None and not kwargs:
            raise CompileError("a function of jax.jit has no shapes: give example arguments")
        self.framework = f"JAX {jax.__version__}"
        self.model, self.args, self.kwargs, self.dims = model, tuple(args or ()), dict(kwargs or {}), dims
        closed = jax.make_jaxpr(model)(*self.args, **self.kwargs)
        self.places = tuple(_places(closed.jaxpr))

    def module(self, shown: Sequence[int]) -> Module:
        import jax

        from ...frontends.stablehlo import import_stablehlo
        from ...frontends.stablehlo.exporting import export_function

        def with_values(*args: Any, **kwargs: Any) -> Any:
            kept: dict[int, Any] = {}
            wanted = set(shown)

            def visit(number: int, value: Any) -> None:
                if number in wanted:
                    kept[number] = value

            results = _evaluated(self.model, args, kwargs, visit)
            return (*results, *(kept[k] for k in shown))

        with_values.__signature__ = _signature(self.model)  # type: ignore[attr-defined]
        exported = export_function(jax.jit(with_values), self.args, self.kwargs, self.dims)
        return import_stablehlo(exported, self.dims)

    def run(self, inputs: Mapping[str, Array], visit: Visit) -> list[Array]:
        import jax

        leaves, structure = jax.tree_util.tree_flatten((self.args, self.kwargs))
        if len(leaves) != len(inputs):
            raise CompileError(f"the library has {len(inputs)} inputs, the function {len(leaves)} arrays")
        args, kwargs = jax.tree_util.tree_unflatten(
            structure, [jax.numpy.asarray(x) for x in inputs.values()]
        )
        results = _evaluated(self.model, args, kwargs, lambda k, value: visit(k, np.asarray(value)))
        return [np.asarray(x) for x in results]


def _signature(function: Callable[..., Any]) -> Any:
    import inspect

    return inspect.signature(function)


def _places(jaxpr: Any, caller: Place | None = None) -> Iterator[Place]:
    """The places of the equations with those of called functions, in the order in which they run. A called
    function without a line of the user's has the line of its call.
    """
    for equation in _with_results(jaxpr):
        place = _place(equation)
        if caller is not None:
            path = ".".join(p for p in (caller.path, place.path) if p)
            place = Place(path, place.operator, place.source or caller.source)
        body = _body(equation)
        if body is None:
            yield place
        else:
            yield from _places(body.jaxpr, place)


def _with_results(jaxpr: Any) -> list[Any]:
    """The equations that compute something; others, such as those of ``jax.debug.print``, have no value to
    compare and no effect on those of others.
    """
    return [equation for equation in jaxpr.eqns if equation.outvars]


def _body(equation: Any) -> Any:
    """The closed jaxpr that an equation only calls; None for an operator, and for several results."""
    if equation.primitive.name not in _CALLING:
        return None
    import jax

    found = next((equation.params[key] for key in _CALLS if key in equation.params), None)
    if found is not None and not hasattr(found, "consts"):
        found = jax.extend.core.ClosedJaxpr(found, ())
    return found


def _evaluated(
    function: Callable[..., Any], args: Any, kwargs: Any, visit: Callable[[int, Any], None]
) -> Any:
    """The results of a function in a flat list; `visit` gets the first result of each equation."""
    import jax

    closed = jax.make_jaxpr(function)(*args, **kwargs)
    numbers = itertools.count()

    def run(closed: Any, arguments: Sequence[Any]) -> list[Any]:
        jaxpr = closed.jaxpr
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for equation in _with_results(jaxpr):
            operands = [read(x) for x in equation.invars]
            body = _body(equation)
            if body is not None:
                results = run(body, operands)
            else:
                made = equation.primitive.bind(*operands, **equation.params)
                results = list(made) if equation.primitive.multiple_results else [made]
                visit(next(numbers), results[0])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(x) for x in jaxpr.outvars]

    return run(closed, jax.tree_util.tree_leaves((args, kwargs)))


def _place(equation: Any) -> Place:
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    own = next((f for f in frames if not re.search(r"[/\\](jax|jaxlib|flax)[/\\]", f.file_name)), None)
    source = "" if own is None else f"{own.file_name}:{own.line_num}"
    return Place(str(equation.source_info.name_stack), equation.primitive.name, source)


__all__ = ["JaxValues"]
