"""Functions that say how they are differentiated: `custom_gradient`, `checkpoint`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...dialects import graph as g
from ...dialects.graph.derivative_marks import enclose
from ...dialects.graph.scan import Yield
from ...errors import GradientError
from ...ir.core import Block, Operation, OpResult, Region, Value
from .eager import is_compiling
from .operands import as_tensor, value_of
from .tensor import Tensor, traced
from .tracing import Trace, TraceError, current, user_location
from .tree import flatten, unflatten


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a gradient rule of its own.

        @tw.custom_gradient
        def log1pexp(x):
            e = tnp.exp(x)
            return tnp.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))

    The rule may use values of the function. It is differentiated itself for second derivatives.

    Args:
        function: A function of tensors in lists, tuples and dictionaries. It returns a pair of its results
            and the rule. The rule takes the gradients of the results in their structure (None for those that
            are not floating point), and returns the gradient of the argument in its structure: of several
            arguments, a tuple. None stands for a gradient of zero.

    Returns:
        A function of the same arguments, which returns the results. Tensors that `function` uses besides its
        arguments are constants for differentiation.

    Raises:
        GradientError: When it is called in a trace: `function` returns no such pair, or the rule returns
            gradients of another structure, shape or element type.
    """

    @functools.wraps(function, updated=())
    def with_rule(*args: Any) -> Any:
        trace = current()
        pair = function(*args)
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[1]):
            raise GradientError(
                f"a function with a custom gradient returns its results and a function, not {pair!r} (at "
                f"{user_location('')})"
            )
        result, rule = pair
        return result if trace is None else _ruled(trace, args, result, rule)

    return with_rule


def _ruled(trace: Trace, args: tuple[Any, ...], result: Any, rule: Callable[..., Any]) -> Any:
    """Record that the results have a gradient rule."""
    where = user_location("custom_gradient")
    leaves, names, structure = flatten(args)
    outputs, _, output_structure = flatten(result)
    values = [value_of(as_tensor(x)) for x in outputs]
    block = Block([v.type for v in values if v.type.dtype.is_float])
    with trace.inside(block):
        given = iter(map(traced, block.args))
        upstream = [next(given) if v.type.dtype.is_float else None for v in values]
        found = rule(unflatten(output_structure, iter(upstream)))
        gradients, _, given_structure = flatten((found,) if len(args) == 1 else found)
        if given_structure != structure:
            raise GradientError(
                f"the rule returns gradients of the structure {given_structure}, the arguments have "
                f"{structure} (at {where})"
            )
        inputs: list[Tensor] = []
        ends: list[Value] = []
        for name, leaf, dx in zip(names, leaves, gradients, strict=True):
            if dx is None or not isinstance(leaf, Tensor) or not leaf.type.dtype.is_float:
                continue
            dx = as_tensor(dx)
            if dx.type.dtype is not leaf.type.dtype or tuple(dx.shape) != tuple(leaf.shape):
                raise GradientError(
                    f"the rule returns a gradient of {dx.dtype}{list(dx.shape)} for argument {name}, which "
                    f"is {leaf.dtype}{list(leaf.shape)} (at {where})"
                )
            ends.append(value_of(dx))
            inputs.append(leaf)
        trace.builder.insert(Yield(ends))
    known = [value_of(x) for x in inputs]
    op = trace.builder.insert(g.CustomGradient(known, values, regions=[Region([block])], location=where))
    return unflatten(output_structure, iter([traced(r) for r in op.results]))


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the backward pass compute a function again, instead of keeping its intermediate values in memory.

    Only the values that the function reads are kept (Chen et al., "Training Deep Nets with Sublinear Memory
    Cost", 2016). Results and gradients are the same. Outside of compiled functions it changes nothing.

    Args:
        function: A function of tensors and `tw.nn` modules, in lists, tuples and dictionaries; it may also
            use other tensors and replace states.

    Returns:
        A function of the same arguments.

    Raises:
        TraceError: When it is called: a result has a size that only a run of the function computes.
    """

    @functools.wraps(function, updated=())
    def again(*args: Any, **kwargs: Any) -> Any:
        trace = current()
        if trace is None or not is_compiling():
            return function(*args, **kwargs)
        block = trace.builder.block
        before = block.last
        result = function(*args, **kwargs)
        leaves, _, structure = flatten(result)
        # The trace uses constants again.
        ops = [op for op in block.between(before, None) if not isinstance(op, g.Constant)]
        made: set[Value] = {r for op in ops for r in op.results}
        held = [state for _, state in trace.states.values()]
        inside = [x._value for x in leaves if isinstance(x, Tensor)] + [h[0] for h in held]
        wanted = list(dict.fromkeys(v for v in inside if v is not None and v in made))
        if not wanted:
            return result
        new: dict[Value, Value] = dict(zip(wanted, _enclosed(trace, ops, wanted), strict=True))
        for h in held:
            h[0] = new.get(h[0], h[0])
        shown = [x if (v := getattr(x, "_value", None)) not in new else traced(new[v]) for x in leaves]
        return unflatten(structure, iter(shown))

    return again


def _enclosed(trace: Trace, ops: list[Operation], wanted: list[Value]) -> Sequence[OpResult]:
    """Move operations into the region of a `graph.checkpoint`, and return the `wanted` values from it."""
    where = user_location("checkpoint")
    with trace.builder.at(where):
        mark = enclose(trace.builder, ops, wanted)
    if mark is None:
        raise TraceError(
            f"a result of a checkpointed function has a size that only the run of the function computes "
            f"({', '.join(str(list(v.type.shape)) for v in wanted)}): take that computation out of it (at "
            f"{where})"
        )
    return mark.results


__all__ = ["checkpoint", "custom_gradient"]
