"""Writes of a loop program: as computations of whole arrays, or as scatters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dialects.scalar import COMBINER_OP, combiner_identity
from ...dialects.tensor_builder import Scalar as Element
from ...ir.core import Value
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import boolean, i64
from .arrays import (
    Access,
    Array,
    Index,
    Place,
    carry_text,
    conflict,
    first_conflict,
    index_text,
    places_of,
    symbols_of,
)
from .emission import At, Emitter, Guard
from .facts import Loop
from .source import Problem
from .values import Node, binary, call, defined, fill, literal, make, read, select, to_node


@dataclass
class Write:
    """A write that is done: ``array[indices] = value``, or combined with `combiner`."""

    array: Array
    indices: tuple[Index, ...]
    value: Node
    """The value; undefined where nothing is written."""
    combiner: str | None
    loops: tuple[Loop, ...]
    line: int


def check_race(write: Write) -> None:
    """Refuse a write that several independent iterations do, or that reads and writes of other iterations
    conflict with.

    Raises:
        Problem: The message shows two iterations.
    """
    array, own = write.array, Access(write.indices, write.loops, write.line, write.combiner)
    what = f"{array.name}[{index_text(write.indices, write.loops)}]"
    if write.combiner is None:
        used = symbols_of(write.indices)
        lost = [loop for loop in write.loops if loop.symbol not in used and not _is_single(loop)]
        if lost:
            loop = lost[-1]
            raise Problem(
                f"{what} is written by every iteration of {loop.name!r} (line {loop.line}), so only the last "
                "one would count; write it behind the loop, or combine the values by `+=` or a reduction"
            )
        axes = [loop for loop in write.loops if loop.kind == "axis"]
        if axes:
            if (found := conflict(own, own)) is not None:
                raise Problem(
                    f"{what} is written in independent iterations: {found}. Loop by `range`, where the last "
                    "write counts, or add by `+=`"
                )
    others = [x for x in array.now.writes if not (write.combiner and same_kind(x, own))]
    if (met := first_conflict(others, own)) is not None:
        raise Problem(
            f"{what} is written here and in line {met[0].line} by different iterations: {met[1]}. Put the "
            "writes into loops behind each other"
        )
    if (met := first_conflict(array.now.reads, own)) is not None:
        raise Problem(
            f"{what} is written here, and line {met[0].line} reads it in another iteration: {met[1]}. "
            f"{carry_text(array, write.loops) or 'Keep the value in a local variable'}, or write to another "
            "array"
        )


def same_kind(a: Access, b: Access) -> bool:
    """Whether two accesses are one statement, or two of one line that combine elements in the same way."""
    return a.line == b.line and len(a.loops) == len(b.loops) and a.combiner == b.combiner


def _is_single(loop: Loop) -> bool:
    return prove_eq(loop.extent, 1)


class Writer:
    """Does the writes of a program."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter

    def store(self, write: Write) -> None:
        """Do a write.

        Raises:
            Problem: It cannot be done.
        """
        places = places_of(write.indices, write.loops)
        if places is None:
            self._scatter(write)
            return
        if write.combiner is not None:
            self._combine(write, places)
        else:
            self._pull(write, places, write.value)

    def _old(self, array: Array, indices: tuple[Index, ...]) -> Node | None:
        value = array.now.value
        return None if value is None else read(value, array.dtype, indices)

    def _combine(self, write: Write, places: list[Place]) -> None:
        assert write.combiner is not None
        array, combiner = write.array, write.combiner
        identity = literal(combiner_identity(combiner, array.dtype), array.dtype)
        value = fill(write.value, identity)
        own = [p.loop for p in places if p.loop is not None]
        rest = [loop for loop in write.loops if loop not in own]
        if rest:
            value = self.emitter.reduce(combiner, value, own, rest)
        constant = array.now.constant
        if constant is None or to_node(constant, array.dtype) is not identity:
            old = self._old(array, write.indices)
            assert old is not None
            value = to_node(binary(COMBINER_OP[combiner], old, value), array.dtype)
        for loop in own:
            if loop.bound is not None:
                value = select(loop.bound, value, make("undefined", array.dtype))
        self._pull(write, places, value)
        if rest:  # the element is the result of all iterations, which none of them may read
            array.now.latest = []

    def _pull(self, write: Write, places: list[Place], value: Node) -> None:
        """Write by a computation of the whole array."""
        array = write.array
        own = [p.loop for p in places if p.loop is not None]
        whole = all(
            p.loop is not None and p.scale == 1 and prove_eq(p.offset, 0) and prove_eq(p.loop.extent, n)
            for p, n in zip(places, array.shape, strict=True)
        )
        if value.undefined and array.now.value is not None:
            old = self._old(array, write.indices)
            assert old is not None
            if array.now.full or array.covers(tuple(p.span() for p in places)):
                value = fill(value, old)
        complete = not value.undefined
        if not complete and array.now.value is not None:
            old = self._old(array, write.indices)
            assert old is not None
            value = fill(value, old)
        constant = value.data if whole and value.kind == "literal" else None
        alias = value.data[0] if whole and self._is_whole(value, own, array) else None
        if alias is not None:
            array.now.value = alias
        else:
            value = self.emitter.hoisted(value, own)
            array.now.value = self._computed(array, places, value, whole)
        array.now.constant = constant
        if complete:
            array.cover(tuple(p.span() for p in places))
        self._note(write, value if not complete or not value.costly else None)

    def _is_whole(self, value: Node, loops: Sequence[Loop], array: Array) -> bool:
        """Whether a value is the element of a tensor like the array at the same place."""
        if value.kind != "read" or value.args or value.data[2] or value.dtype is not array.dtype:
            return False
        tensor, plan, _ = value.data
        return (
            len(plan) == len(loops)
            and all(e is loop.symbol for e, loop in zip(plan, loops, strict=True))
            and all(map(prove_eq, tensor.type.shape, array.shape))
        )

    def _computed(self, array: Array, places: list[Place], value: Node, whole: bool) -> Value:
        t = self.emitter.t

        def at(*p: Dim) -> At:
            result = {}
            for place, x in zip(places, p, strict=True):
                if place.loop is None:
                    continue
                inner = x - place.offset
                if place.scale < 0:
                    inner = -inner
                result[place.loop.symbol] = inner // abs(place.scale) if abs(place.scale) > 1 else inner
            return result

        if whole:
            return self.emitter.compute(value, array.shape, at)

        def inside(*p: Dim) -> tuple[list[Guard], list[Dim], list[tuple[Dim, int]]]:
            """Guards, expressions that are not negative inside, and remainders that are 0."""
            guards: list[Guard] = []
            signs: list[Dim] = []
            strides: list[tuple[Dim, int]] = []
            for place, x, n in zip(places, p, array.shape, strict=True):
                span = place.span()
                ends = []
                if not prove_eq(span.low, 0):
                    ends.append(x - span.low)
                if not prove_eq(span.high, n):
                    ends.append(span.high - 1 - x)
                signs += ends
                if place.loop is not None:
                    guards += [(frozenset({place.loop.symbol}), e) for e in ends]
                    if abs(place.scale) > 1:
                        strides.append((x - span.low, abs(place.scale)))
            return guards, signs, strides

        old = array.now.value

        def body(*p: Dim) -> Element:
            guards, signs, strides = inside(*p)
            element = self.emitter.scalar(value, at(*p), guards)
            conditions = [t.index(e) >= 0 for e in signs]
            conditions += [t.index(e % n).equals(0) for e, n in strides]
            if not conditions:
                return element
            condition = conditions[0]
            for c in conditions[1:]:
                condition = condition & c
            zero = t.constant(False if array.dtype is boolean else 0, array.dtype)
            return condition.select(element, zero if old is None else t.wrap(old)[p])

        return t.compute(array.shape, body).value

    def _note(self, write: Write, value: Node | None) -> None:
        now = write.array.now
        now.latest = []
        access = Access(write.indices, write.loops, write.line, write.combiner)
        if value is not None:
            now.latest.append((access, value))
        now.writes.append(access)

    def _scatter(self, write: Write) -> None:
        """Write at places that depend on data, or on several loops."""
        array, t = write.array, self.emitter.t
        loops = [loop for loop in write.loops if loop.kind != "step"]
        symbols = [loop.symbol for loop in loops]
        condition = defined(write.value)
        zero = literal(False if array.dtype is boolean else 0, array.dtype)
        value = self.emitter.hoisted(fill(write.value, zero), loops)
        for loop in loops:
            if loop.bound is not None:
                condition = loop.bound if condition.kind == "literal" else call("and", loop.bound, condition)
        if array.now.value is None:
            array.now.value = t.compute(array.shape, lambda *_: t.constant(zero.data, array.dtype)).value
        nodes = [to_node(e, i64) if not isinstance(e, Node) else e for e in write.indices]

        def body(*i: Dim) -> tuple[Element, ...]:
            at = dict(zip(symbols, i, strict=True))
            memo: dict[Node, Element] = {}
            element = self.emitter.scalar(value, at, (), memo)
            index = [self.emitter.scalar(e, at, (), memo).cast(i64) for e in nodes]
            if condition.kind != "literal":
                holds = self.emitter.scalar(condition, at, (), memo)
                index = [holds.select(e, t.index(n)) for e, n in zip(index, array.shape, strict=True)]
            return (element, *index)

        dest = t.wrap(array.now.value)
        array.now.value = t.scatter(dest, [loop.extent for loop in loops], body, write.combiner).value
        array.now.constant = None
        self._note(write, None)


__all__ = ["Write", "Writer", "check_race"]
