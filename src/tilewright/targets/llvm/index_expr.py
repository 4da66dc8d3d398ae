"""Symbolic index expressions as LLVM instructions on i64, and on vectors of lanes.

Code is written at *levels*: the function's entry is level 0, and each loop's body opens one. An expression is
emitted once, in the slot at the start of the outermost level where all its symbols are known. Sums and
products are split so that their loop-invariant parts move outward, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...errors import InternalError
from ...ir.substitution import linear_in, substitute
from ...ir.symbolic import (
    Atom,
    Binary,
    Dim,
    Expr,
    FloorDiv,
    Min,
    Mod,
    Monomial,
    Symbol,
    bounds,
    free_symbols,
    prove_divisible,
    prove_le,
    smax,
    smin,
    symbol,
)
from .emitter import Emitter

HERE = 1 << 20
"""The level of values that are computed inside a body: expressions that depend on them are emitted at their
use.
"""
_INT32 = (1 << 31) - 1


@dataclass
class Lanes:
    """The vector loop that is being printed: iteration ``iv = base + lanes * part + lane`` runs in one lane
    of one part.

    `base` is a multiple of `lanes`. `varying` maps symbols to per-lane values (i64 vectors, one per part).
    """

    iv: Expr
    lanes: int
    parts: int
    base: str
    varying: dict[Expr, list[str]] = field(default_factory=dict)

    def varies(self, e: Dim) -> bool:
        """Whether the value of `e` may differ between lanes."""
        if isinstance(e, int):
            return False
        symbols = free_symbols(e)
        return self.iv in symbols or not symbols.isdisjoint(self.varying)


@dataclass
class _Level:
    slot: list[str]
    cache: dict[object, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


class IndexCode:
    """Emits index expressions. Symbols are identified by name, so a loop variable keeps its identity when a
    schedule changes its bounds.
    """

    def __init__(self, e: Emitter) -> None:
        self.e = e
        self.lanes: Lanes | None = None
        self.known: dict[Expr, Dim] = {}  # loop variables of unrolled iterations
        self._symbols: dict[str, Expr] = {}
        self._values: dict[str, tuple[int, str]] = {}
        self._levels = [_Level(e.slot())]

    @contextmanager
    def level(self) -> Iterator[None]:
        """Open a level at the current position (the start of a loop's body)."""
        self._levels.append(_Level(self.e.slot()))
        try:
            yield
        finally:
            for name in self._levels.pop().names:
                self._symbols.pop(name, None)
                self._values.pop(name, None)

    def bind(self, s: Expr, value: str, here: bool = False) -> None:
        """Bind a symbol to an i64 value that is known from the start of the current level or, with `here`,
        from this position.
        """
        self._symbols[s.name] = s
        self._values[s.name] = (HERE if here else len(self._levels) - 1, value)
        self._levels[-1].names.append(s.name)

    def fresh_symbol(self, value: str) -> Expr:
        """A new symbol for an i64 value computed at this position."""
        s = symbol(self.e.fresh("dyn_"), None, None)
        self.bind(s, value, here=True)
        return s

    def resolve(self, e: Dim) -> Dim:
        """`e` expressed in symbols that have values."""
        if isinstance(e, int):
            return e
        mapping: dict[Expr, Dim] = {}
        for s in free_symbols(e):
            if s in self.known:
                mapping[s] = self.known[s]
            else:
                own = self._symbols.get(s.name)
                if own is not None and own is not s:
                    mapping[s] = own
        if not mapping:
            return e
        substituted = substitute(e, mapping)
        return (
            self.resolve(substituted)
            if isinstance(substituted, Expr) and any(s in self.known for s in free_symbols(substituted))
            else substituted
        )

    # -- Scalars --------------------------------------------------------------------------------------------

    def value(self, e: Dim) -> str:
        """The i64 operand of an expression; the loop variable of a vector loop has the value of its first
        lane.
        """
        e = self.resolve(e)
        if isinstance(e, int):
            return str(e)
        k = self._level_of(e)
        if k == HERE:
            return self._sum(e, k)
        level = self._levels[k]
        operand = level.cache.get(e)
        if operand is None:
            with self.e.into(level.slot):
                operand = level.cache[e] = self._sum(e, k)
        return operand

    def pointer(self, base: str, e: Dim, itemsize: int) -> str:
        """The address `e` elements after `base`, which is known at entry; loop-invariant parts are added
        outside the loops.
        """
        e = self.resolve(e)
        if isinstance(e, int):
            return self.e.at(base, str(e), itemsize)
        k = self._level_of(e)
        if k == HERE:
            return self._moved(base, e, k, itemsize)
        level = self._levels[k]
        key = (base, e, itemsize)
        address = level.cache.get(key)
        if address is None:
            with self.e.into(level.slot):
                address = level.cache[key] = self._moved(base, e, k, itemsize)
        return address

    def _moved(self, base: str, e: Expr, k: int, itemsize: int) -> str:
        outer, own = self._cut(e, k)
        start = self.pointer(base, outer, itemsize) if not (isinstance(outer, int) and outer == 0) else base
        return self.e.at(start, self.value(own), itemsize)

    def _level_of(self, e: Dim) -> int:
        level = 0
        for s in () if isinstance(e, int) else free_symbols(e):
            binding = self._values.get(s.name)
            if binding is None:
                raise InternalError(f"symbol '{s.name}' in '{e}' has no value in this kernel")
            level = max(level, binding[0])
        return level

    def _atom_level(self, atom: Atom) -> int:
        return self._level_of(atom.expr)

    def _cut(self, e: Expr, k: int) -> tuple[Dim, Dim]:
        """The terms of `e` that are known outside level `k`, and the others."""
        outer: Dim = 0
        own: Dim = 0
        for c, atoms in e.terms:
            term = _term(c, atoms)
            if any(self._atom_level(a) >= k for a in atoms):
                own = own + term
            else:
                outer = outer + term
        return outer, own

    def _sum(self, e: Expr, k: int) -> str:
        outer, own = self._cut(e, k) if k else (0, e)
        total = self.value(outer)
        if isinstance(own, int):
            return self.e.add(total, str(own))
        for c, atoms in own.terms:
            if total != "0" and c < 0:
                total = self.e.sub(total, self._product(-c, atoms, k))
            else:
                total = self.e.add(total, self._product(c, atoms, k))
        return total

    def _product(self, c: int, atoms: Monomial, k: int) -> str:
        outside = tuple(a for a in atoms if self._atom_level(a) < k)
        product = self.value(_term(c, outside)) if outside and k else str(c)
        for atom in atoms if not k else (a for a in atoms if a not in outside):
            product = self.e.mul(self._atom(atom), product)
        return product

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return self._values[atom.name][1]
        assert isinstance(atom, Binary)
        a, b = self.value(atom.a), self.value(atom.b)
        if not isinstance(atom, (FloorDiv, Mod)):
            name = "smin" if isinstance(atom, Min) else "smax"
            return self.e.op(f"call i64 @llvm.{name}.i64(i64 {a}, i64 {b})")
        if not isinstance(atom.b, int) and not prove_le(1, atom.b):
            # The division is hoisted out of a loop that may not run: dividing by zero must not trap.
            b = self.e.op(f"call i64 @llvm.smax.i64(i64 {b}, i64 1)")
        if not isinstance(atom.b, int) and _within(atom.a, 0, _INT32) and _within(atom.b, 0, _INT32):
            narrow = [self.e.op(f"trunc i64 {x} to i32") for x in (a, b)]
            quotient = self.e.op(
                f"{'udiv' if isinstance(atom, FloorDiv) else 'urem'} i32 {narrow[0]}, {narrow[1]}"
            )
            return self.e.op(f"zext i32 {quotient} to i64")
        return self._divide(atom, "i64", a, b, lambda n: str(n))

    def _divide(self, atom: Binary, kind: str, a: str, b: str, literal: Callable[[int], str]) -> str:
        """Floor division or remainder of `a` and `b`, of an integer or vector type; `literal` prints a number
        in that type.
        """
        e = self.e
        quotient = isinstance(atom, FloorDiv)
        number: str = literal(0)
        if isinstance(atom.b, int) and atom.b > 0:
            if atom.b & (atom.b - 1) == 0:
                bits = literal(atom.b.bit_length() - 1 if quotient else atom.b - 1)
                return e.op(f"{'ashr' if quotient else 'and'} {kind} {a}, {bits}")
            if prove_le(0, atom.a):
                return e.op(f"{'udiv' if quotient else 'urem'} {kind} {a}, {b}")
        elif prove_le(0, atom.a) and prove_le(0, atom.b):
            return e.op(f"{'udiv' if quotient else 'urem'} {kind} {a}, {b}")
        rest = e.op(f"srem {kind} {a}, {b}")
        nonzero = e.op(f"icmp ne {kind} {rest}, {number}")
        flags = "i1" if not kind.startswith("<") else kind.replace(kind[1:-1].split(" x ")[1], "i1")
        differs = e.op(f"icmp slt {kind} {e.op(f'xor {kind} {rest}, {b}')}, {number}")
        fix = e.op(f"and {flags} {nonzero}, {differs}")
        if quotient:
            down = e.op(f"sext {flags} {fix} to {kind}")
            return e.op(f"add {kind} {e.op(f'sdiv {kind} {a}, {b}')}, {down}")
        return e.op(f"select {flags} {fix}, {kind} {e.op(f'add {kind} {rest}, {b}')}, {kind} {rest}")

    # -- Vectors --------------------------------------------------------------------------------------------

    def vector(self, e: Dim, bits: int = 0) -> tuple[list[str], int]:
        """An expression that varies over the lanes, as one vector per part, and the width of its elements in
        bits.

        The width is 32 if all values are known to fit, unless `bits` gives another one.
        """
        assert self.lanes is not None
        e = self.resolve(e)
        bits = bits or (32 if self._fits(e) else 64)
        return self._vector(e, bits, {}), bits

    def _fits(self, e: Dim) -> bool:
        """Whether `e` and all its subexpressions fit 32 bits, in lanes beyond the loop's end too."""
        assert self.lanes is not None
        if isinstance(e, int):
            return abs(e) < _INT32
        total = 0
        for c, atoms in e.terms:
            low, high = bounds(_term(c, atoms))
            if low is None or high is None:
                return False
            total += max(abs(low), abs(high))
            if any(isinstance(a, Binary) and not (self._fits(a.a) and self._fits(a.b)) for a in atoms):
                return False
        return total < _INT32 // 2

    def splat(self, value: str, bits: int) -> str:
        """A number or i64 value in all lanes."""
        assert self.lanes is not None
        n = self.lanes.lanes
        if value.lstrip("-").isdigit():
            return f"splat (i{bits} {value})"
        if bits != 64:
            value = self.e.op(f"trunc i64 {value} to i{bits}")
        return self.e.splat(f"<{n} x i{bits}>", f"i{bits}", value)

    def _vector(self, e: Dim, bits: int, memo: dict[Dim, list[str]]) -> list[str]:
        lanes = self.lanes
        assert lanes is not None
        kind = f"<{lanes.lanes} x i{bits}>"
        if e in memo:
            return memo[e]
        if not lanes.varies(e):
            return [self.splat(self.value(e), bits)] * lanes.parts
        assert isinstance(e, Expr)
        uniform: Dim = 0
        totals: list[str] | None = None
        for c, atoms in e.terms:
            varying = [a for a in atoms if lanes.varies(a.expr)]
            factor: Dim = _term(c, tuple(a for a in atoms if a not in varying))
            if not varying:
                uniform = uniform + factor
                continue
            values = self._vector_atom(varying[0], bits, memo)
            for a in varying[1:]:
                values = [
                    self.e.op(f"mul {kind} {x}, {y}")
                    for x, y in zip(values, self._vector_atom(a, bits, memo), strict=True)
                ]
            if not (isinstance(factor, int) and factor == 1):
                scale = self.splat(self.value(factor), bits)
                values = [self.e.op(f"mul {kind} {x}, {scale}") for x in values]
            totals = (
                values
                if totals is None
                else [self.e.op(f"add {kind} {x}, {y}") for x, y in zip(totals, values, strict=True)]
            )
        assert totals is not None
        if not (isinstance(uniform, int) and uniform == 0):
            offset = self.splat(self.value(uniform), bits)
            totals = [self.e.op(f"add {kind} {x}, {offset}") for x in totals]
        memo[e] = totals
        return totals

    def _vector_atom(self, atom: Atom, bits: int, memo: dict[Dim, list[str]]) -> list[str]:
        lanes = self.lanes
        assert lanes is not None
        kind = f"<{lanes.lanes} x i{bits}>"
        if isinstance(atom, Symbol):
            if atom.expr is lanes.iv:
                start = self.splat(lanes.base, bits)
                return [
                    self.e.op(f"add {kind} {start}, {lane_numbers(bits, lanes.lanes, lanes.lanes * p)}")
                    for p in range(lanes.parts)
                ]
            values = lanes.varying[atom.expr]
            return (
                values
                if bits == 64
                else [self.e.op(f"trunc <{lanes.lanes} x i64> {v} to {kind}") for v in values]
            )
        assert isinstance(atom, Binary)
        firsts, seconds = self._vector(atom.a, bits, memo), self._vector(atom.b, bits, memo)
        result = []
        for a, b in zip(firsts, seconds, strict=True):
            if isinstance(atom, (FloorDiv, Mod)):
                if not isinstance(atom.b, int):
                    b = self.e.op(
                        f"call {kind} @llvm.smax.v{lanes.lanes}i{bits}({kind} {b}, {kind} splat (i{bits} 1))"
                    )
                result.append(self._divide(atom, kind, a, b, lambda n: f"splat (i{bits} {n})"))
            else:
                name = "smin" if isinstance(atom, Min) else "smax"
                result.append(
                    self.e.op(f"call {kind} @llvm.{name}.v{lanes.lanes}i{bits}({kind} {a}, {kind} {b})")
                )
        return result

    # -- Conditions -----------------------------------------------------------------------------------------

    def conditions(self, exprs: Iterable[Dim]) -> tuple[str | None, list[str] | None]:
        """Whether all `exprs` are >= 0: the i1 of the uniform ones, and the masks of the varying ones by
        part.

        Either is None if there is nothing to test.
        """
        flag: str | None = None
        masks: list[str] | None = None
        for e in map(self.resolve, exprs):
            if prove_le(0, e):
                continue
            if self.lanes is not None and self.lanes.varies(e):
                lane_masks = self._mask(e)
                kind = f"<{self.lanes.lanes} x i1>"
                masks = (
                    lane_masks
                    if masks is None
                    else [self.e.op(f"and {kind} {x}, {y}") for x, y in zip(masks, lane_masks, strict=True)]
                )
            else:
                value, kind = self.value(e), "i64"
                if self.e.counter == "i32" and _within(e, -_INT32, _INT32):
                    value, kind = self.e.op(f"trunc i64 {value} to i32"), "i32"
                one = self.e.op(f"icmp sge {kind} {value}, 0")
                flag = one if flag is None else self.e.op(f"and i1 {flag}, {one}")
        return flag, masks

    def _mask(self, e: Dim) -> list[str]:
        lanes = self.lanes
        assert lanes is not None
        parts = linear_in(e, lanes.iv)
        ids = f"<{lanes.lanes} x i32>"
        if parts is not None and isinstance(parts[0], int) and parts[0] != 0 and not lanes.varies(parts[1]):
            # Lane l is active where first + c*l >= 0: lane numbers are compared with one bound, in 32 bits.
            c = parts[0]
            quotient = self._floor_quotient(self.value(e), abs(c))
            limit = quotient if c < 0 else self.e.sub("0", quotient)
            limit = self.e.op(f"call i64 @llvm.smin.i64(i64 {limit}, i64 {1 << 20})")
            limit = self.e.op(f"call i64 @llvm.smax.i64(i64 {limit}, i64 -{1 << 20})")
            bound = self.splat(limit, 32)
            relation = "sle" if c < 0 else "sge"
            return [
                self.e.op(f"icmp {relation} {ids} {lane_numbers(32, lanes.lanes, lanes.lanes * p)}, {bound}")
                for p in range(lanes.parts)
            ]
        values, bits = self.vector(e)
        return [self.e.op(f"icmp sge <{lanes.lanes} x i{bits}> {v}, zeroinitializer") for v in values]

    def _floor_quotient(self, value: str, by: int) -> str:
        if by == 1:
            return value
        if value.lstrip("-").isdigit():
            return str(int(value) // by)
        rest = self.e.op(f"srem i64 {value}, {by}")
        negative = self.e.op(f"icmp slt i64 {rest}, 0")
        down = self.e.op(f"sext i1 {negative} to i64")
        return self.e.add(self.e.op(f"sdiv i64 {value}, {by}"), down)


def _term(c: int, atoms: Iterable[Atom]) -> Dim:
    term: Dim = c
    for a in atoms:
        term = term * a.expr
    return term


def _within(e: Dim, low: int, high: int) -> bool:
    limits = bounds(e)
    return limits[0] is not None and limits[1] is not None and low <= limits[0] and limits[1] <= high


def lane_numbers(bits: int, lanes: int, start: int = 0, step: int = 1) -> str:
    """The constant vector ``start, start + step, ...``."""
    return "<" + ", ".join(f"i{bits} {start + step * k}" for k in range(lanes)) + ">"


def split_lanes(e: Dim, iv: Expr, lanes: int, block: Expr, lane: Expr) -> Dim:
    """`e` with ``lanes * block + lane`` for `iv`; divisions by multiples of `lanes` then do not depend on the
    lane.
    """
    return _split(substitute(e, {iv: block * lanes + lane}), lanes, lane)


def _split(e: Dim, lanes: int, lane: Expr) -> Dim:
    if isinstance(e, int) or lane not in free_symbols(e):
        return e
    total: Dim = 0
    for c, atoms in e.terms:
        term: Dim = c
        for atom in atoms:
            term = term * (_split_atom(atom, lanes, lane) if isinstance(atom, Binary) else atom.expr)
        total = total + term
    return total


def _split_atom(atom: Binary, lanes: int, lane: Expr) -> Dim:
    a, b = _split(atom.a, lanes, lane), _split(atom.b, lanes, lane)
    if isinstance(atom, (FloorDiv, Mod)):
        if isinstance(b, int) and b > 0 and b % lanes == 0:
            parts = linear_in(a, lane)
            if (
                parts is not None
                and isinstance(parts[0], int)
                and parts[0] == 1
                and prove_divisible(parts[1], lanes)
            ):
                whole = parts[1] // lanes
                return (
                    whole // (b // lanes)
                    if isinstance(atom, FloorDiv)
                    else whole % (b // lanes) * lanes + lane
                )
        return a // b if isinstance(atom, FloorDiv) else a % b
    return smin(a, b) if isinstance(atom, Min) else smax(a, b)


__all__ = ["HERE", "IndexCode", "Lanes", "lane_numbers", "split_lanes"]
