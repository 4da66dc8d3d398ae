"""Derivatives of functions on tensors: `vjp`, `grad`, `value_and_grad`, `jvp`, `stop_gradient`.

The function's operators are recorded in the current trace, or outside of one in an `EagerTrace`, which knows
the elements of its values. The backward pass is recorded behind them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...autodiff.reverse import backward
from ...dialects import graph as g
from ...errors import GradientError
from ...ir import notes
from ...ir.core import Operation, Value
from .eager import EagerTrace
from .operands import apply, as_tensor, value_of
from .tensor import Tensor, TensorLike, concrete, traced
from .tracing import current, tracing, user_location
from .tree import flatten, unflatten


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradient of a scalar `function`.

    Args:
        function: A function of tensors and `tw.nn` modules, in lists, tuples and dictionaries. It returns a
            floating-point scalar.
        argnums: The positions of the arguments to differentiate by: one, or several.
        has_aux: Whether `function` returns a pair of the scalar and further results, which are not
            differentiated.

    Returns:
        A function of the same arguments. It returns the gradient in the structure of the argument, with zeros
        for leaves that are not floating point; of a module it is a dictionary of its parameters' gradients by
        dotted path. For several `argnums` it returns a tuple of gradients; with `has_aux` a pair of these and
        the further results.

    Raises:
        GradientError: When it is called: the function returns no floating-point scalar, or uses an operator
            without a gradient.
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes a scalar `function` and its gradient.

    Args:
        function: As for `grad`.
        argnums: As for `grad`.
        has_aux: As for `grad`.

    Returns:
        A function of the same arguments, which returns a pair: what `function` returns, and the gradient as
        `grad` gives it.

    Raises:
        GradientError: When it is called: as for `grad`.
    """
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        for k in places:
            if not -len(args) <= k < len(args):
                raise GradientError(
                    f"there is no positional argument {k} among {len(args)} to differentiate by"
                )
        chosen = [k % len(args) for k in places]

        def of_chosen(*values: Any) -> Any:
            given = list(args)
            for k, value in zip(chosen, values, strict=True):
                given[k] = value
            return function(*given, **kwargs)

        with recording() as finish:
            result, pull, *_ = _vjp(of_chosen, [args[k] for k in chosen], has_aux)
            loss = result[0] if has_aux else result
            if not isinstance(loss, Tensor) or loss.ndim or not loss.type.dtype.is_float:
                raise GradientError(
                    f"a gradient is that of a floating-point scalar, and the function returns {loss!r}: "
                    f"reduce it, for example by .mean() (at {user_location('')})"
                )
            found = pull(as_tensor(1.0, loss.dtype))
            return finish((result, found if not isinstance(argnums, int) else found[0]))

    return both


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Compute a function and prepare products with the transpose of its Jacobian (vector-Jacobian products).

    Args:
        function: A function of tensors and `tw.nn` modules, in lists, tuples and dictionaries.
        *primals: Its arguments.
        has_aux: Whether `function` returns a pair of results and further results, which are not
            differentiated.

    Returns:
        The results, and a function from a tree of their gradients (None is zero) to a tuple of the gradients
        of the arguments, each as `grad` gives it; with `has_aux` also the further results.

    Raises:
        GradientError: When gradients are computed: the function uses an operator without a gradient.
    """
    if current() is not None:
        return _vjp(function, primals, has_aux)
    with recording() as finish:
        recorded = current()
        assert isinstance(recorded, EagerTrace)
        result = _vjp(function, primals, has_aux)
        known = finish((result[0], *result[2:]))

    def pull(cotangents: Any) -> Any:
        if current() is not None:  # The products are part of another function, so the pass is recorded there.
            return _vjp(function, primals, has_aux)[1](cotangents)
        # Recording the pass again would draw other random numbers.
        with tracing(recorded):
            return _known(recorded, result[1](cotangents))

    return (known[0], pull, *known[1:])


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Compute a function and the product of its Jacobian with tangents (forward mode).

    The tangents' product is the transpose of the transposed product, which is linear in its argument
    (Townsend, "A new trick for calculating Jacobian vector products", 2017), so that operators need no second
    rule. Compiled functions do not compute values that only the transposed product needs.

    Args:
        function: A function of tensors in lists, tuples and dictionaries.
        primals: Its arguments.
        tangents: A tangent for each argument, of the same structure, shapes and types.

    Returns:
        The results, and their tangents in the same structure.

    Raises:
        GradientError: The structures differ, or the function uses an operator without a gradient.
    """
    with recording() as finish:
        result, pull = _vjp(function, list(primals), False)
        leaves, _, structure = flatten(result)
        dummies = [as_tensor(np.zeros(x.shape, x.dtype)) if _is_static(x) else x * 0 for x in leaves]
        _, push = _vjp(lambda *c: pull(unflatten(structure, iter(c))), dummies, False)
        if flatten(tuple(primals))[2] != flatten(tuple(tangents))[2]:
            raise GradientError("the tangents have another structure than the arguments")
        return finish((result, unflatten(structure, iter(push(tuple(tangents))))))


def stop_gradient(x: TensorLike) -> Tensor:
    """Return `x` as a constant of differentiation: no gradient flows through the result.

    Args:
        x: A tensor of any shape and type.
    """
    return apply(g.StopGradient, as_tensor(x))


def _is_static(x: Tensor) -> bool:
    return all(isinstance(n, int) for n in x.shape)


@contextmanager
def recording() -> Iterator[Callable[[Any], Any]]:
    """Record in the current trace, or outside of one in a new `EagerTrace`. The function that it gives turns
    a tree of results into one of concrete tensors in the second case.
    """
    if current() is not None:
        yield lambda tree: tree
        return
    with tracing(EagerTrace()) as trace:
        yield functools.partial(_known, trace)
        trace.keep_states()


def _known(trace: EagerTrace, tree: Any) -> Any:
    leaves, _, structure = flatten(tree)
    return unflatten(
        structure,
        iter(
            [concrete(x._known("an array")) if isinstance(x, Tensor) and x.is_traced else x for x in leaves]
        ),
    )


def _vjp(function: Callable[..., Any], primals: Sequence[Any], has_aux: bool) -> tuple[Any, ...]:
    """`vjp` within the current trace."""
    trace = current()
    assert trace is not None
    leaves, _, structure = flatten(list(primals))
    marks: list[Value] = []

    def marked(x: Tensor) -> Value:
        """Return a value of its own for a tensor, so that only its uses in `function` count."""
        op = trace.builder.insert(g.Identity(value_of(x), location=user_location("")))
        marks.append(op.result)
        return op.result

    given: list[Any] = []
    replaced: dict[int, Value] = {}
    by_leaf: list[Any] = []
    for leaf in leaves:
        if hasattr(leaf, "named_parameters"):
            values = {n: marked(p) for n, p in leaf.named_parameters()}
            replaced |= {p.key: values[n] for n, p in leaf.named_parameters()}
            by_leaf.append(values)
            given.append(leaf)
        elif isinstance(leaf, (Tensor, np.ndarray, np.generic, float)) or hasattr(leaf, "__dlpack__"):
            by_leaf.append(marked(as_tensor(leaf)))
            given.append(traced(by_leaf[-1]))
        else:
            by_leaf.append(None)
            given.append(leaf)
    if not marks:
        raise GradientError(f"there is no tensor to differentiate by (at {user_location('')})")
    with trace.substituting(replaced):
        result = function(*unflatten(structure, iter(given)))

    def end(x: TensorLike) -> Operation:
        return trace.builder.insert(g.Identity(value_of(as_tensor(x)), location=user_location("")))

    aux: Sequence[Any] = ()
    if has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            raise GradientError(f"with has_aux a function returns a pair, not {result!r}")
        result, more = result
        # Values of their own follow an operator that the backward pass replaces by its decomposition.
        parts, _, more_structure = flatten(more)
        own = [traced(end(x).result) if isinstance(x, Tensor) and x.is_traced else x for x in parts]
        aux = (unflatten(more_structure, iter(own)),)
    outputs, _, output_structure = flatten(result)
    ends = [end(x) for x in outputs]
    first, last = marks[0].defining_op, ends[-1]
    assert first is not None and first.parent is not None
    block = first.parent
    results = [traced(op.result) for op in ends]

    def begin(cotangent: Tensor) -> Value:
        op = end(cotangent)
        notes.BACKWARD.set(op, True)
        return op.results[0]

    def pull(cotangents: Any) -> tuple[Any, ...]:
        parts, _, given_structure = flatten(cotangents)
        if given_structure != output_structure:
            raise GradientError(
                f"the gradients of the results have the structure {given_structure}, not {output_structure}"
            )
        pairs = [
            (op.result, begin(as_tensor(c, op.result.type.dtype.numpy)))
            for op, c in zip(ends, parts, strict=True)
            if c is not None and op.result.type.dtype.is_float
        ]
        inner = current()
        assert inner is not None
        found = iter(backward(inner.builder, block.between(first.previous, last.next), pairs, marks))
        gradients = {mark: _gradient(mark, value) for mark, value in zip(marks, found, strict=True)}
        trees = [
            None
            if x is None
            else {n: gradients[v] for n, v in x.items()}
            if isinstance(x, dict)
            else gradients[x]
            for x in by_leaf
        ]
        whole: Any = unflatten(structure, iter(trees))
        return tuple(whole)

    shown = unflatten(output_structure, iter(results))
    value = (shown, *aux) if has_aux else shown
    return (value, pull)


def _gradient(mark: Value, value: Value | None) -> Tensor:
    """The gradient of a mark as a tensor: zeros where there is none."""
    if value is not None:
        return traced(value)
    like = traced(mark)
    zero = as_tensor(np.zeros((), like.dtype))
    return apply(g.BroadcastTo, traced(value_of(zero)), shape=tuple(like.shape))


__all__ = ["grad", "jvp", "recording", "stop_gradient", "value_and_grad", "vjp"]
