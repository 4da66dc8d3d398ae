"""Data dependences between iterations of loop nests.

Two accesses to a buffer, of which at least one writes, *conflict* when they touch one element; their order
must not change. `distance` compares the indices of two accesses and returns how many iterations of each loop
lie between them when they touch one element. The primitives of `schedule/` refuse what would change the order
of conflicting accesses, and `analysis.witness` finds iterations that show it.

That two accesses have the same index in a dimension is an equation. Its unknowns are differences, between the
two iterations, of loop variables and of their quotients and remainders (which `fuse` makes). An unknown is
determined where its coefficient exceeds the range of all other terms, or where all other terms are multiples
of a number larger than its own range, since the digits of a number in a mixed radix are unique. That is exact
for the indices that primitives make of plain axes. An index that strictly grows with one variable, such as
``i * i``, determines it, too. Other indices leave differences unknown, and an unknown difference counts as a
conflict.

Sources: Banerjee, "Dependence Analysis for Supercomputing", 1988 (ranges of terms); Maslov,
"Delinearization: an efficient way to break multiloop dependence equations", 1992 (one digit after another).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from ..dialects import loop
from ..dialects.elements import Elements, Statement
from ..dialects.tensor import free_symbols_of, is_dynamic_symbol
from ..ir import notes
from ..ir.core import Operation, Value
from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import (
    Dim,
    Expr,
    FloorDiv,
    Min,
    Mod,
    Symbol,
    bounds,
    free_symbols,
    prove_eq,
    prove_le,
    symbol,
)
from .index_maps import divisions, flatten_index, product
from .loop_nest import (
    Access,
    Touch,
    accesses_of,
    address,
    enclosing,
    enclosing_loops,
    inside,
    interval_of,
    keeps_contents,
    resolved,
)
from .sample_points import fails_somewhere

LoopPair = tuple[loop.For, loop.For]
"""The loops of two accesses whose iterations are compared: the same loop twice, or two neighbours."""


def conflicting_pairs(root: Operation, *, shared: bool = False) -> Iterator[tuple[Touch, Touch]]:
    """Yield pairs of accesses inside `root` to one memory, of which at least one writes; the earlier in the
    program first. An access is paired with itself, too.

    A buffer is left out if an iteration of `root` has one of its own: one allocated inside, and (unless
    `shared`) one that only `root` uses, which `compact` moves inside.
    """
    sharing = Sharing.of(root)
    for buffer, accesses in _by_memory(root, sharing).items():
        alloc = buffer.defining_op
        if alloc is None or not (inside(alloc, root) or (not shared and _is_private(buffer, root))):
            yield from _conflicting(itertools.combinations_with_replacement(accesses, 2), sharing)


def pairs_between(first: loop.For, second: loop.For) -> Iterator[tuple[Touch, Touch]]:
    """Yield pairs of accesses to one memory, one inside each of two loops, of which at least one writes."""
    sharing = Sharing.of(first)
    later = _by_memory(second, sharing)
    for buffer, accesses in _by_memory(first, sharing).items():
        yield from _conflicting(itertools.product(accesses, later.get(buffer, ())), sharing)


def _by_memory(root: Operation, sharing: Sharing) -> dict[Value, list[Touch]]:
    """The accesses inside `root`: those to buffers that share memory with others together, and those to each
    other buffer.
    """
    accesses: dict[Value, list[Touch]] = {}
    for op in root.walk():
        for touch in touches_of(op):
            accesses.setdefault(sharing.first(touch.buffer), []).append(touch)
    return accesses


def _conflicting(pairs: Iterable[tuple[Touch, Touch]], sharing: Sharing) -> Iterator[tuple[Touch, Touch]]:
    return ((a, b) for a, b in pairs if (writes(a) or writes(b)) and sharing.may_be_same(a.buffer, b.buffer))


def touches_of(op: Operation) -> Sequence[Touch]:
    """The reads and writes in buffers of an operation itself."""
    if isinstance(op, (loop.Load, loop.Store, loop.Accumulate)):
        return (op,)
    return op.touched() if isinstance(op, Statement) else ()


def writes(touch: Touch) -> bool:
    """Whether an access, or a statement, writes."""
    return touch.writes if isinstance(touch, Elements) else not isinstance(touch, loop.Load)


def commute(a: Touch, b: Touch) -> bool:
    """Whether two accesses may change places: both accumulate, with one combiner."""
    return isinstance(a, loop.Accumulate) and isinstance(b, loop.Accumulate) and a.combiner == b.combiner


def depends_on_data(e: Dim) -> bool:
    """Whether an index is one that the kernel reads from a buffer."""
    return any(is_dynamic_symbol(s) for s in free_symbols_of(e))


def distance(
    a: Touch, b: Touch, loops: Sequence[LoopPair], fixed: Iterable[loop.For] = ()
) -> tuple[int | None, ...] | None:
    """Return how many iterations `b` is behind `a` when both touch one element.

    Args:
        a: an access inside the first loop of each pair.
        b: an access to the same memory inside the second loop of each pair.
        loops: the loops to compare.
        fixed: loops around both accesses whose variables are the same for both.

    Returns:
        For each pair the second loop's variable minus the first loop's, None where it is not always the same
        number; None in place of the tuple if the accesses never touch one element.
    """
    system = _System.of_accesses(a, b, loops, fixed)
    pairs = [(x, y) for x, y in places(a, b) if not depends_on_data(x) and not depends_on_data(y)]
    for x, y in (*pairs, *_composed(pairs)):
        system.add(x, y)
    if not system.solve():
        return None
    found = tuple(system.differences.get(first.iv) for first, _ in loops)
    if None in found and (flat := _flat_places(a, b)) is not None:
        # A guarded index may run over the end of its dimension: then only the address tells the element.
        system.add(*flat)
        if not system.solve():
            return None
        found = tuple(system.differences.get(first.iv) for first, _ in loops)
    return found


def _flat_places(a: Touch, b: Touch) -> tuple[Dim, Dim] | None:
    """The addresses of two accesses, unless they are known when the kernel runs only."""
    flat = address(a), address(b)
    return None if any(map(depends_on_data, flat)) else flat


def differences(
    a: Sequence[Dim], b: Sequence[Dim], first: Sequence[Expr], second: Sequence[Expr]
) -> dict[Expr, int | None] | None:
    """Return how far the variables of two points lie apart where the points have the same indices.

    Args:
        a: Indices over the variables `first`.
        b: As many indices over the variables `second`.
        first: Loop variables, with their bounds.
        second: Loop variables, outer ones first.

    Returns:
        For each variable of both its value in the second point minus that in the first, None where it is not
        always the same number; None in place of the dictionary if the indices are never equal.
    """
    common = [s for s in first if s in second]
    system = _System(first, second, [(s, s) for s in common])
    for x, y in zip(a, b, strict=True):
        system.add(x, y)
    return {s: system.differences.get(s) for s in common} if system.solve() else None


def places(a: Touch, b: Touch) -> list[tuple[Dim, Dim]]:
    """Return pairs of numbers, one of each access, that are equal where both touch one element: the indices,
    or the flat addresses if two buffers of different shapes share memory.
    """
    if isinstance(a, Elements) or isinstance(b, Elements):
        shape = a.buffer.type.shape
        if shape != b.buffer.type.shape:
            return [(address(a), address(b))]
        cuts = [d for d in range(1, len(shape)) if _separable(a, d) and _separable(b, d)]
        return list(zip(_indices(a, cuts), _indices(b, cuts), strict=True))
    (x, n), (y, m) = _without_units(a), _without_units(b)
    if a.buffer.type.shape != b.buffer.type.shape and n == m:
        return list(zip(x, y, strict=True))
    if (moved := _at_same_address(a, b)) is not None:
        a = moved
    elif (moved := _at_same_address(b, a)) is not None:
        b = moved
    else:
        return [(address(a), address(b))]
    return _merged(resolved(a, a.indices), resolved(b, b.indices), a.buffer.type.shape)


def _composed(pairs: Sequence[tuple[Dim, Dim]]) -> Iterator[tuple[Dim, Dim]]:
    """Yield the pairs of numbers all of whose digits, in one mixed radix, are pairs among those given: ``e //
    20``, ``e // 5 % 4`` and ``e % 5`` determine ``e``. Fusing and splitting loops makes such indices. For ``e
    = 2 * i + j`` with j < 2, the first one is written as ``i // 10``.
    """
    found: dict[tuple[Dim, Dim], set[tuple[Dim, Dim]]] = {}
    for x, y in pairs:
        (e, *digit), (f, *other) = _digit(x), _digit(y)
        if digit == other:
            found.setdefault((e, f), set()).add((digit[0], digit[1]))
    for pair, digits in found.items():
        step: Dim = 1
        for _ in range(len(pairs)):
            limit = next((n for by, n in digits if by == step), None)
            if limit is None:
                limit = _limit_of_digit(pair, step, pairs)
            if limit is None:
                break
            if limit == 0:
                if step != 1:
                    yield pair
                break
            step = step * limit


def _limit_of_digit(pair: tuple[Dim, Dim], step: Dim, pairs: Sequence[tuple[Dim, Dim]]) -> Dim | None:
    """The limit of the digits ``e // step % limit`` of two numbers, 0 if there is none, where these digits
    are a pair among those given; None if they are not.
    """
    whole = pair[0] // step, pair[1] // step
    for x, y in pairs:
        if whole == (x, y):
            return 0
        first, second = _only_atom(x), _only_atom(y)
        if isinstance(first, Mod) and isinstance(second, Mod) and first.b == second.b:
            limit = first.b
            if (whole[0] % limit, whole[1] % limit) == (x, y):
                return limit
    return None


def _digit(x: Dim) -> tuple[Dim, Dim, Dim]:
    """The number e, its divisor and its limit for ``x = e // divisor % limit``; 0 stands for no limit."""
    atom = _only_atom(x)
    if isinstance(atom, Mod):
        inner = _only_atom(atom.a)
        if isinstance(inner, FloorDiv):
            return inner.a, inner.b, atom.b
        return atom.a, 1, atom.b
    return (atom.a, atom.b, 0) if isinstance(atom, FloorDiv) else (x, 1, 0)


def _only_atom(x: Dim) -> object:
    """The atom that an expression consists of; None for another expression."""
    if isinstance(x, Expr) and len(x.terms) == 1:
        coefficient, atoms = x.terms[0]
        if coefficient == 1 and len(atoms) == 1:
            return atoms[0]
    return None


def _merged(x: Sequence[Dim], y: Sequence[Dim], shape: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """Pairs of indices of two accesses, and one more for neighbouring dimensions that fused loops traverse as
    one: ``f`` for ``f // n`` and ``f % n``.
    """
    pairs = list(zip(x, y, strict=True))
    each = list(pairs)
    sizes, d = list(shape), 0
    while d + 1 < len(pairs):
        (x0, y0), (x1, y1), n = pairs[d], pairs[d + 1], sizes[d + 1]
        joined = x0 * n + x1, y0 * n + y1
        if divisions(joined[0]) < divisions(x0, x1) and divisions(joined[1]) < divisions(y0, y1):
            pairs[d : d + 2], sizes[d : d + 2] = [joined], [sizes[d] * n]
            d = 0
        else:
            d += 1
    return list(dict.fromkeys((*pairs, *each)))


def _without_units(op: Access) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """The indices of an access in terms of loop variables, and the sizes, of the dimensions of more than one
    element.
    """
    shape = op.buffer.type.shape
    long = [d for d, n in enumerate(shape) if not (isinstance(n, int) and n == 1)]
    return resolved(op, [op.indices[d] for d in long]), tuple(shape[d] for d in long)


def _separable(op: Touch, d: int) -> bool:
    """Whether the address of an access is split by `_whole` into indices of the dimensions before `d` and
    indices of those from `d` on.
    """
    if not isinstance(op, Elements):
        return True
    shape = op.buffer.type.shape
    stride = product(shape[d:])
    where = address(op)
    within = interval_of(where - _whole(where, stride), op.points)
    if within is None:
        return False
    # A buffer without elements is not touched.
    sizes = [s for s in shape if isinstance(s, Expr) and isinstance(s.atom, Symbol) and s.lower == 0]
    positive: dict[Expr, Dim] = {s: symbol(s.name, 1, s.upper, s.multiple_of) for s in sizes}
    lower, end, stride = (
        substitute(e, positive) for e in (within.lower, within.lower + within.extent, stride)
    )
    return (
        not fails_somewhere(end, stride)
        and not fails_somewhere(0, lower)
        and prove_le(0, lower)
        and prove_le(end, stride)
    )


def _whole(where: Dim, stride: Dim) -> Dim:
    """The terms of an address that are multiples of a stride."""
    whole: Dim = 0
    for term in _terms(where):
        if prove_eq(term % stride, 0):
            whole = whole + term
    return whole


def _indices(op: Touch, cuts: Sequence[int]) -> list[Dim]:
    """The indices of an access, one for each group of dimensions that end before the `cuts`."""
    shape = op.buffer.type.shape
    if not isinstance(op, Elements):
        groups = itertools.pairwise((0, *cuts, len(shape)))
        return list(resolved(op, [flatten_index(op.indices[i:j], shape[i:j]) for i, j in groups]))
    rest, indices = address(op), []
    for d in cuts:
        stride = product(shape[d:])
        whole = _whole(rest, stride)
        indices.append(whole // stride)
        rest = rest - whole
    return [*indices, rest]


def _terms(e: Dim) -> list[Dim]:
    """The terms of a sum."""
    return [e] if isinstance(e, int) else [product((c, *(x.expr for x in atoms))) for c, atoms in e.terms]


def _at_same_address(op: Access, other: Access) -> Access | None:
    """An access in the block of `op` to the same address of a buffer of the other's shape; None if there is
    none.
    """
    if op.buffer.type.shape == other.buffer.type.shape:
        return op
    block = enclosing(op, loop.Block)
    place = flatten_index(op.indices, op.buffer.type.shape)
    for near in block.body.ops if isinstance(block, loop.Block) else ():
        if (
            isinstance(near, (loop.Load, loop.Store, loop.Accumulate))
            and near.buffer is other.buffer
            and prove_eq(flatten_index(near.indices, near.buffer.type.shape), place)
        ):
            return near
    return None


def _is_private(buffer: Value, root: Operation) -> bool:
    """Whether only `root` uses a buffer, and no iteration of it uses what another has written."""
    accesses = accesses_of(buffer)
    if len(accesses) < len(buffer.users) or not all(inside(op, root) for op in accesses):
        return False  # `compact` does not move a buffer that other statements use
    around = [*enclosing_loops(root), *([root] if isinstance(root, loop.For) else [])]
    return not any(keeps_contents(op, f) for op in accesses for f in around)


class Sharing:
    """Which buffers of a kernel may be the same memory. An output may be that of one of several inputs; two
    outputs never are the same memory, nor are two inputs of which one is overwritten.
    """

    def __init__(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        """`pairs` are outputs, each with an input whose memory it may be."""
        self.pairs = tuple(pairs)
        self._members = frozenset(b for pair in self.pairs for b in pair)

    @classmethod
    def of(cls, root: Operation) -> Sharing:
        """The sharing buffers of the kernel around an operation, or of an operation that is one."""
        kernel = root if isinstance(root, loop.Kernel) else enclosing(root, loop.Kernel)
        if not isinstance(kernel, loop.Kernel):
            return cls(())
        args = kernel.body.args
        first = len(args) - kernel.num_outputs
        return cls((args[first + o], args[i]) for o, i in notes.BUFFER_ALIASES.get(kernel, ()))

    def may_be_same(self, a: Value, b: Value) -> bool:
        """Whether two buffers may be the same memory."""
        return a is b or (a, b) in self.pairs or (b, a) in self.pairs

    def first(self, buffer: Value) -> Value:
        """The first of all buffers that share memory, if `buffer` does; else `buffer`."""
        return self.pairs[0][1] if buffer in self._members else buffer


# -- Equations ---------------------------------------------------------------------------------------------

Range = tuple[Dim | None, Dim | None]
"""Bounds of an unknown in symbols that are the same for both accesses; None: no bound."""


class _Equation:
    """``sum of coefficients * unknowns + rest == 0``.

    `paired` has, by expression of the first access, the coefficients of differences between the value of that
    expression in the second and in the first iteration; `single` has coefficients of expressions of one
    access alone. Symbols in coefficients and `rest` are the same for both.
    """

    def __init__(self, paired: dict[Expr, Dim], single: dict[Expr, Dim], rest: Dim) -> None:
        self.paired, self.single, self.rest = paired, single, rest


class _System:
    """The equations of two accesses that touch one element, and the differences that follow from them."""

    def __init__(
        self, first: Iterable[Expr], second: Iterable[Expr], pairs: Iterable[tuple[Expr, Expr]]
    ) -> None:
        """Begin without equations.

        Args:
            first: The symbols that vary in the first access.
            second: The symbols that vary in the second, outer ones first.
            pairs: Symbols of the first and of the second access that are compared.
        """
        self.differences: dict[Expr, int] = {}
        """The known differences, by expression of the first access."""
        self.equations: list[_Equation] = []
        self.varying = set(first)
        self.renamed: dict[Expr, Dim] = {}
        """The second access's variables that differ from the first's, under names of their own."""
        for s in second:
            upper = None if s.upper is None else substitute(s.upper, self.renamed)
            self.renamed[s] = symbol(f"{s.name}__second", s.lower, upper)
        self.others = {s for s in self.renamed.values() if isinstance(s, Expr)}
        self.partner = {x: self.renamed[y] for x, y in pairs}
        for iv, other in self.partner.items():
            assert isinstance(other, Expr)
            if iv.upper == iv.lower == other.lower == other.upper:
                self.differences[iv] = 0
        self.divisions: dict[tuple[Dim, Dim], bool] = {}
        """Divisions ``(dividend, divisor)`` in the first access; True where their equation is added."""

    @classmethod
    def of_accesses(
        cls, a: Touch, b: Touch, loops: Sequence[LoopPair], fixed: Iterable[loop.For] = ()
    ) -> _System:
        """The system of two accesses, without equations: see `distance`."""
        same = {f.iv for f in fixed}
        points = (set(x.points) if isinstance(x, Elements) else set() for x in (a, b))
        own, others = (sorted(x, key=lambda s: str(s.name)) for x in points)
        first = [f.iv for f in enclosing_loops(a) if f.iv not in same]
        second = [f.iv for f in enclosing_loops(b) if f.iv not in same]
        pairs = [(f.iv, f.iv) for f in enclosing_loops(a) if f.iv in second and inside(b, f)]
        pairs += [(x.iv, y.iv) for x, y in loops]
        if isinstance(a, Elements) and isinstance(b, Elements) and a.op is b.op:
            pairs += [(s, s) for s in own if s in others]
        return cls([*first, *_symbols_of_runs(a), *own], [*second, *others, *_symbols_of_runs(b)], pairs)

    def add(self, x: Dim, y: Dim) -> None:
        """Add the equation that index `x` of the first access is index `y` of the second."""
        self._add(x, substitute(y, self.renamed))

    def _add(self, x: Dim, y: Dim) -> None:
        if (variable := self._variable_of_curve(x, y)) is not None:
            self.differences[variable] = 0
        ours, before = _linear(x, self.varying)
        theirs, after = _linear(y, self.others)
        equation = _Equation({}, {}, after - before)
        for e, coefficient in ours.items():
            partner = self._partner_of(e)
            if partner is not None and partner in theirs and prove_eq(theirs[partner], coefficient):
                del theirs[partner]
                equation.paired[e] = coefficient
                atom = e.atom
                if isinstance(atom, (FloorDiv, Mod)):
                    self.divisions.setdefault((atom.a, atom.b), False)
            else:
                equation.single[e] = -coefficient
        equation.single.update(theirs)
        self.equations.append(equation)

    def _variable_of_curve(self, x: Dim, y: Dim) -> Expr | None:
        """The only variable of `x`, where `x` is no line but strictly grows or falls with it, and `y` is the
        same function of the variable's partner: both are equal only where the variables are.
        """
        variables = free_symbols(x) & self.varying if isinstance(x, Expr) else frozenset()
        if len(variables) != 1:
            return None
        (variable,) = variables
        if variable not in self.partner or linear_in(x, variable) is not None:
            return None
        same = prove_eq(substitute(x, self.partner), y)
        return variable if same and (_grows(x, variable, 1) or _grows(0 - x, variable, 1)) else None

    def _partner_of(self, e: Expr) -> Expr | None:
        """An expression of the first access in the variables of the second; None if one has no partner."""
        if not free_symbols(e) & self.varying <= self.partner.keys():
            return None
        partner = substitute(e, self.partner)
        return partner if isinstance(partner, Expr) else None

    def solve(self) -> bool:
        """Determine differences until no more follow; return False if the equations have no solution."""
        count = -1
        while count != len(self.differences) + len(self.equations):
            count = len(self.differences) + len(self.equations)
            if not all(map(self._use, self.equations)):
                return False
            for (dividend, divisor), added in list(self.divisions.items()):
                if not added and self._equal(dividend // divisor) and self._equal(dividend % divisor):
                    self.divisions[dividend, divisor] = True
                    self._add(dividend, substitute(dividend, self.partner))
            for equation in list(self.equations):
                self.equations += self._parted(equation)
        return True

    def _parted(self, equation: _Equation) -> list[_Equation]:
        """Keep the terms of an equation that are together less than a number which divides all others;
        return an equation of the others, or nothing if there are no such terms.

        From ``x + 4 * y + 64 * z == 0``, with x in -3 .. 3 and y in -15 .. 15, follow ``x + 4 * y == 0`` and
        ``z == 0``.
        """
        terms = [*equation.paired.items(), *equation.single.items()]
        coefficients = [c for _, c in terms if isinstance(c, int)]
        if len(coefficients) < len(terms) or not isinstance(equation.rest, int):
            return []
        ranges = self._ranges(equation, numbers=True)
        for divisor in sorted({abs(c) for c in coefficients}, reverse=True):
            small = {k for k, c in enumerate(coefficients) if c % divisor}
            if not small or len(small) == len(terms):
                continue
            left = equation.rest % divisor
            for rest in (left, left - divisor) if left else (0,):
                low, high = _span(rest, [ranges[k] for k in sorted(small)])
                if max(small) < len(equation.paired):
                    width = _width([terms[k] for k in sorted(small)])
                    if width is not None and isinstance(low, int) and isinstance(high, int):
                        low, high = max(low, rest - width), min(high, rest + width)
                if isinstance(low, int) and isinstance(high, int) and -divisor < low and high < divisor:
                    large = {e for k, (e, _) in enumerate(terms) if k not in small}
                    others = _Equation(
                        {e: c for e, c in equation.paired.items() if e in large},
                        {e: c for e, c in equation.single.items() if e in large},
                        equation.rest - rest,
                    )
                    for e in large:
                        equation.paired.pop(e, None)
                        equation.single.pop(e, None)
                    equation.rest = rest
                    return [others]
        return []

    def _equal(self, e: Dim) -> bool:
        """Whether an expression of the first access has the same value in the second."""
        if isinstance(e, int) or self.differences.get(e) == 0:
            return True
        return all(self.differences.get(v) == 0 for v in free_symbols(e) & self.varying)

    def _use(self, equation: _Equation) -> bool:
        """Determine differences by one equation; return False if it has no solution."""
        while True:
            for e in list(equation.paired):
                if self._equal(e):
                    del equation.paired[e]
                elif e in self.differences:
                    equation.rest = equation.rest + equation.paired.pop(e) * self.differences[e]
            if any(_excluded(equation, self._ranges(equation, numbers)) for numbers in (True, False)):
                return False
            for e in equation.paired:
                values = self._values(equation, e)
                if values is not None:
                    if not values:
                        return False
                    self.differences[e] = values[0]
                    break
            else:
                return True

    def _ranges(self, equation: _Equation, numbers: bool) -> list[tuple[Dim, Range]]:
        """The coefficient and the range of each unknown, those of `paired` first. Ranges are numbers where
        possible, or in symbols where possible.
        """
        result: list[tuple[Dim, Range]] = []
        for e, coefficient in equation.paired.items():
            lower, upper = _range(e, self.varying, numbers)
            width = None if lower is None or upper is None else upper - lower
            result.append((coefficient, (None if width is None else -width, width)))
        both = self.varying | self.others
        return result + [(c, _range(e, both, numbers)) for e, c in equation.single.items()]

    def _values(self, equation: _Equation, e: Expr) -> Sequence[int] | None:
        """The values that a difference may have by an equation, if there is at most one; else None."""
        place = list(equation.paired).index(e)
        for numbers in (True, False):
            unknowns = self._ranges(equation, numbers)
            coefficient, own = unknowns.pop(place)
            values = _by_range(coefficient, _span(equation.rest, unknowns))
            if values is None:
                values = _by_divisor(coefficient, own, equation.rest, [c for c, _ in unknowns])
            if values is not None:
                return values
        return None


def _grows(e: Dim, variable: Expr, least: int) -> bool:
    """Whether an expression grows by `least` or more from each value of a variable to the next."""
    atom = _only_atom(e)
    if isinstance(atom, FloorDiv) and isinstance(atom.b, int):
        return atom.b > 0 and _grows(atom.a, variable, atom.b * least)
    return prove_le(least, substitute(e, {variable: variable + 1}) - e)


def _by_range(coefficient: Dim, rest: Range) -> Sequence[int] | None:
    """The values of x where ``coefficient * x + rest == 0``, from the range of the rest, if there is at most
    one.
    """
    low, high = rest
    if low is None or high is None:
        return None
    if _is_negative(coefficient):
        coefficient, low, high = -coefficient, -high, -low
    if isinstance(coefficient, int) and isinstance(low, int) and isinstance(high, int):
        values = range(-(high // coefficient), -low // coefficient + 1)
        return values if len(values) <= 1 else None
    return (0,) if prove_le(1 - coefficient, low) and prove_le(high, coefficient - 1) else None


def _by_divisor(coefficient: Dim, own: Range, rest: Dim, others: Sequence[Dim]) -> Sequence[int] | None:
    """The values of x in a range where ``coefficient * x + rest`` is a multiple of what all other
    coefficients are multiples of.
    """
    low, high = own
    if low is None or high is None or not others:
        return None
    if all(isinstance(x, int) for x in (coefficient, low, high, rest, *others)):
        assert isinstance(coefficient, int) and isinstance(low, int) and isinstance(high, int)
        assert isinstance(rest, int)
        g = math.gcd(*(c for c in others if isinstance(c, int)))
        common = math.gcd(coefficient, g)
        if rest % common:
            return ()
        step = g // common
        start = -rest // common * pow(coefficient // common, -1, step) % step if step > 1 else 0
        values = range(low + (start - low) % step, high + 1, step)
        return values if len(values) <= 1 else None
    if coefficient in (1, -1) and rest == 0:
        sizes = [-c if _is_negative(c) else c for c in others]
        if all(prove_eq(size % sizes[0], 0) for size in sizes) and prove_le(high, sizes[0] - 1):
            return (0,)
    return None


def _span(rest: Dim, unknowns: Iterable[tuple[Dim, Range]]) -> Range:
    """Bounds of a sum of coefficients times unknowns, plus `rest`."""
    low: Dim | None = rest
    high: Dim | None = rest
    for coefficient, (lower, upper) in unknowns:
        if _is_negative(coefficient):
            lower, upper = upper, lower
        elif not prove_le(0, coefficient):
            return None, None
        low = None if low is None or lower is None else low + coefficient * lower
        high = None if high is None or upper is None else high + coefficient * upper
    return low, high


def _width(terms: Sequence[tuple[Expr, Dim]]) -> int | None:
    """The largest difference of two values of a sum of coefficients times variables or digits of fused ones,
    where the end of a loop over a tile depends on the tile: ``64 * o + i`` with i < min(64, 72 - 64 * o) is
    less than 72, and so it is where o is ``f % 2``. None where no end does.
    """
    low: Dim = 0
    high: Dim = 0
    depends = False
    for e, c in terms:
        if not prove_le(0, c):
            return None
        low = low + c * e
        depends = depends or (isinstance(e.atom, Symbol) and isinstance(e.atom.upper, Expr))
    high = low
    if not depends:
        return None
    for e, _ in sorted(terms, key=lambda term: bounds(term[1])):  # inner variables first
        if isinstance(e.atom, Symbol) and isinstance(e.atom.upper, Expr):
            high = substitute(high, {e: e.atom.upper})
    least, most = bounds(low)[0], _upper(high)
    return None if least is None or most is None else most - least


def _upper(e: Dim) -> int | None:
    """The greatest value of an expression, in which each minimum is one or the other of its operands."""
    for c, atoms in e.terms if isinstance(e, Expr) else ():
        if len(atoms) == 1 and isinstance(atoms[0], Min) and c > 0:
            rest = e - c * atoms[0].expr
            known = [u for x in (atoms[0].a, atoms[0].b) if (u := _upper(rest + c * x)) is not None]
            return min(known, default=None)
    return bounds(e)[1]


def _excluded(equation: _Equation, unknowns: Sequence[tuple[Dim, Range]]) -> bool:
    """Whether an equation has no solution."""
    low, high = _span(equation.rest, unknowns)
    if (low is not None and prove_le(1, low)) or (high is not None and prove_le(high, -1)):
        return True
    numbers = [c for c, _ in unknowns if isinstance(c, int)]
    if not unknowns and _is_no_multiple(equation.rest):
        return True
    if len(numbers) < len(unknowns) or not numbers or not isinstance(equation.rest, int):
        return False
    return equation.rest % math.gcd(*numbers) != 0


def _is_no_multiple(rest: Dim) -> bool:
    """Whether a number is ``a % n - b % n``, where a and b differ by a number that n does not divide."""
    if not isinstance(rest, Expr) or len(rest.terms) != 2:
        return False
    (c, first), (d, second) = rest.terms
    if len(first) != 1 or len(second) != 1 or {c, d} != {1, -1}:
        return False
    x, y = first[0], second[0]
    if not (isinstance(x, Mod) and isinstance(y, Mod)):
        return False
    apart = x.a - y.a
    return x.b == y.b and isinstance(apart, int) and isinstance(x.b, int) and apart % x.b != 0


def _linear(e: Dim, varying: set[Expr]) -> tuple[dict[Expr, Dim], Dim]:
    """Return an index as coefficients of expressions in `varying` symbols, and the rest, which has none."""
    terms: dict[Expr, Dim] = {}
    rest: Dim = 0
    if isinstance(e, int):
        return terms, e
    for c, atoms in e.terms:
        coefficient: Dim = c
        moving: Dim = 1
        for atom in atoms:
            if free_symbols(atom.expr).isdisjoint(varying):
                coefficient = coefficient * atom.expr
            else:
                moving = moving * atom.expr
        if isinstance(moving, Expr):
            terms[moving] = terms.get(moving, 0) + coefficient
        else:
            rest = rest + coefficient
    return terms, rest


def _range(e: Expr, varying: set[Expr], numbers: bool) -> Range:
    """Bounds of an expression over all values of the `varying` symbols."""
    low: Dim | None
    high: Dim | None
    low, high = bounds(e)
    atom = e.atom
    if numbers or atom is None:
        return low, high
    if isinstance(atom, Symbol):
        if isinstance(atom.upper, Expr) and free_symbols(atom.upper).isdisjoint(varying):
            high = atom.upper
    elif isinstance(atom, (FloorDiv, Mod)) and free_symbols_of(atom.b).isdisjoint(varying):
        if isinstance(atom, Mod) and prove_le(1, atom.b):
            return 0, atom.b - 1
        if isinstance(atom, FloorDiv) and isinstance(atom.a, Expr) and prove_le(1, atom.b):
            lower, upper = _range(atom.a, varying, numbers)
            low = low if lower is None else lower // atom.b
            high = high if upper is None else upper // atom.b
    return low, high


def _is_negative(e: Dim) -> bool:
    return e < 0 if isinstance(e, int) else prove_le(e, -1)


def _symbols_of_runs(op: Touch) -> set[Expr]:
    """The symbols that the `loop.runs` around an operation define."""
    symbols: set[Expr] = set()
    parent = op.parent_op
    while parent is not None:
        if isinstance(parent, loop.Runs):
            symbols |= {parent.first, parent.length, parent.value}
        parent = parent.parent_op
    return symbols


__all__ = [
    "LoopPair",
    "Sharing",
    "commute",
    "conflicting_pairs",
    "depends_on_data",
    "distance",
    "pairs_between",
    "places",
    "touches_of",
    "writes",
]
