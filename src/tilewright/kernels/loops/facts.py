"""The facts that are known where a loop program uses an index: the loops, the conditions around it, and their
consequences; iterations that show a wrong index.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...ir.substitution import evaluate, linear_in, substitute
from ...ir.symbolic import Dim, Expr, free_symbols, prove_le, symbol
from .source import Problem
from .values import Node, negation

SIZES = (1, 2, 3, 4, 5, 8)
"""Sizes with which wrong indices are looked for."""
MOST_POINTS = 4096


@dataclass(eq=False)
class Loop:
    """A loop of the program, with a symbol that counts its iterations from 0."""

    name: str
    """The name of the variable."""
    symbol: Expr
    """The number of the iteration. Its bound does not depend on other loops."""
    limit: Dim
    """The number of iterations, which may depend on outer loops."""
    kind: Literal["axis", "range", "step", "reduce"]
    """``axis`` for independent iterations, ``range`` for iterations in order, ``step`` for those in order
    that carry values, ``reduce`` for the values of a generator.
    """
    line: int
    """Where it stands."""
    bound: Node | None = None
    """The condition that the iteration is below `limit`; None where that is certain."""
    rest: Dim = 0
    """An expression that is not negative in its iterations: how many of them are left."""

    @property
    def extent(self) -> Dim:
        """The greatest number of iterations."""
        return self.symbol.upper + 1


@dataclass(frozen=True)
class Fact:
    """``low <= value`` or ``value <= high`` of an integer from data."""

    value: Node
    low: Dim | None = None
    high: Dim | None = None


def consequences(c: Node, holds: bool = True) -> Iterator[Dim | Fact]:
    """Facts from a condition that holds, or does not: expressions that are not negative, and bounds of
    integers from data.
    """
    if c.kind != "call":
        return
    if c.data == "not":
        yield from consequences(c.args[0], not holds)
    elif c.data == ("and" if holds else "or"):
        for part in c.args:
            yield from consequences(part, holds)
    elif c.data in _ORDER or c.data in ("eq", "ne"):
        name = c.data if holds else _OPPOSITE[c.data]
        a, b = c.args
        if name in ("gt", "ge"):
            a, b, name = b, a, {"gt": "lt", "ge": "le"}[name]
        if name == "eq":
            yield from _at_most(a, b, 0)
            yield from _at_most(b, a, 0)
        elif name != "ne":
            yield from _at_most(a, b, 1 if name == "lt" else 0)


_ORDER = ("lt", "le", "gt", "ge")
_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


def inequalities(c: Node) -> list[Dim] | None:
    """The expressions of which a condition tells that none is negative; None for other conditions."""
    if c.kind == "call" and c.data == "and":
        parts = [inequalities(a) for a in c.args]
        return None if None in parts else [e for part in parts for e in part or ()]
    if c.kind != "call" or c.data not in _ORDER:
        return None
    found = [e for e in consequences(c) if not isinstance(e, Fact)]
    return found or None


def _at_most(a: Node, b: Node, gap: int) -> Iterator[Dim | Fact]:
    """The consequence of ``a + gap <= b``."""
    if not (a.dtype.is_integer and b.dtype.is_integer):
        return
    x, y = dim_of(a), dim_of(b)
    if x is not None and y is not None:
        yield y - x - gap
    elif x is not None:
        yield Fact(b, low=x + gap)
    elif y is not None:
        yield Fact(a, high=y - gap)


def dim_of(node: Node) -> Dim | None:
    """The symbolic integer that an element is; None if it depends on data."""
    if node.kind == "index":
        return node.data
    if node.kind == "literal" and node.dtype.is_integer:
        return node.data
    return dim_of(node.args[0]) if node.kind == "cast" and node.dtype.is_integer else None


class Known:
    """Facts at a place: `facts` of conditions around it."""

    def __init__(self, facts: Sequence[Dim | Fact]) -> None:
        self.dims = [f for f in facts if not isinstance(f, Fact)]
        self.values = [f for f in facts if isinstance(f, Fact)]

    def not_negative(self, e: Dim) -> bool:
        """Whether ``e >= 0`` follows."""
        if prove_le(0, e):
            return True
        if any(prove_le(0, e - f) for f in self.dims):
            return True
        return any(prove_le(0, e - f - g) for f, g in itertools.combinations(self.dims, 2))

    def bounds(self, node: Node) -> tuple[Dim | None, Dim | None]:
        """The least and the greatest value of an integer from data, as far as known."""
        low, high = self._of(node)
        for fact in self.values:
            if fact.value is node:
                low = fact.low if fact.low is not None else low
                high = fact.high if fact.high is not None else high
        return low, high

    def _of(self, node: Node) -> tuple[Dim | None, Dim | None]:
        known = dim_of(node)
        if known is not None:
            return known, known
        if node.dtype.kind == "uint" and node.kind == "read":
            return 0, None
        args = [self.bounds(a) for a in node.args] if node.kind in ("call", "cast", "select") else []
        if node.kind == "cast":
            (source,) = node.args
            if source.dtype.kind == "bool":
                return 0, 1
            signs = (source.dtype.kind == "uint", node.dtype.kind == "uint")
            wider = source.dtype.is_integer and (
                source.dtype.bits <= node.dtype.bits
                if signs[0] == signs[1]
                else source.dtype.bits < node.dtype.bits
                if signs[0]
                else source.dtype.bits <= node.dtype.bits
                and args[0][0] is not None
                and prove_le(0, args[0][0])
            )
            return args[0] if wider else (0 if node.dtype.kind == "uint" else None, None)
        if node.kind == "select":
            return _either(args[1][0], args[2][0], False), _either(args[1][1], args[2][1], True)
        if node.kind != "call":
            return None, None
        if node.data == "max":
            (a, _), (b, _) = args
            return (a if a is not None else b), _either(args[0][1], args[1][1], True)
        if node.data == "min":
            (_, a), (_, b) = args
            return _either(args[0][0], args[1][0], False), (a if a is not None else b)
        if node.data == "mod":
            n = dim_of(node.args[1])
            return (0, n - 1) if n is not None and prove_le(1, n) else (None, None)
        if node.data in ("add", "sub") and all(dim_of(a) is not None for a in node.args[1:]):
            (low, high), step = args[0], dim_of(node.args[1])
            assert step is not None
            step = step if node.data == "add" else -step
            low, high = (None if b is None else b + step for b in (low, high))
            if node.dtype.bits < 64:  # a sum that leaves the type's range wraps around
                least, most = node.dtype.limits
                if low is None or high is None or not (prove_le(least, low) and prove_le(high, most)):
                    return (0 if node.dtype.kind == "uint" else None), None
            return low, high
        return None, None


def _either(a: Dim | None, b: Dim | None, upper: bool) -> Dim | None:
    """A bound of two values, from that of each."""
    if a is None or b is None:
        return None
    if prove_le(a, b):
        return b if upper else a
    return (a if upper else b) if prove_le(b, a) else None


def widest(limit: Dim, loops: Sequence[Loop]) -> Dim:
    """The greatest value of a loop's length over the outer `loops`.

    Raises:
        Problem: It neither grows nor falls with an outer loop.
    """
    for loop in reversed(loops):
        linear = linear_in(limit, loop.symbol)
        if loop.symbol not in free_symbols(limit):
            continue
        if linear is None:
            raise Problem(
                f"the length of the loop is no linear formula of {loop.name!r}; loop over the greatest "
                "length and use `if`"
            )
        coefficient, _ = linear
        if prove_le(0, coefficient):
            limit = substitute(limit, {loop.symbol: loop.extent - 1})
        elif prove_le(coefficient, 0):
            limit = substitute(limit, {loop.symbol: 0})
        else:
            raise Problem(f"the length of the loop neither grows nor falls with {loop.name!r}")
    return limit


def show(e: Dim, loops: Sequence[Loop]) -> str:
    """An expression with the names that the user gave to loop variables."""
    names = {loop.symbol: symbol(loop.name, 0, None) for loop in loops}
    return str(substitute(e, names))


Point = Mapping[str, int]


def points(loops: Sequence[Loop], exprs: Sequence[Dim], ends: bool = True) -> Iterator[dict[str, int]]:
    """Values of sizes and loop variables that occur together.

    Args:
        loops: The loops, outer ones first.
        exprs: The expressions that are to be evaluated.
        ends: Take the first, the last and a middle iterations of each loop only.
    """
    counters = {loop.symbol for loop in loops}
    sizes: dict[str, Expr] = {}
    for e in (*exprs, *(loop.limit for loop in loops), *(loop.extent for loop in loops)):
        for s in free_symbols(e):
            if s not in counters:
                sizes.setdefault(s.name, s)
    for n in SIZES:
        values = {}
        for k, (name, s) in enumerate(sizes.items()):
            value = (n + k) * s.multiple_of
            low, high = s.lower, s.upper
            value = max(value, low) if low is not None else value
            values[name] = min(value, high) if isinstance(high, int) else value
        try:
            yield from itertools.islice(_iterations(list(loops), values, ends), MOST_POINTS)
        except KeyError:
            return


def _iterations(loops: list[Loop], values: dict[str, int], ends: bool) -> Iterator[dict[str, int]]:
    if not loops:
        yield values
        return
    count = int(evaluate(loops[0].limit, values))
    chosen = sorted({0, 1, count // 2, count - 2, count - 1}) if ends else range(min(count, 12))
    for value in chosen:
        if 0 <= value < count:
            yield from _iterations(loops[1:], {**values, loops[0].symbol.name: value}, ends)


def find_point(
    loops: Sequence[Loop], wanted: Dim, facts: Sequence[Dim]
) -> tuple[dict[str, int], dict[str, int]] | None:
    """Sizes and an iteration at which `wanted` is negative and the `facts` are not, by the user's names."""
    for values in points(loops, [wanted, *facts]):
        try:
            if evaluate(wanted, values) < 0 and all(evaluate(f, values) >= 0 for f in facts):
                return values, named(values, loops)
        except (KeyError, ZeroDivisionError):
            return None
    return None


def named(values: Mapping[str, Any], loops: Sequence[Loop]) -> dict[str, int]:
    """The values of sizes and loops by the names that the user gave them."""
    names = {loop.symbol.name: loop.name for loop in loops}
    return {names.get(name, name): int(v) for name, v in values.items()}


def text_of(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {v}" for name, v in values.items())


def opposite_facts(c: Node) -> list[Dim | Fact]:
    """Facts where a condition does not hold."""
    return list(consequences(negation(c)))
