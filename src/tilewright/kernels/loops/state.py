"""Where the evaluation of a loop program is: its variables, the loops and conditions around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...dialects.graph.checks import index_message
from ...ir.location import Location
from ...ir.symbolic import Dim, prove_le
from ...ir.types import DType, boolean, i64
from .arrays import Access, Array, Index, Place, Span, carry_text, first_conflict, index_text, places_of
from .emission import Emitter
from .facts import Fact, Known, Loop, consequences, find_point, show, text_of
from .generic import ElementType
from .source import Problem
from .stores import Write, Writer, check_race
from .values import Node, call, make, negation, read, select, to_node


class Unassigned:
    """The value of a variable that only one branch of an `if` assigns."""


@dataclass
class Variable:
    """A local variable."""

    value: Any
    loops: tuple[Loop, ...]
    """The loops around its assignment."""
    line: int
    conditions: int = 0
    """The number of conditions around its assignment."""
    parts: list[Part] = field(default_factory=list)
    """The value that independent iterations have combined with it."""


@dataclass
class Part:
    """A value that the iterations of independent loops combine with a variable."""

    combiner: str
    value: Node
    loops: tuple[Loop, ...]
    line: int


@dataclass
class Frame:
    """A loop in order that carries values, as it is built."""

    loop: Loop
    writes: list[Write] = field(default_factory=list)


class State:
    """Variables, arrays, loops and conditions at a point of the program."""

    def __init__(self, emitter: Emitter, kernel: str, checks: bool) -> None:
        self.chosen: Mapping[ElementType, DType] = {}
        self.emitter, self.kernel, self.checks = emitter, kernel, checks
        self.writer = Writer(emitter)
        self.variables: dict[str, Any] = {}
        self.arrays: list[Array] = []
        self.loops: list[Loop] = []
        self.conditions: list[Node] = []
        self.facts: list[Dim | Fact] = []
        self.claims: list[Dim | Fact] = []
        self.sizes: list[Dim] = []
        self.frames: list[Frame] = []
        self.checked: set[tuple[Node, str]] = set()
        self.counter = 0

    # -- Conditions ------------------------------------------------------------------------------------------

    @contextmanager
    def under(self, *conditions: Node) -> Iterator[None]:
        """Evaluate where conditions hold."""
        before, facts = len(self.conditions), len(self.facts)
        for c in conditions:
            self.conditions.append(c)
            self.facts += consequences(c)
        try:
            yield
        finally:
            del self.conditions[before:], self.facts[facts:]

    @contextmanager
    def looping(self, *loops: Loop) -> Iterator[None]:
        """Evaluate inside of loops."""
        before = len(self.loops)
        self.loops += loops
        try:
            with self.under(*(loop.bound for loop in loops if loop.bound is not None)):
                yield
        finally:
            del self.loops[before:]

    def own_conditions(self, since: int = 0) -> list[Node]:
        """The conditions around, without the bounds of loops."""
        bounds = {id(loop.bound) for loop in self.loops}
        return [c for c in self.conditions[since:] if id(c) not in bounds]

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all changes of variables and arrays afterwards."""
        kept = (
            dict(self.variables),
            [(a, a.now.copy()) for a in self.arrays],
            len(self.arrays),
            set(self.checked),
            [(f, list(f.writes)) for f in self.frames],
            self.counter,
        )
        try:
            yield
        finally:
            self.variables, contents, count, self.checked, writes, self.counter = kept
            del self.arrays[count:]
            for array, now in contents:
                array.now = now
            for frame, old in writes:
                frame.writes = old

    # -- Reads -----------------------------------------------------------------------------------------------

    def read(self, array: Array, indices: tuple[Index, ...], line: int, where: Location) -> Node:
        """An element of an array.

        Raises:
            Problem: An index may be outside, the element may not be written, or another iteration writes it.
        """
        if len(indices) != array.rank:
            raise Problem(f"{array.name!r} has {array.rank} dimensions, {len(indices)} indices are given")
        guards = self.check_indices(array, indices, where)
        access = Access(indices, tuple(self.loops), line)
        if array.role == "input":
            assert array.now.value is not None
            return read(array.now.value, array.dtype, indices, guards)
        latest = array.latest(indices, self.loops)
        if latest is not None and (not latest.costly or latest.undefined or self._is_deferred(array)):
            if latest.undefined:
                raise Problem(f"{array.name}[{index_text(indices, self.loops)}] may not be written yet")
            return latest
        self._check_read(array, indices, access)
        array.now.reads.append(access)
        assert array.now.value is not None
        return read(array.now.value, array.dtype, indices, guards)

    def _is_deferred(self, array: Array) -> bool:
        return any(w.array is array for f in self.frames for w in f.writes)

    def _check_read(self, array: Array, indices: tuple[Index, ...], access: Access) -> None:
        what = f"{array.name}[{index_text(indices, self.loops)}]"
        if array.now.value is None and not self._is_deferred(array):
            kind = "output" if array.role == "output" else "array"
            more = "; the kernel writes to it, so it is no input" if array.role == "output" else ""
            raise Problem(f"{what} is read before the {kind} {array.name!r} is written{more}")
        if self._is_deferred(array):
            raise Problem(
                f"{what} may be an element that another iteration of a loop in order writes. "
                f"{carry_text(array, self.loops)}"
            )
        if (met := first_conflict(array.now.writes, access)) is not None:
            raise Problem(
                f"{what} is read here, and line {met[0].line} writes it in another iteration: {met[1]}. "
                f"{carry_text(array, self.loops) or 'Keep it in a local variable'}, or end the loop before "
                "it is read"
            )
        spans = self.spans(indices, array)
        if spans is None or not array.covers(spans):
            raise Problem(f"{what} may not be written yet; write all elements of {array.name!r} first")

    def spans(self, indices: tuple[Index, ...], array: Array) -> tuple[Span, ...] | None:
        """The part of an array that an index takes over all loops."""
        if array.now.full:
            return tuple(Span(0, n) for n in array.shape)
        places: list[Place] | None = places_of(indices, self.loops)
        return None if places is None else tuple(p.span() for p in places)

    # -- Indices ---------------------------------------------------------------------------------------------

    def check_indices(
        self, array: Array, indices: tuple[Index, ...], where: Location
    ) -> frozenset[tuple[int, bool]]:
        """The ends at which an access is guarded, because the conditions around it keep it inside.

        Raises:
            Problem: An index is outside in some iteration.
        """
        guards: set[tuple[int, bool]] = set()
        certain = [*self.claims, *self.sizes, *(loop.rest for loop in self.loops if loop.bound is None)]
        inner = [loop.rest for loop in self.loops if loop.bound is not None]
        always, known = Known(certain), Known([*certain, *inner, *self.facts])
        for d, (e, n) in enumerate(zip(indices, array.shape, strict=True)):
            if isinstance(e, Node):
                self._check_dynamic(array, d, e, always, known, guards, where)
                continue
            for upper, rest in ((False, e), (True, n - 1 - e)):
                if always.not_negative(rest):
                    continue
                guards.add((d, upper))
                if known.not_negative(rest):
                    continue
                from_data = [c for c in self.conditions if c.reads]
                found = None if from_data else find_point(self.loops, rest, known.dims)
                if found is not None:
                    raise Problem(self._outside(array, d, e, n, found[1]))
                inside = call("le", to_node(0, i64), to_node(rest, i64))
                self._check(inside, array, d, where)
        return frozenset(guards)

    def _outside(self, array: Array, d: int, e: Dim, n: Dim, values: dict[str, int]) -> str:
        from ...ir.substitution import evaluate, substitute
        from ...ir.symbolic import symbol

        names = {loop.symbol: symbol(loop.name, None, None) for loop in self.loops}
        index = int(evaluate(substitute(e, names), values))
        size = int(evaluate(n, values))
        return (
            f"index {show(e, self.loops)} of dimension {d} of {array.name!r} is outside: it is {index} of "
            f"{size} elements with {text_of(values)}"
        )

    def _check_dynamic(
        self,
        array: Array,
        d: int,
        e: Node,
        always: Known,
        known: Known,
        guards: set[tuple[int, bool]],
        where: Location,
    ) -> None:
        n = array.shape[d]

        def outside(ends: tuple[Dim | None, Dim | None]) -> list[bool]:
            low, high = ends
            result = [] if low is not None and prove_le(0, low) else [False]
            return result if high is not None and prove_le(high, n - 1) else [*result, True]

        left = outside(always.bounds(e))
        if self.conditions:
            guards |= {(d, upper) for upper in left}
        left = [upper for upper in left if upper in outside(known.bounds(e))]
        if not left:
            return
        wide = to_node(e) if e.dtype is i64 else make("cast", i64, (e,))
        parts = [
            call("lt", wide, to_node(n, i64)) if upper else call("le", to_node(0, i64), wide)
            for upper in left
        ]
        self._check(parts[0] if len(parts) == 1 else call("and", *parts), array, d, where)

    def _check(self, inside: Node, array: Array, d: int, where: Location) -> None:
        """End the run if an index is outside where the conditions around hold."""
        if not self.checks:
            return
        for c in self.conditions:
            inside = call("or", negation(c), inside)
        message = index_message(where, array.shape[d], wraps=False)
        if (inside, message) not in self.checked:
            self.checked.add((inside, message))
            self.emitter.check(inside, self.loops, message)

    # -- Writes ----------------------------------------------------------------------------------------------

    def write(
        self,
        array: Array,
        indices: tuple[Index, ...],
        value: Node,
        combiner: str | None,
        line: int,
        where: Location,
    ) -> None:
        """Write an element, or combine a value with it.

        Raises:
            Problem: An index may be outside, or iterations conflict.
        """
        if array.role == "input":
            raise Problem(f"{array.name!r} is an input, which cannot be written")
        if len(indices) != array.rank:
            raise Problem(f"{array.name!r} has {array.rank} dimensions, {len(indices)} indices are given")
        self.check_indices(array, indices, where)
        undefined = make("undefined", array.dtype)
        what = f"{array.name}[{index_text(indices, self.loops)}]"
        if combiner is not None:
            spans = self.spans(indices, array)
            if not self._is_deferred(array) and (spans is None or not array.covers(spans)):
                raise Problem(f"{what} is combined with a value before it has one; write it first")
            for c in reversed(self.own_conditions()):
                value = select(c, value, undefined)
        else:
            bounds = [loop.bound for loop in self.loops if loop.bound is not None]
            conditions = [*bounds, *self.own_conditions()]
            old = array.latest(indices, self.loops) if conditions else None
            if old is None:
                old = undefined
            for c in reversed(conditions):
                value = select(c, value, old)
        write = Write(array, indices, value, combiner, tuple(self.loops), line)
        check_race(write)
        self.perform(write)

    def perform(self, write: Write) -> None:
        """Do a write, at the end of the innermost loop that carries values if there is one."""
        frame = next((f for f in reversed(self.frames) if f.loop in write.loops), None)
        if frame is None:
            self.writer.store(write)
            return
        now = write.array.now
        if write.combiner is None:
            access = Access(write.indices, write.loops, write.line)
            same = [
                w
                for w in frame.writes
                if w.array is write.array and w.loops == write.loops and w.indices == write.indices
            ]
            frame.writes = [w for w in frame.writes if w not in same]
            now.latest = [(access, write.value)]
            now.writes.append(access)
        else:
            now.latest = []
            now.writes.append(Access(write.indices, write.loops, write.line, write.combiner))
        frame.writes.append(write)

    def require_written(self, array: Array) -> None:
        """Check that all elements of an output are written.

        Raises:
            Problem: They are not.
        """
        if any(isinstance(n, int) and n == 0 for n in array.shape):
            if array.now.value is None:
                t, zero = self.emitter.t, False if array.dtype is boolean else 0
                array.now.value = t.compute(array.shape, lambda *_: t.constant(zero, array.dtype)).value
            return
        if array.now.value is None:
            raise Problem(f"the output {array.name!r} is never written")
        if not array.now.full:
            parts = "; ".join("[" + ", ".join(_span_text(s) for s in box) + "]" for box in array.now.boxes)
            raise Problem(
                f"elements of the output {array.name!r} may stay unwritten: "
                + (f"certain are only {parts} of " if parts else "none is certain of ")
                + f"[{', '.join(map(str, array.shape))}]; write all of them first, such as with 0"
            )

    def condition(self, x: Any) -> bool | Node:
        """A value as a condition.

        Raises:
            Problem: It is a number.
        """
        if isinstance(x, bool):
            return x
        if not isinstance(x, Node) or x.dtype is not boolean:
            raise Problem("the condition is a number, not a bool; compare it, as in `x != 0`")
        return bool(x.data) if x.kind == "literal" else x


def _span_text(s: Span) -> str:
    return f"{s.low}:{s.high}" + (f":{s.step}" if s.step > 1 else "")


__all__ = ["Frame", "Part", "State", "Unassigned", "Variable"]
