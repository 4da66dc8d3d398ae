"""Symbolic integers: the algebra of shapes and index expressions.

An `Expr` is an immutable, hash-consed polynomial with integer coefficients over *atoms*: symbols, floor
divisions, remainders, minima and maxima. Structural equality is identity. Constants are plain ``int``, so
`Dim = int | Expr` and static shapes cost nothing. ``//`` and ``%`` round down, as in Python.

Symbols carry their bounds, so that simplification needs no environment. Bounds are inclusive; the upper one
may itself be symbolic, such as ``seq - 1`` for an index into a dimension of ``seq`` elements.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeGuard, Union

from ..errors import SizeError

Monomial = tuple["Atom", ...]

MAX_DEPTH = 100
"""Largest nesting depth of divisions, remainders, minima and maxima.

Functions over expressions recurse to this depth; Python's stack allows a few hundred levels.
"""

RESERVED = frozenset({"dense", "dense_resource", "false", "inf", "max", "min", "nan", "none", "true", "unit"})
"""Words of the textual form, which are not allowed as names of symbols."""


class Atom:
    """A factor of a term. `key` orders atoms structurally; `expr` is the atom as an expression; `depth` as
    for `Expr`.
    """

    __slots__ = ("depth", "expr", "key")
    depth: int
    key: tuple[Any, ...]
    expr: Expr

    def __lt__(self, other: Atom) -> bool:
        return self.key < other.key


class Symbol(Atom):
    """A named integer with inclusive bounds and a known divisor."""

    __slots__ = ("lower", "multiple_of", "name", "upper")
    _interned: ClassVar[dict[tuple[Any, ...], Symbol]] = {}
    name: str
    lower: int | None
    upper: Dim | None
    multiple_of: int


class Binary(Atom):
    """Base of the two-operand atoms."""

    __slots__ = ("a", "b")
    _interned: ClassVar[dict[tuple[Any, ...], Binary]] = {}
    a: Dim
    b: Dim


class FloorDiv(Binary):
    """The atom ``a // b``, rounded toward minus infinity."""

    __slots__ = ()


class Mod(Binary):
    """The atom ``a % b``, with the sign of the divisor."""

    __slots__ = ()


class Min(Binary):
    """The atom ``min(a, b)``."""

    __slots__ = ()


class Max(Binary):
    """The atom ``max(a, b)``."""

    __slots__ = ()


class Expr:
    """A non-constant polynomial. `terms` are (coefficient, atoms) pairs in canonical order; the constant term
    has no atoms. `depth` is the nesting depth of two-operand atoms. An expression that is no symbol has no
    `name`, `lower`, `upper` and `multiple_of`.
    """

    __slots__ = ("_bounds", "_free", "_function", "_key", "_text", "_tried", "depth", "terms")
    _interned: ClassVar[dict[tuple[tuple[int, Monomial], ...], Expr]] = {}
    terms: tuple[tuple[int, Monomial], ...]
    depth: int
    _bounds: Interval | None
    _free: frozenset[Expr] | None
    _function: Callable[[Mapping[str, Any]], Any] | int  # or the number of evaluations without one
    _key: Any
    _text: str | None
    _tried: int  # replacements of atoms that did not prove the expression non-negative

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __bool__(self) -> bool:
        raise TypeError(
            f"the truth of '{self}' is not known at compile time; use prove_eq, prove_le or prove_lt"
        )

    def _no_order(self, other: object) -> bool:
        raise TypeError(
            f"the order of '{self}' and '{other}' is not known at compile time; "
            "fix these sizes (in a pass: use prove_le or prove_lt)"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _no_order

    def __add__(self, other: Dim) -> Dim:
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _add(self, _scale(other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        return _add(other, _scale(self, -1))

    def __neg__(self) -> Dim:
        return _scale(self, -1)

    def __mul__(self, other: Dim) -> Dim:
        return _mul(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return _floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return _floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return _mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return _mod(other, self)

    @property
    def atom(self) -> Atom | None:
        """The atom, if this expression consists of a single one."""
        if len(self.terms) == 1:
            coefficient, atoms = self.terms[0]
            if coefficient == 1 and len(atoms) == 1:
                return atoms[0]
        return None

    def _symbol(self) -> Symbol:
        atom = self.atom
        if not isinstance(atom, Symbol):
            raise AttributeError(f"'{self}' is not a symbol")
        return atom

    @property
    def name(self) -> str:
        """The name of a symbol."""
        return self._symbol().name

    @property
    def lower(self) -> int | None:
        """The least value of a symbol, inclusive."""
        return self._symbol().lower

    @property
    def upper(self) -> Any:
        """The largest value of a symbol, inclusive; None if it is not bounded."""
        return self._symbol().upper

    @property
    def multiple_of(self) -> int:
        """A number that divides every value of a symbol."""
        return self._symbol().multiple_of

    def __str__(self) -> str:
        if self._text is None:
            self._text = _expr_text(self)
        return self._text

    __repr__ = __str__

    def __reduce__(self) -> Any:
        atom = self.atom
        if isinstance(atom, Symbol):
            return symbol, (atom.name, atom.lower, atom.upper, atom.multiple_of)
        if isinstance(atom, Binary):
            return _rebuild_atom, (type(atom).__name__, atom.a, atom.b)
        return _rebuild, ([(c, [a.expr for a in atoms]) for c, atoms in self.terms],)

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self


Dim = Union[int, Expr]  # noqa: UP007 - evaluated at run time by users of the alias


def _rebuild(terms: Iterable[tuple[int, Sequence[Expr]]]) -> Dim:
    total: Dim = 0
    for coefficient, factors in terms:
        term: Dim = coefficient
        for f in factors:
            term = term * f
        total = total + term
    return total


def _rebuild_atom(kind: str, a: Dim, b: Dim) -> Dim:
    return {"FloorDiv": _floordiv, "Mod": _mod, "Min": smin, "Max": smax}[kind](a, b)


# -- Construction --------------------------------------------------------------------------------------------


def _monomial_key(atoms: Monomial) -> tuple[Any, ...]:
    return (-len(atoms), tuple(a.key for a in atoms))


def _make(terms: dict[Monomial, int]) -> Dim:
    items = [(m, c) for m, c in terms.items() if c]
    if not items:
        return 0
    if len(items) == 1 and not items[0][0]:
        return items[0][1]
    if len(items) > 1:
        items.sort(key=lambda item: _monomial_key(item[0]))
        joined = _join_division(items)
        if joined is not None:
            return joined
    key = tuple((c, m) for m, c in items)
    expr = Expr._interned.get(key)
    if expr is None:
        expr = object.__new__(Expr)
        expr.terms = key
        expr.depth = max([a.depth for m, _ in items for a in m])
        expr._bounds = expr._free = expr._text = expr._key = None
        expr._tried, expr._function = -1, 0
        expr = Expr._interned.setdefault(key, expr)  # one object for all threads
    return expr


def _join_division(items: list[tuple[Monomial, int]]) -> Dim | None:
    """Rewrite ``c*n*(x//n) + c*(x % n)`` to ``c*x``, and with ``x % (k*n)`` divided by n to ``c*(x %
    (k*n))``; None when no such pair occurs.
    """
    for position, (monomial, c) in enumerate(items):
        for k, atom in enumerate(monomial):
            if not isinstance(atom, Mod):
                continue
            rest = monomial[:k] + monomial[k + 1 :]
            quotient = _floordiv(atom.a, atom.b)
            # c * rest * b * (a // b) must occur completely among the terms.
            wanted = _mul(_mul(_from_monomial(rest, c), atom.b), quotient)
            have = {m: n for m, n in items}
            needed = _terms(wanted)
            if not needed or any(have.get(m, 0) != n for m, n in needed.items()):
                if (part := _join_part(items, position, rest, atom)) is not None:
                    return part
                continue
            left = {m: n for p, (m, n) in enumerate(items) if p != position and m not in needed}
            return _add(_make(left), _mul(_from_monomial(rest, c), atom.a))
    return None


def _join_part(items: list[tuple[Monomial, int]], position: int, rest: Monomial, atom: Mod) -> Dim | None:
    if not isinstance(atom.b, int):
        return None
    _, c = items[position]
    for p, (monomial, factor) in enumerate(items):
        for k, other in enumerate(monomial):
            if (
                not isinstance(other, FloorDiv)
                or other.b != atom.b
                or monomial[:k] + monomial[k + 1 :] != rest
            ):
                continue
            whole = other.a.atom if isinstance(other.a, Expr) else None
            if not isinstance(whole, Mod) or not isinstance(whole.b, int) or factor != c * atom.b:
                continue
            # The remainder of `whole.a` may be simpler: (i + 48*j) % 24 is i % 24.
            if whole.b % atom.b == 0 and (whole.a is atom.a or _mod(whole.a, atom.b) is atom.expr):
                left = {m: n for q, (m, n) in enumerate(items) if q not in (p, position)}
                return _add(_make(left), _mul(_from_monomial(rest, c), other.a))
    return None


def _from_monomial(atoms: Monomial, coefficient: int) -> Dim:
    return _make({atoms: coefficient})


def _terms(e: Dim) -> dict[Monomial, int]:
    if isinstance(e, int):
        return {(): e} if e else {}
    return {m: c for c, m in e.terms}


def _add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int) and a == 0:
        return b
    if isinstance(b, int) and b == 0:
        return a
    terms = _terms(a)
    for m, c in _terms(b).items():
        terms[m] = terms.get(m, 0) + c
    return _make(terms)


def _scale(a: Dim, factor: int) -> Dim:
    if isinstance(a, int):
        return a * factor
    if factor == 1:
        return a
    return _make({m: c * factor for c, m in a.terms})


def _mul(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int):
        return _scale(b, a)
    if isinstance(b, int):
        return _scale(a, b)
    terms: dict[Monomial, int] = {}
    for ca, ma in a.terms:
        for cb, mb in b.terms:
            m = tuple(sorted(ma + mb, key=lambda atom: atom.key)) if ma and mb else ma or mb
            terms[m] = terms.get(m, 0) + ca * cb
    return _make(terms)


def _atom_expr(atom: Atom) -> Expr:
    made = _make({(atom,): 1})
    assert isinstance(made, Expr)
    return made


def symbol(name: str, lower: int | None = 0, upper: Dim | None = None, multiple_of: int = 1) -> Expr:
    """The symbol called `name` with inclusive bounds; interned on all arguments. `multiple_of` divides its
    values.

    Raises:
        ValueError: The name is no identifier, or a word of Python or of the textual form.
    """
    key = (name, lower, upper, multiple_of)
    interned = Symbol._interned.get(key)
    if interned is None:
        if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
            raise ValueError(
                f"{name!r} is not a name for a symbolic dimension (letters, digits and _; not a keyword of "
                f"Python, nor one of {', '.join(sorted(RESERVED))})"
            )
        interned = object.__new__(Symbol)
        interned.name, interned.lower, interned.upper, interned.multiple_of = name, lower, upper, multiple_of
        interned.key = (0, name, str(lower), str(upper), multiple_of)
        interned.depth = 0
        interned.expr = _atom_expr(interned)  # before any other thread sees it
        interned = Symbol._interned.setdefault(key, interned)
    return interned.expr


def is_symbol(e: object) -> TypeGuard[Expr]:
    """Whether `e` is a symbol alone."""
    return isinstance(e, Expr) and isinstance(e.atom, Symbol)


def depth_of(e: Dim) -> int:
    """The nesting depth of two-operand atoms in `e`."""
    return 0 if isinstance(e, int) else e.depth


def _order(e: Dim) -> tuple[Any, ...]:
    if isinstance(e, int):
        return (0, e)
    if e._key is None:
        e._key = (1, tuple((_monomial_key(m), c) for c, m in e.terms))
    return e._key


def _binary(kind: type[Binary], a: Dim, b: Dim) -> Expr:
    key = (kind, a, b)
    interned = Binary._interned.get(key)
    if interned is None:
        depth = 1 + max(depth_of(a), depth_of(b))
        if depth > MAX_DEPTH:
            raise SizeError(
                f"a size is computed by more than {MAX_DEPTH} divisions or limits in a row; use fewer"
            )
        interned = object.__new__(kind)
        interned.a, interned.b, interned.depth = a, b, depth
        interned.key = (1 + (FloorDiv, Mod, Min, Max).index(kind), str(a), str(b), _order(a), _order(b))
        interned.expr = _atom_expr(interned)
        interned = Binary._interned.setdefault(key, interned)
    return interned.expr


def _split_multiples(a: Dim, n: Dim) -> tuple[Dim, Dim]:
    """``(q, r)`` with ``a == q*n + r``: `q` collects the terms of `a` that are multiples of `n`, `r` the
    others.
    """
    if isinstance(n, int):
        quotient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for m, c in _terms(a).items():
            if m:
                if c % n == 0:
                    quotient[m] = c // n
                else:
                    # A term is split only by whole multiples, so that 3*i // 2 keeps its single term.
                    rest[m] = c
            else:
                q, r = divmod(c, n)
                if q:
                    quotient[m] = q
                if r:
                    rest[m] = r
        return _make(quotient), _make(rest)
    if len(n.terms) != 1:
        # A polynomial divisor such as seq+1: divide the whole when it is an integer multiple of it, or one
        # term at a time.
        for c, m in _leading(a):
            nc, nm = n.terms[0]
            ratio = _monomial_ratio(c, m, nc, nm)
            if ratio is None:
                continue
            remainder = _add(a, _scale(_mul(ratio, n), -1))
            if len(_terms(remainder)) < len(_terms(a)):
                more, left = _split_multiples(remainder, n)
                return _add(ratio, more), left
        return 0, a
    nc, nm = n.terms[0]
    quotient, rest = {}, {}
    for m, c in _terms(a).items():
        ratio = _monomial_ratio(c, m, nc, nm)
        if ratio is None:
            rest[m] = c
        else:
            for rm, rc in _terms(ratio).items():
                quotient[rm] = quotient.get(rm, 0) + rc
    return _make(quotient), _make(rest)


def _leading(a: Dim) -> tuple[tuple[int, Monomial], ...]:
    return a.terms if isinstance(a, Expr) else ()


def _monomial_ratio(c: int, m: Monomial, nc: int, nm: Monomial) -> Dim | None:
    if c % nc:
        return None
    left = list(m)
    for atom in nm:
        if atom not in left:
            return None
        left.remove(atom)
    return _make({tuple(left): c // nc})


@lru_cache(maxsize=1 << 16)
def _floordiv(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"'{a}' divided by zero")
        if isinstance(a, int):
            return a // b
        if b < 0:
            a, b = _scale(a, -1), -b
        if b == 1:
            return a
    elif isinstance(a, int) and a == 0:
        return 0
    if a is b:
        return 1
    q, r = _split_multiples(a, b)
    if _in_range(r, b):
        return q
    if not (isinstance(q, int) and q == 0):
        return _add(q, _floordiv(r, b))
    if isinstance(r, Expr) and isinstance(b, int):
        g = math.gcd(b, *(c for c, m in r.terms if m))
        if g > 1:  # (4*i + 3) // 6 == (2*i + 1) // 3
            return _floordiv(_make({m: (c // g) for c, m in r.terms}), b // g)
        if (split := _coarse(r, b)) is not None:  # (12*i + j) // 24 == i // 2 for 0 <= j < 12
            g, q, _ = split
            return _floordiv(q, b // g)
        for c, monomial in r.terms:  # (e + y//n) // b == (n*e + y) // (n*b)
            if c == 1 and len(monomial) == 1 and isinstance(atom := monomial[0], FloorDiv):
                if isinstance(atom.b, int) and atom.b > 0:
                    rest = _add(r, _scale(_atom_expr(atom), -1))
                    return _floordiv(_add(_scale(rest, atom.b), atom.a), atom.b * b)
        low, high = bounds(r)
        if low is not None and high is not None and low // b == high // b:
            return low // b
    return _binary(FloorDiv, r, b)


@lru_cache(maxsize=1 << 16)
def _mod(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"'{a}' modulo zero")
        if isinstance(a, int):
            return a % b
        if b in (1, -1):
            return 0
        if b < 0:
            return _binary(Mod, a, b)
    elif isinstance(a, int) and a == 0:
        return 0
    if a is b:
        return 0
    _, r = _split_multiples(a, b)
    if (isinstance(r, int) and r == 0) or _in_range(r, b):
        return r
    if isinstance(r, Expr) and isinstance(b, int):
        atom = r.atom
        if isinstance(atom, Mod) and isinstance(atom.b, int) and atom.b % b == 0:
            return _mod(atom.a, b)
        if isinstance(atom, Symbol) and atom.multiple_of % b == 0:
            return 0
        g = math.gcd(b, *(c for c, m in r.terms if m))
        if g > 1:  # (4*i + 3) % 6 == 2 * ((2*i + 1) % 3) + 1
            constant = _terms(r).get((), 0)
            inner = _make({m: c // g for c, m in r.terms})
            return _add(_scale(_mod(inner, b // g), g), constant % g)
        if (split := _coarse(r, b)) is not None:  # (12*i + j) % 24 == 12 * (i % 2) + j for 0 <= j < 12
            g, q, rest = split
            return _add(_scale(_mod(q, b // g), g), rest)
        low, high = bounds(r)
        if low is not None and high is not None and low // b == high // b:
            return _add(r, -(low // b) * b)
    return _binary(Mod, r, b)


def _coarse(a: Expr, b: int) -> tuple[int, Dim, Dim] | None:
    """``(g, q, r)`` with ``a == g*q + r``, `g` > 1 a divisor of `b` and ``0 <= r < g``. `r` then does not
    affect ``a // b``.
    """
    for g in sorted({math.gcd(c, b) for c, m in a.terms if m} - {1}, reverse=True):
        q, r = _split_multiples(a, g)
        if not isinstance(q, int) and _in_range(r, g):
            return g, q, r
    return None


def _in_range(r: Dim, b: Dim) -> bool:
    """Whether ``0 <= r < b`` is provable."""
    return prove_le(0, r) and prove_lt(r, b)


@lru_cache(maxsize=1 << 16)
def smin(a: Dim, b: Dim) -> Dim:
    """The smaller of two expressions."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if a is b or prove_le(a, b):
        return a
    if prove_le(b, a):
        return b
    x, y = _without_limit(a, b, Min), _without_limit(b, a, Min)
    return _binary(Min, *sorted((a, b), key=_order)) if x is a and y is b else smin(x, y)


@lru_cache(maxsize=1 << 16)
def smax(a: Dim, b: Dim) -> Dim:
    """The larger of two expressions."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if a is b or prove_le(b, a):
        return a
    if prove_le(a, b):
        return b
    x, y = _without_limit(a, b, Max), _without_limit(b, a, Max)
    return _binary(Max, *sorted((a, b), key=_order)) if x is a and y is b else smax(x, y)


def _without_limit(a: Dim, b: Dim, kind: type[Binary]) -> Dim:
    """Simplify `a` in ``kind(a, b)`` so that successive limits do not nest: ``max(max(x, 3) - 2, 1)`` becomes
    ``max(x - 2, 1)``.
    """
    if isinstance(a, int) or not isinstance(b, int):
        return a
    constant = _terms(a).get((), 0)
    atom = _add(a, -constant).atom  # type: ignore[union-attr]
    if isinstance(atom, kind):
        for limit, other in ((atom.a, atom.b), (atom.b, atom.a)):
            if isinstance(limit, int) and (limit + constant <= b if kind is Max else limit + constant >= b):
                return _add(other, constant)
    return a


def unordered_max(a: Dim, b: Dim) -> Dim:
    """The larger of `a` and `b`, without a proof that one always exceeds the other.

    The proof may take long for large expressions.

    Raises:
        SizeError: The expression has too many divisions or limits in a row.
    """
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return a if a is b else _binary(Max, *sorted((a, b), key=_order))


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up."""
    return (a + (b - 1)) // b


# -- Text ----------------------------------------------------------------------------------------------------


def _atom_text(atom: Atom, tight: bool) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    assert isinstance(atom, Binary)
    if isinstance(atom, (Min, Max)):
        return f"{'min' if isinstance(atom, Min) else 'max'}({atom.a}, {atom.b})"
    left, right = (
        str(x) if isinstance(x, int) and x >= 0 or is_symbol(x) else f"({x})" for x in (atom.a, atom.b)
    )
    text = f"{left} {'//' if isinstance(atom, FloorDiv) else '%'} {right}"
    return f"({text})" if tight else text


def _expr_text(e: Expr) -> str:
    """An expression in Python's syntax."""
    parts: list[str] = []
    for c, atoms in e.terms:
        magnitude = abs(c)
        tight = len(atoms) > 1 or c != 1 or len(e.terms) > 1
        factors = [_atom_text(a, tight) for a in atoms]
        if magnitude != 1 or not atoms:
            factors.insert(0, str(magnitude))
        text = "*".join(factors)
        if not parts:
            parts.append(f"-{text}" if c < 0 else text)
        else:
            parts.append(f" - {text}" if c < 0 else f" + {text}")
    return "".join(parts)


# -- Facts ---------------------------------------------------------------------------------------------------

Interval = tuple[int | None, int | None]


def bounds(e: Dim) -> Interval:
    """The least and the greatest value of `e` by interval arithmetic; None where unbounded."""
    if isinstance(e, int):
        return e, e
    interval = e._bounds
    if interval is None:
        interval = e._bounds = _compute_bounds(e)
    return interval


def _compute_bounds(e: Expr) -> Interval:
    low: int | None = 0
    high: int | None = 0
    for c, atoms in e.terms:
        term: Interval = (c, c)
        for position, atom in enumerate(atoms):
            square = position and atoms[position - 1] is atom
            factor = _atom_bounds(atom)
            term = _interval_mul(term, factor)
            if square and len(atoms) == 2 and c > 0 and term[0] is not None:
                term = (max(term[0], 0), term[1])
        low = None if low is None or term[0] is None else low + term[0]
        high = None if high is None or term[1] is None else high + term[1]
    return low, high


def _interval_mul(a: Interval, b: Interval) -> Interval:
    inf = math.inf
    ends_a = (-inf if a[0] is None else a[0], inf if a[1] is None else a[1])
    ends_b = (-inf if b[0] is None else b[0], inf if b[1] is None else b[1])
    products = [0 if x == 0 or y == 0 else x * y for x in ends_a for y in ends_b]
    low, high = min(products), max(products)
    return (None if low == -inf else int(low), None if high == inf else int(high))


def _atom_bounds(atom: Atom) -> Interval:
    if isinstance(atom, Symbol):
        return atom.lower, None if atom.upper is None else bounds(atom.upper)[1]
    assert isinstance(atom, Binary)
    (al, ah), (bl, bh) = bounds(atom.a), bounds(atom.b)
    if isinstance(atom, Mod):
        if bl is not None and bl > 0:
            high = None if bh is None else bh - 1
            if al is not None and al >= 0 and ah is not None:
                high = ah if high is None else min(high, ah)
            return 0, high
        return None, None
    if isinstance(atom, FloorDiv):
        if bl is None or bl <= 0:
            return None, None
        low = None if al is None else (al // bl if al < 0 else 0 if bh is None else al // bh)
        high = None if ah is None else (ah // bl if ah >= 0 else -1 if bh is None else ah // bh)
        return low, high
    if isinstance(atom, Min):
        highs = [x for x in (ah, bh) if x is not None]
        return (None if al is None or bl is None else min(al, bl)), (min(highs) if highs else None)
    lows = [x for x in (al, bl) if x is not None]
    return (max(lows) if lows else None), (None if ah is None or bh is None else max(ah, bh))


def prove_eq(a: Dim, b: Dim) -> bool:
    """Whether ``a == b`` is provable."""
    if a is b:
        return True
    difference = _add(a, _scale(b, -1))
    return isinstance(difference, int) and difference == 0


def prove_le(a: Dim, b: Dim) -> bool:
    """Whether ``a <= b`` is provable; False means unknown."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    if isinstance(a, int) and a == 0:
        low = bounds(b)[0]
        if low is not None and low >= 0:
            return True
    return _non_negative(_add(b, _scale(a, -1)), 6)


def prove_lt(a: Dim, b: Dim) -> bool:
    """Whether ``a < b`` is provable."""
    return prove_le(_add(a, 1), b)


def prove_divisible(a: Dim, n: int) -> bool:
    """Whether `n` provably divides `a`."""
    remainder = a % n
    return isinstance(remainder, int) and remainder == 0


def _non_negative(e: Dim, depth: int) -> bool:
    if isinstance(e, int):
        return e >= 0
    low = bounds(e)[0]
    if low is not None and low >= 0:
        return True
    if depth <= e._tried:
        return False
    if depth and _weaker_is_non_negative(e, depth):
        return True
    e._tried = depth
    return False


def _weaker_is_non_negative(e: Expr, depth: int) -> bool:
    # Replace one atom by a symbolic bound of it that can only make the expression smaller.
    for c, atoms in e.terms:
        for position, atom in enumerate(atoms):
            others = atoms[:position] + atoms[position + 1 :]
            if atom in others or any(
                (_atom_bounds(o)[0] or -1) < 0 and _atom_bounds(o)[0] != 0 for o in others
            ):
                continue
            if (
                isinstance(atom, FloorDiv)
                and isinstance(atom.b, int)
                and atom.b > 0
                and c % atom.b == 0
                and not others
            ):
                # c*(a//b) lies between (c/b)*(a - b + 1) and (c/b)*a: closer than any bound of a//b alone.
                least = atom.a if c < 0 else _add(atom.a, 1 - atom.b)
                if _non_negative(_add(e, _add(_scale(atom.expr, -c), _scale(least, c // atom.b))), depth - 1):
                    return True
            for bound in _symbolic_bounds(atom, upper=c < 0):
                # Replacing a term that is the atom alone by a number gives no more than interval arithmetic,
                # and every order of such steps would be tried.
                if (not others) if isinstance(bound, int) else atom in _all_atoms(bound):
                    continue
                # Only this term is replaced: sound since each occurrence may be bounded on its own.
                weaker = _add(e, _mul(_from_monomial(others, c), _add(bound, _scale(atom.expr, -1))))
                if _non_negative(weaker, depth - 1):
                    return True
    return False


def _symbolic_bounds(atom: Atom, upper: bool) -> list[Dim]:
    if isinstance(atom, Symbol):
        if upper:
            return [atom.upper] if isinstance(atom.upper, Expr) else []
        return [atom.lower] if atom.lower is not None and bounds(atom.expr)[1] is None else []
    assert isinstance(atom, Binary)
    if isinstance(atom, Min):
        return [atom.a, atom.b] if upper else []
    if isinstance(atom, Max):
        return [] if upper else [atom.a, atom.b]
    if isinstance(atom, Mod):
        low = bounds(atom.b)[0]
        if upper and low is not None and low > 0:
            limits: list[Dim] = [_add(atom.b, -1)]
            if prove_le(0, atom.a):
                limits.append(atom.a)
            return limits
        return []
    if isinstance(atom, FloorDiv) and upper:
        low = bounds(atom.b)[0]
        if (
            low is not None
            and low > 0
            and isinstance(atom.a, Expr)
            and bounds(atom.a)[0] is not None
            and prove_le(0, atom.a)
        ):
            return [atom.a]
    return []


def _all_atoms(e: Dim) -> set[Atom]:
    return set() if isinstance(e, int) else {a for _, m in e.terms for a in m}


def free_symbols(e: Dim) -> frozenset[Expr]:
    """The symbols that occur in `e` (not those of their bounds)."""
    if isinstance(e, int):
        return frozenset()
    if e._free is None:
        symbols: set[Expr] = set()
        for _, atoms in e.terms:
            for atom in atoms:
                if isinstance(atom, Binary):
                    symbols |= free_symbols(atom.a) | free_symbols(atom.b)
                else:
                    symbols.add(atom.expr)
        e._free = frozenset(symbols)
    return e._free
