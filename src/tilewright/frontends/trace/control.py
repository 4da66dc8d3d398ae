"""Branches and loops on values of a run: `cond`, `while_loop`, `scan`. Outside of a trace they use Python's
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...dialects import graph as g
from ...dialects.graph.scan import Yield
from ...errors import ShapeError
from ...ir.core import Block, IRError, Operation, Region
from ...ir.location import Location
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import TensorType, boolean, i64
from .operands import as_tensor, value_of
from .pointwise import astype
from .shapes import flip, reshape, stack
from .tensor import Tensor, TensorLike, traced
from .tracing import Trace, current, user_location
from .tree import Structure, flatten, unflatten


def cond(
    condition: TensorLike, if_true: Callable[..., Any], if_false: Callable[..., Any], *operands: object
) -> Any:
    """Return ``if_true(*operands)`` where the condition holds, else ``if_false(*operands)``.

    In a traced function both are traced, and the run executes one.

    Args:
        condition: One bool or number, of one element; not 0 is true.
        if_true: A function of the operands. It may also use other tensors of the surrounding function.
        if_false: A function whose results have the same structure, element types and shapes.
        *operands: Trees (lists, tuples, dictionaries) of tensors.

    Raises:
        ShapeError: The results differ, or the condition has several elements.
        TraceError: A branch needs a value that only a run has, or uses a tensor of a trace that is over.
    """
    condition = _condition(condition)
    trace = current()
    if trace is None or not condition.is_traced:
        return (if_true if condition else if_false)(*operands)
    sides = [_built(trace, Block([]), side, operands) for side in (if_true, if_false)]
    (first, names, structure), (second, _, other) = (flatten(result) for _, result in sides)
    if structure != other:
        raise ShapeError(
            f"the branches return {structure} and {other}: both must return the same structure (at "
            f"{user_location('cond')})"
        )
    _alike(names, first, second, "one branch gives", "the other")
    for (block, _), leaves in zip(sides, (first, second), strict=True):
        _end(trace, block, [as_tensor(x) for x in leaves])
    return _inserted(
        trace,
        lambda at: g.If(value_of(condition), regions=[Region([b]) for b, _ in sides], location=at),
        structure,
    )


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], initial: object) -> Any:
    """Compute ``while condition(state): state = body(state)`` from `initial`; return the last state.

    Args:
        condition: A function of the state; its result has one element.
        body: A function from a state to the next, of the same structure, element types and shapes.
        initial: A tree (lists, tuples, dictionaries) of tensors.

    Raises:
        ShapeError: The body changes the structure, an element type or a shape, or the condition has several
            elements.
        TraceError: The condition or the body needs a value that only a run has, or uses a tensor of a trace
            that is over.
    """
    trace = current()
    if trace is None:
        leaves, _, structure = flatten(initial)
        state = unflatten(structure, iter([as_tensor(x) for x in leaves]))
        while condition(state):
            state = body(state)
        return state
    leaves, names, structure = flatten(initial)
    start = [as_tensor(x) for x in leaves]
    first = _condition(condition(unflatten(structure, iter(start))))
    block = Block([TensorType(i64, ()), *(x.type for x in start)])
    carried = unflatten(structure, map(traced, block.args[1:]))
    _, after = _built(trace, block, body, (carried,))
    ends, _, after_structure = flatten(after)
    _same_structure(structure, after_structure)
    _alike(names, start, ends, "the state begins with", "becomes")
    with trace.inside(block):
        tensors = [as_tensor(x) for x in ends]
        again = _condition(condition(unflatten(structure, iter(tensors))))
        trace.builder.insert(Yield([value_of(again), *map(value_of, tensors)]))
    initial_values = [value_of(x) for x in start]
    count = trace.new_symbol("steps")
    return _inserted(
        trace,
        lambda at: g.While(
            value_of(first), None, initial_values, count=count, regions=[Region([block])], location=at
        ),
        structure,
    )


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]],
    initial: object,
    inputs: object = None,
    length: Dim | None = None,
    reverse: bool = False,
) -> Any:
    """Compute ``carry, y = step(carry, x)`` for each slice `x` of `inputs` along their first dimension.

    Args:
        step: A function of the carry and a slice. It returns the next carry, of the same structure, element
            types and shapes, and a tree of results (or None).
        initial: The first carry: a tree (lists, tuples, dictionaries) of tensors.
        inputs: A tree of tensors with equal first dimensions, or None for a scan of `length` steps.
        length: The number of steps; None takes it from the inputs.
        reverse: Whether to take the slices, and place the results, from the last to the first.

    Returns:
        The last carry, and the results `y` stacked along a new first dimension.

    Raises:
        ShapeError: The inputs differ in their first dimension, or the step changes the carry's structure,
            element types or shapes. Outside of a trace also if there are no slices.
        TypeError: The step returns no pair.
        TraceError: The step needs a value that only a run has, or uses a tensor of a trace that is over.
    """
    slices, slice_names, slice_structure = flatten(inputs) if inputs is not None else ([], [], None)
    scanned = [as_tensor(x) for x in slices]
    n: Any = length if length is not None else scanned[0].shape[0]
    for name, x in zip(slice_names, scanned, strict=True):
        if not x.ndim or x.shape[0] != n:
            raise ShapeError(f"scanned input {name or 0} of shape {x.shape} does not have {n} slices")
    leaves, names, structure = flatten(initial)
    start = [as_tensor(x) for x in leaves]
    trace = current()

    def of_slices(parts: Iterable[Tensor]) -> Any:
        return unflatten(slice_structure, iter(parts)) if slice_structure is not None else None

    if trace is None:
        carry, rows = unflatten(structure, iter(start)), []
        result_structure: Structure | None = None
        for k in range(n)[::-1] if reverse else range(n):
            carry, y = step(carry, of_slices([x[k] for x in scanned]))
            ends, _, after = flatten(carry)
            _same_structure(structure, after)
            _alike(names, start, ends, "the carry begins with", "becomes")
            results, _, result_structure = flatten(y) if y is not None else ([], [], None)
            rows.append(results)
        if not rows:
            raise ShapeError(
                "a scan over 0 slices outside of a traced function has results of unknown shape: give at "
                "least one slice"
            )
        columns = [stack(column) for column in zip(*rows, strict=True)]
        columns = [flip(c, 0) for c in columns] if reverse else columns
        return carry, unflatten(result_structure, iter(columns)) if result_structure is not None else None
    block = Block([*(x.type for x in start), *(TensorType(x.type.dtype, x.shape[1:]) for x in scanned)])
    args = list(map(traced, block.args))
    carry = unflatten(structure, iter(args[: len(start)]))
    _, after = _built(trace, block, step, (carry, of_slices(args[len(start) :])))
    if not isinstance(after, tuple) or len(after) != 2:
        raise TypeError(f"the function of a scan returns (carry, y), not {after!r}")
    ends, _, after_structure = flatten(after[0])
    results, _, result_structure = flatten(after[1]) if after[1] is not None else ([], [], None)
    _same_structure(structure, after_structure)
    _alike(names, start, ends, "the carry begins with", "becomes")
    _end(trace, block, [as_tensor(x) for x in (*ends, *results)])
    backward = (True,) * (len(scanned) + len(results)) if reverse else ()
    values = [value_of(x) for x in start], [value_of(x) for x in scanned]
    outputs = _inserted(
        trace,
        lambda at: g.Scan(*values, length=n, backward=backward, regions=[Region([block])], location=at),
        None,
    )
    return unflatten(structure, iter(outputs[: len(start)])), (
        unflatten(result_structure, iter(outputs[len(start) :])) if result_structure is not None else None
    )


def _condition(x: TensorLike) -> Tensor:
    x = as_tensor(x)
    if x.size != 1:
        raise ShapeError(
            f"a condition must be one bool, not a tensor of shape {x.shape}: use .any() or .all() (at "
            f"{user_location('')})"
        )
    return reshape(x if x.type.dtype is boolean else astype(x, boolean), ())


def _built(trace: Trace, block: Block, f: Callable[..., Any], args: Sequence[Any]) -> tuple[Block, Any]:
    """Trace ``f(*args)`` into the block; return the block and the result of `f`."""
    with trace.inside(block):
        return block, f(*args)


def _end(trace: Trace, block: Block, results: Sequence[Tensor]) -> None:
    with trace.inside(block):
        trace.builder.insert(Yield([value_of(x) for x in results]))


def _inserted(trace: Trace, make: Callable[[Location], Operation], structure: Structure | None) -> Any:
    """Insert an operation with regions; return its results as a tree, or without a structure as a list."""
    where = user_location("")
    try:
        op = trace.builder.insert(make(where))
        op.verify()
    except IRError as error:
        raise ShapeError(f"{error} (at {where})") from None
    results = [traced(r) for r in op.results]
    return results if structure is None else unflatten(structure, iter(results))


def _same_structure(before: Structure, after: Structure) -> None:
    if before != after:
        raise ShapeError(
            f"the loop-carried values change from structure {before} to {after}: the body must return the "
            f"same structure (at {user_location('')})"
        )


def _alike(
    names: Sequence[str], before: Sequence[Any], after: Sequence[Any], begins: str, becomes: str
) -> None:
    for name, x, y in zip(names, before, after, strict=True):
        a, b = as_tensor(x).type, as_tensor(y).type
        if (
            a.dtype is not b.dtype
            or a.rank != b.rank
            or not all(m == n or _equal(m, n) for m, n in zip(a.shape, b.shape, strict=True))
        ):
            raise ShapeError(
                f"{begins} {a} and {becomes} {b}{f' at {name}' if name else ''}: convert with .astype or "
                f"reshape (at {user_location('')})"
            )


def _equal(a: Dim, b: Dim) -> bool:
    return prove_eq(a, b)


__all__ = ["cond", "scan", "while_loop"]
