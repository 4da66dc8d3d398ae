"""Arrays of a loop program: their contents at a point of the program, which elements are written, and
iterations that conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...analysis.dependence import differences
from ...ir.core import Value
from ...ir.substitution import evaluate, linear_in
from ...ir.symbolic import Dim, Expr, free_symbols, prove_eq, prove_le, smin
from ...ir.types import DType
from .facts import Loop, named, points, show, text_of
from .values import Node, Number

Index = Dim | Node


@dataclass(frozen=True)
class Access:
    """A read or write of an element inside of loops."""

    indices: tuple[Index, ...]
    loops: tuple[Loop, ...]
    line: int
    combiner: str | None = None
    """The operation by which a write combines the element with a value, as `+=` does."""


@dataclass(frozen=True)
class Span:
    """Indices ``low, low + step, ...`` below `high` of a dimension."""

    low: Dim
    high: Dim
    step: int = 1


Box = tuple[Span, ...]


@dataclass
class Contents:
    """The contents of an array at a point of the program."""

    value: Value | None = None
    """The tensor; None before the first write."""
    boxes: list[Box] = field(default_factory=list)
    """The parts that are written."""
    full: bool = False
    """Whether all elements are written."""
    constant: Number | None = None
    """The number that all elements are, if known."""
    latest: list[tuple[Access, Node]] = field(default_factory=list)
    """The elements written last, with their values."""
    writes: list[Access] = field(default_factory=list)
    reads: list[Access] = field(default_factory=list)

    def copy(self) -> Contents:
        return replace(
            self,
            boxes=list(self.boxes),
            latest=list(self.latest),
            writes=list(self.writes),
            reads=list(self.reads),
        )


class Array:
    """An input, an output or a local array."""

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[Dim],
        sizes: Mapping[str, Dim],
        role: str,
        value: Value | None = None,
    ) -> None:
        """Describe an array.

        Args:
            name: The user's name.
            dtype: The element type.
            shape: The sizes.
            sizes: The sizes by the names in its annotation.
            role: ``input``, ``output`` or ``local``.
            value: The tensor of an input.
        """
        self.name, self.dtype, self.shape, self.role = name, dtype, tuple(shape), role
        self.sizes = dict(sizes)
        self.now = Contents(value, full=value is not None)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def attribute(self, name: str) -> Any:
        """``x.n``, ``x.shape``, ``x.ndim``, ``x.dtype``; None for others."""
        own = {"shape": self.shape, "ndim": self.rank, "dtype": self.dtype}
        return self.sizes[name] if name in self.sizes else own.get(name)

    def latest(self, indices: Sequence[Index], loops: Sequence[Loop]) -> Node | None:
        """The value that this iteration wrote to an element; None if it did not, or if another write may have
        changed it.
        """
        for access, node in reversed(self.now.latest):
            inside = list(access.loops) == list(loops[: len(access.loops)])
            if inside and same_index(access.indices, indices):
                return node
        return None

    def covers(self, spans: Box) -> bool:
        """Whether all elements of a part are written."""
        return self.now.full or any(
            all(
                prove_le(b.low, s.low)
                and prove_le(s.high, b.high)
                and (b.step == 1 or (b.step == s.step and prove_eq((s.low - b.low) % b.step, 0)))
                for b, s in zip(box, spans, strict=True)
            )
            for box in self.now.boxes
        )

    def cover(self, box: Box) -> None:
        """Note that a part is written."""
        boxes = [*self.now.boxes, box]
        while (joined := _join(boxes)) is not None:
            boxes = joined
        self.now.boxes = boxes
        whole = tuple(Span(0, n) for n in self.shape)
        self.now.full = self.covers(whole)


def _join(boxes: list[Box]) -> list[Box] | None:
    """The boxes with some of them joined; None if none can be."""
    for a in boxes:
        for d in range(len(a)):
            others = [b for b in boxes if _same_but(a, b, d)]
            joined = _join_spans(a[d], [b[d] for b in others if b is not a])
            if joined is not None:
                span, used = joined
                drop = [b for b in others if b is a or b[d] in used]
                return [b for b in boxes if not any(b is o for o in drop)] + [(*a[:d], span, *a[d + 1 :])]
    return None


def _join_spans(a: Span, others: list[Span]) -> tuple[Span, list[Span]] | None:
    for b in others:
        if a.step == b.step == 1 and prove_le(a.low, b.low) and prove_le(b.low, a.high):
            if prove_le(a.high, b.high):
                return Span(a.low, b.high), [b]
            if prove_le(b.high, a.high):
                return a, [b]
    if a.step > 1:
        rest = [
            next((b for b in others if b.step == a.step and prove_eq(b.low, a.low + k)), None)
            for k in range(1, a.step)
        ]
        known = [b for b in rest if b is not None]
        if len(known) == a.step - 1:
            high = a.high
            for b in known:
                high = smin(high, b.high)
            return Span(a.low, high), known
    return None


def _same_but(a: Box, b: Box, d: int) -> bool:
    return all(
        k == d or (x.step == y.step and prove_eq(x.low, y.low) and prove_eq(x.high, y.high))
        for k, (x, y) in enumerate(zip(a, b, strict=True))
    )


def same_index(a: Sequence[Index], b: Sequence[Index]) -> bool:
    """Whether two indices are certainly equal."""
    return len(a) == len(b) and all(
        x is y if isinstance(x, Node) or isinstance(y, Node) else prove_eq(x, y)
        for x, y in zip(a, b, strict=True)
    )


@dataclass(frozen=True)
class Place:
    """An index of one dimension as a function of at most one loop: ``scale * loop + offset``."""

    loop: Loop | None
    scale: int
    offset: Dim

    def span(self) -> Span:
        """The indices over all iterations."""
        if self.loop is None:
            return Span(self.offset, self.offset + 1)
        last = self.offset + self.scale * (self.loop.extent - 1)
        step = abs(self.scale)
        low, high = (self.offset, last) if self.scale > 0 else (last, self.offset)
        return Span(low, high + step, step) if step > 1 else Span(low, high + 1)


def places_of(indices: Sequence[Index], loops: Sequence[Loop]) -> list[Place] | None:
    """Each index as a function of a loop of its own; None if they are not."""
    result: list[Place] = []
    for e in indices:
        if isinstance(e, Node):
            return None
        own = [loop for loop in loops if loop.symbol in free_symbols(e)]
        if not own:
            result.append(Place(None, 0, e))
            continue
        linear = linear_in(e, own[0].symbol) if len(own) == 1 else None
        if linear is None or not isinstance(linear[0], int) or any(p.loop is own[0] for p in result):
            return None
        result.append(Place(own[0], linear[0], linear[1]))
    return result


def common(a: Sequence[Loop], b: Sequence[Loop]) -> list[Loop]:
    """The loops around both of two accesses, as long as they run."""
    result = []
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        result.append(x)
    return result


def first_conflict(others: Iterable[Access], own: Access) -> tuple[Access, str] | None:
    """The first of several accesses that touches an element of another iteration's `own`, and two iterations
    that meet, as a text; None if all iterations have elements of their own.

    An undecided case counts as a conflict.
    """
    for other in others:
        found = conflict(other, own)
        if found is not None:
            return other, found
    return None


def conflict(a: Access, b: Access) -> str | None:
    """Two iterations of the loops around both accesses that touch one element, as a text; None if there are
    none.
    """
    shared = common(a.loops, b.loops)
    if not shared:
        return None
    fixed = [
        (x, y)
        for x, y in zip(a.indices, b.indices, strict=True)
        if not isinstance(x, Node) and not isinstance(y, Node)
    ]
    first, second = ([loop.symbol for loop in access.loops] for access in (a, b))
    apart = differences([x for x, _ in fixed], [y for _, y in fixed], first, second)
    if apart is None or all(apart[loop.symbol] == 0 for loop in shared):
        return None
    if len(fixed) < len(a.indices):
        names = ", ".join(repr(loop.name) for loop in shared)
        return f"its index depends on data, so several iterations of {names} may meet at one element"
    if any(prove_le(loop.extent, abs(apart[loop.symbol] or 0)) for loop in shared):
        return None  # a loop ends before
    return _witness(a, b, shared) or _distance_text(shared, apart)


def _distance_text(shared: Sequence[Loop], apart: Mapping[Expr, int | None]) -> str:
    """The distance of two iterations that meet, where they are further apart than the iterations that
    `_witness` tries."""
    if len(shared) == 1 and (distance := apart[shared[0].symbol]) is not None:
        return f"iterations of {shared[0].name!r} that are {abs(distance)} apart meet at one element"
    names = ", ".join(repr(loop.name) for loop in shared)
    return f"that different iterations of {names} touch different elements cannot be proved"


def _witness(a: Access, b: Access, shared: Sequence[Loop]) -> str | None:
    """Sizes and two iterations of the shared loops at which two accesses with symbolic indices meet."""
    first: dict[tuple[Any, ...], list[Mapping[str, int]]] = {}
    names = [loop.symbol.name for loop in shared]
    exprs: list[Dim] = [e for e in (*a.indices, *b.indices) if not isinstance(e, Node)]
    own: set[str] = {loop.symbol.name for loop in (*a.loops, *b.loops)}

    def key(values: Mapping[str, int], access: Access) -> tuple[Any, ...]:
        sizes = tuple(sorted((n, v) for n, v in values.items() if n not in own))
        return (
            sizes,
            *(int(evaluate(e, values)) for e in access.indices if not isinstance(e, Node)),
        )

    for values in points(a.loops, [*exprs, *(loop.limit for loop in b.loops)], ends=False):
        # Two iterations of `a` are enough: one of them differs from any iteration of `b`.
        seen = first.setdefault(key(values, a), [])
        if len(seen) < 2 and all(any(o[n] != values[n] for n in names) for o in seen):
            seen.append(values)
    for values in points(b.loops, [*exprs, *(loop.limit for loop in a.loops)], ends=False):
        met = first.get(key(values, b), ())
        other = next((o for o in met if any(o[n] != values[n] for n in names)), None)
        if other is not None:
            sizes = {n: v for n, v in values.items() if n not in own}
            mine = text_of(named({k: v for k, v in other.items() if k in own}, a.loops))
            its = text_of(named({k: v for k, v in values.items() if k in own}, b.loops))
            given = f" (with {text_of(sizes)})" if sizes else ""
            return f"the iterations {mine} and {its} meet at one element{given}"
    return None


def carry_text(array: Array, loops: Sequence[Loop]) -> str:
    """How a loop in order passes an element of an array on to the next iteration; "" where no loop does."""
    loop = next((o.name for o in reversed(loops) if o.kind in ("range", "step")), None)
    if loop is None:
        return ""
    return (
        f"Iterations pass local variables on, not elements: begin with `last = ...` before the loop over "
        f"{loop!r}, compute `last = ...` from it in each iteration, and store `{array.name}[...] = last`"
    )


def index_text(indices: Sequence[Index], loops: Sequence[Loop]) -> str:
    """An index as a text, in the user's names."""
    return ", ".join("?" if isinstance(e, Node) else show(e, loops) for e in indices)


def symbols_of(indices: Sequence[Index]) -> frozenset[Expr]:
    """The symbols in an index."""
    result: set[Expr] = set()
    for e in indices:
        result |= e.symbols if isinstance(e, Node) else free_symbols(e)
    return frozenset(result)
