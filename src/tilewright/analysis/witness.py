"""Iterations that show a conflict: two points of a loop nest whose accesses touch one element.

`find_witness` enumerates points of the nest for small sizes, so it is exact where it finds something; where
it finds nothing, a conflict is not excluded. It runs only where a schedule is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dialects import loop
from ..dialects.elements import Elements
from ..dialects.tensor import free_symbols_of, is_dynamic_symbol
from ..ir.core import BlockArgument, Operation, Value
from ..ir.substitution import evaluate, substitute
from ..ir.symbolic import Dim, Expr
from .dependence import LoopPair, depends_on_data, places
from .loop_nest import Touch, address, enclosing, resolved

POINTS = 1 << 15
"""Upper bound on the points of a nest that are looked at for each choice of sizes."""
SIZES = (3, 7, 40)
"""Values that sizes get, one after another, within their bounds."""

Points = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Witness:
    """Two iterations whose accesses touch one element.

    `first` and `second` are the values of the loop variables around each access, `element` is the index of
    the element, `sizes` are the values of the symbols for which it happens. With `equal_data` it happens if
    the data give both the same index.
    """

    first: Mapping[str, int]
    second: Mapping[str, int]
    element: tuple[int, ...]
    sizes: Mapping[str, int]
    equal_data: bool

    def __str__(self) -> str:
        a, b = (", ".join(f"{k}={v}" for k, v in point.items()) for point in (self.first, self.second))
        text = f"in the iterations ({a}) and ({b})"
        if self.equal_data:
            return f"{text} if the data give both the same index"
        sizes = "".join(f", {k} = {v}" for k, v in self.sizes.items())
        return f"{text}: element {list(self.element)}{sizes}"


def describe(op: Touch) -> str:
    """An access as error texts show it: ``the store to y at [i, j] in block 'b0'``."""
    if isinstance(op, Elements):
        what = "writing" if op.writes else "reading"
        return f"'{op.op.name}' {what} {_buffer_name(op.buffer)} from element {_first(op)} on"
    verb = {loop.Load: "load of", loop.Store: "store to", loop.Accumulate: "accumulation into"}[type(op)]
    indices = ", ".join(map(str, resolved(op, op.indices)))
    block = enclosing(op, loop.Block)
    where = f" in block {block.sym_name!r}" if isinstance(block, loop.Block) else ""
    return f"the {verb} {_buffer_name(op.buffer)} at [{indices}]{where}"


def _first(elements: Elements) -> Dim:
    """The lowest address, where strides are positive."""
    return substitute(address(elements), dict.fromkeys(elements.points, 0))


def describe_conflict(
    a: Touch,
    b: Touch,
    loops: Sequence[LoopPair],
    fixed: Iterable[loop.For],
    wrong: Callable[[tuple[int, ...]], bool],
) -> str:
    """Two accesses whose order would change, and iterations that show it, for an error text."""
    witness = find_witness(a, b, loops, fixed, wrong)
    both = f"{describe(a)} in two iterations" if a is b else f"{describe(a)} and {describe(b)}"
    if a.buffer is not b.buffer:
        both += f" ({_buffer_name(a.buffer)} may be the memory of {_buffer_name(b.buffer)})"
    if witness is None:
        return f"{both} may touch one element; that they do not cannot be proved"
    return f"{both} touch one element {witness}"


def find_witness(
    a: Touch,
    b: Touch,
    loops: Sequence[LoopPair],
    fixed: Iterable[loop.For],
    wrong: Callable[[tuple[int, ...]], bool],
) -> Witness | None:
    """Return two iterations in which `a` and `b` touch one element and whose distance is `wrong`.

    Args:
        a: an access inside the first loop of each pair.
        b: an access to the same memory inside the second loop of each pair.
        loops: the loops whose variables are compared.
        fixed: loops whose variables are the same for both.
        wrong: takes, for each pair, the second loop's variable minus the first loop's.
    """
    shared = [f.iv.name for f in fixed]
    for size in SIZES:
        sizes = _sizes((a, b), size)
        first, second = _points(a, sizes), _points(b, sizes)
        if first is None or second is None:
            return None
        found = _meeting(a, b, first, second, loops, shared, wrong, sizes)
        if found is not None:
            return found
    return None


def _meeting(
    a: Touch,
    b: Touch,
    first: Points,
    second: Points,
    loops: Sequence[LoopPair],
    shared: Sequence[str],
    wrong: Callable[[tuple[int, ...]], bool],
    sizes: Mapping[str, int],
) -> Witness | None:
    compared = places(a, b)
    # A buffer of one element has no indices: all places are equal.
    places_a = _elements([*(x for x, _ in compared), 0], first, sizes)
    places_b = _elements([*(y for _, y in compared), 0], second, sizes)
    by_place: dict[tuple[int, ...], list[int]] = defaultdict(list)
    same_a, same_b = ([points[name] for name in shared] for points in (first, second))
    for k, place in enumerate(zip(*same_a, *places_a, strict=True)):
        by_place[tuple(map(int, place))].append(k)
    for j, place in enumerate(zip(*same_b, *places_b, strict=True)):
        for k in by_place.get(tuple(map(int, place)), ())[:64]:
            apart = tuple(int(second[g.iv.name][j] - first[f.iv.name][k]) for f, g in loops)
            if wrong(apart) and (a is not b or apart > (0,) * len(apart)):
                return Witness(
                    {name: int(values[k]) for name, values in first.items()},
                    {name: int(values[j]) for name, values in second.items()},
                    tuple(map(int, place[len(shared) : -1])),
                    sizes,
                    any(depends_on_data(e) for pair in compared for e in pair),
                )
    return None


def _elements(
    indices: Sequence[Dim], points: Points, sizes: Mapping[str, int]
) -> list[npt.NDArray[np.int64]]:
    """The value of each index at each point; indices that the data give count as 0."""
    count = len(next(iter(points.values()))) if points else 1
    result = []
    for e in indices:
        data = {s.name: 0 for s in free_symbols_of(e) if is_dynamic_symbol(s)}
        result.append(np.broadcast_to(np.asarray(evaluate(e, {**sizes, **points, **data})), count))
    return result


def _points(op: Touch, sizes: Mapping[str, int]) -> Points | None:
    """Iterations in which an access runs: of long loops the first and the last ones; None if data decide."""
    around: list[Operation] = []
    parent = op.parent_op
    while parent is not None:
        if isinstance(parent, loop.Runs):
            return None
        if isinstance(parent, loop.For | loop.If):
            around.append(parent)
        parent = parent.parent_op
    own = op.points if isinstance(op, Elements) else ()
    depth = len(own) + sum(isinstance(f, loop.For) for f in around)
    each = max(4, int(POINTS ** (1 / max(1, depth))))
    points: Points = {}
    count = 1
    for outer in (*reversed(around), *own):
        if isinstance(outer, loop.If):
            count, points = _where(outer.conditions, points, count, sizes)
            continue
        iv = outer.iv if isinstance(outer, loop.For) else outer
        assert isinstance(iv, Expr)
        extent = np.broadcast_to(np.asarray(evaluate(iv.upper + 1, {**sizes, **points})), count)
        ranges = [_ends(int(n), each) for n in extent]
        repeat = [len(r) for r in ranges]
        if sum(repeat) > 8 * POINTS:
            return None
        points = {name: np.repeat(values, repeat) for name, values in points.items()}
        points[iv.name] = np.concatenate([*ranges, np.zeros(0, np.int64)])
        count = len(points[iv.name])
    if isinstance(op, Elements):
        return points
    guards = [e for e in resolved(op, op.guard) if not depends_on_data(e)]
    return _where(guards, points, count, sizes)[1]


def _where(
    conditions: Sequence[Dim], points: Points, count: int, sizes: Mapping[str, int]
) -> tuple[int, Points]:
    """The points at which all conditions are at least 0, and their number."""
    keep = np.ones(count, bool)
    for e in conditions:
        keep &= np.broadcast_to(np.asarray(evaluate(e, {**sizes, **points})) >= 0, count)
    return int(keep.sum()), {name: values[keep] for name, values in points.items()}


def _ends(extent: int, most: int) -> npt.NDArray[np.int64]:
    if extent <= most:
        return np.arange(max(0, extent), dtype=np.int64)
    return np.concatenate([np.arange(most // 2), np.arange(extent - most // 2, extent)]).astype(np.int64)


def _sizes(accesses: Sequence[Touch], size: int) -> dict[str, int]:
    """A value of each symbol of the nests that is no loop variable: `size`, within the symbol's bounds."""
    symbols: set[Expr] = set()
    variables: set[Expr] = set()
    for op in accesses:
        expressions: list[Any]
        if isinstance(op, Elements):
            expressions = [address(op), *(s.upper for s in op.points)]
            variables.update(op.points)
        else:
            expressions = [*resolved(op, (*op.indices, *op.guard))]
        parent = op.parent_op
        while parent is not None:
            if isinstance(parent, loop.For):
                variables.add(parent.iv)
                expressions.append(parent.extent)
            elif isinstance(parent, loop.If):
                expressions += parent.conditions
            parent = parent.parent_op
        symbols = symbols.union(*map(free_symbols_of, expressions))
    values: dict[str, int] = {}
    for s in sorted(symbols - variables, key=lambda s: str(s.name)):
        if not is_dynamic_symbol(s):
            value = max(size, s.lower if s.lower is not None else size)
            value = -(-value // s.multiple_of) * s.multiple_of
            values[s.name] = min(value, s.upper) if isinstance(s.upper, int) else value
    return values


def _buffer_name(buffer: Value) -> str:
    if isinstance(buffer, BlockArgument):
        return str(buffer.hint or f"buffer {buffer.index}")
    for op in buffer.users:
        block = enclosing(op, loop.Block)
        if isinstance(block, loop.Block) and not isinstance(op, loop.Load):
            return f"the buffer of {block.sym_name!r}"
    return "a local buffer"


__all__ = ["Witness", "describe", "describe_conflict", "find_witness"]
