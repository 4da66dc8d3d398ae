"""Symbolic index expressions as text, in 32 bits where all values fit, else in 64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ir.symbolic import Atom, Binary, Dim, FloorDiv, Min, Mod, Symbol, bounds, free_symbols, prove_le
from .dialect import Dialect, Register, widened

_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Variable:
    """The variable of a symbol: its text and its width in bits."""

    text: str
    bits: int


def fits(e: Dim) -> bool:
    """Whether `e` and all its parts are provably numbers of 32 bits."""
    if isinstance(e, int):
        return abs(e) <= _LIMIT
    total = 0
    for c, atoms in e.terms:
        term: Dim = c
        for atom in atoms:
            if isinstance(atom, Binary) and not (fits(atom.a) and fits(atom.b)):
                return False
            term = term * atom.expr
        low, high = bounds(term)
        if low is None or high is None:
            return False
        total += max(abs(low), abs(high))
    return total <= _LIMIT


def is_linear(e: Dim, names: frozenset[str]) -> bool:
    """Whether the symbols called `names` occur in sums and products only."""
    if isinstance(e, int):
        return True
    inner = {
        s.name for _, atoms in e.terms for a in atoms if isinstance(a, Binary) for s in free_symbols(a.expr)
    }
    return inner.isdisjoint(names)


class IndexText:
    """Prints index expressions. Symbols are identified by name, so a loop variable keeps its identity when a
    schedule changes its bounds.

    `unknown` is called with the name of a symbol without a variable and must raise or return one. `call`
    returns the name of a function of the scalar dialect on a register type.
    """

    def __init__(
        self,
        dialect: Dialect,
        unknown: Callable[[str], Variable],
        call: Callable[[str, Register], str],
    ) -> None:
        self.dialect, self._unknown, self._call = dialect, unknown, call
        self.variables: dict[str, Variable] = {}

    def bind(self, symbol: str, variable: Variable) -> None:
        """Give a symbol a variable that is the same in the whole kernel."""
        self.variables[symbol] = variable

    def text(self, e: Dim, dynamic: Mapping[str, Variable] | None = None) -> tuple[str, int]:
        """The text of `e` and its width in bits. `dynamic` are the variables of operands ``v0``, ..."""
        names = {} if dynamic is None else dynamic
        bits = 32 if not self.dialect.wide or self._narrow(e, names) else 64
        return self._sum(e, bits, names), bits

    def wide(self, e: Dim, dynamic: Mapping[str, Variable] | None = None) -> str:
        """The text of `e` as a number of 64 bits."""
        text, bits = self.text(e, dynamic)
        return text if bits == 64 or not self.dialect.wide else self.widened(text)

    def address(self, e: Dim, size: Dim, dynamic: Mapping[str, Variable]) -> str:
        """The text of an index into a buffer of `size` elements.

        The index is known to be inside the buffer. Operands in it are computed in 32 bits if the buffer is
        small: sums and products of their low bits are right then.
        """
        high = bounds(size)[1]
        small = high is not None and high <= _LIMIT and is_linear(e, frozenset(dynamic))
        if small and dynamic and self.dialect.wide:
            narrowed = {
                n: Variable(self.dialect.cast_to("i32", v.text), 32) if v.bits == 64 else v
                for n, v in dynamic.items()
            }
            rest: Dim = 0
            for c, atoms in () if isinstance(e, int) else e.terms:
                if not any(isinstance(a, Symbol) and a.name in narrowed for a in atoms):
                    term: Dim = c
                    for atom in atoms:
                        term = term * atom.expr
                    rest = rest + term
            if fits(rest):
                return self._sum(e, 32, narrowed)
        return self.text(e, dynamic)[0]

    def condition(self, conditions: tuple[Dim, ...], dynamic: Mapping[str, Variable] | None = None) -> str:
        """Whether all `conditions` are at least 0."""
        return " && ".join(self._at_least_zero(e, dynamic) for e in conditions)

    def _at_least_zero(self, e: Dim, dynamic: Mapping[str, Variable] | None) -> str:
        """``e >= 0`` with the negative terms on the other side."""
        names = {} if dynamic is None else dynamic
        if isinstance(e, int):
            return "true" if e >= 0 else "false"
        sides: list[Dim] = [0, 0]
        relation = ">="
        for c, atoms in e.terms:
            if not atoms and c == -1 and len(e.terms) > 1:
                relation = ">"
                continue
            term: Dim = abs(c)
            for atom in atoms:
                term = term * atom.expr
            sides[c < 0] = sides[c < 0] + term
        bits = 32 if not self.dialect.wide or self._narrow(e, names) else 64
        left, right = (self._side(side, bits, names) for side in sides)
        return f"{left} {relation} {right}"

    def widened(self, text: str) -> str:
        """A number of 32 bits as one of 64."""
        return widened(self.dialect, self._call, text)

    # -- Parts -----------------------------------------------------------------------------------------------

    def _side(self, e: Dim, bits: int, dynamic: Mapping[str, Variable]) -> str:
        """A side of a comparison."""
        return self._sum(e, bits, dynamic)

    def _narrow(self, e: Dim, dynamic: Mapping[str, Variable]) -> bool:
        if isinstance(e, int) or not dynamic:
            return fits(e)
        return fits(e) and all(dynamic[s.name].bits == 32 for s in free_symbols(e) if s.name in dynamic)

    def literal(self, value: int, bits: int) -> str:
        if bits == 64 and abs(value) > _LIMIT:
            return f"{value}{self.dialect.suffixes.get('i64', '')}"
        return str(value)

    def _sum(self, e: Dim, bits: int, dynamic: Mapping[str, Variable]) -> str:
        """`e` in `bits` bits; each term that fits is computed in 32 bits and then extended."""
        if isinstance(e, int):
            return self.literal(e, bits)
        text = ""
        # Positive terms come first, a constant last.
        for c, atoms in sorted(e.terms, key=lambda term: (not term[1], term[0] < 0)):
            sign = "-" if c < 0 else "+"
            magnitude = self._product(abs(c), atoms, bits, dynamic)
            text = f"{text} {sign} {magnitude}" if text else magnitude if c > 0 else f"-{magnitude}"
        return text if len(e.terms) == 1 and not text.startswith("-") else f"({text})"

    def _product(self, c: int, atoms: tuple[Atom, ...], bits: int, dynamic: Mapping[str, Variable]) -> str:
        if not atoms:
            return self.literal(c, bits)
        term: Dim = c
        for atom in atoms:
            term = term * atom.expr
        inner = 32 if bits == 64 and self._narrow(term, dynamic) else bits
        factors = [self._atom(a, inner, dynamic) for a in atoms]
        if c != 1:
            factors.append(self.literal(c, inner))
        text = " * ".join(factors)
        if inner != bits:
            return self.widened(text)
        return f"({text})" if len(factors) > 1 else text

    def _atom(self, atom: Atom, bits: int, dynamic: Mapping[str, Variable]) -> str:
        if isinstance(atom, Symbol):
            variable = dynamic.get(atom.name) or self.variables.get(atom.name) or self._unknown(atom.name)
            if variable.bits == bits:
                return variable.text
            return self.widened(variable.text) if bits == 64 else self.dialect.cast_to("i32", variable.text)
        assert isinstance(atom, Binary)
        register: Register = "i64" if bits == 64 else "i32"
        if bits == 64 and self._narrow(atom.a, dynamic) and self._narrow(atom.b, dynamic):
            return self.widened(self._operation(atom, "i32", 32, dynamic))
        return self._operation(atom, register, bits, dynamic)

    def _operation(self, atom: Binary, register: Register, bits: int, dynamic: Mapping[str, Variable]) -> str:
        a, b = (self._sum(x, bits, dynamic) for x in (atom.a, atom.b))
        if isinstance(atom, FloorDiv | Mod):
            if prove_le(0, atom.a) and prove_le(1, atom.b):
                return self._division(atom, a, b, register)
            name = "floordiv" if isinstance(atom, FloorDiv) else "mod"
        else:
            name = "min" if isinstance(atom, Min) else "max"
        return f"{self._call(name, register)}({a}, {b})"

    def _division(self, atom: Binary, a: str, b: str, register: Register) -> str:
        """A quotient or remainder of numbers that are not negative, which is cheapest on unsigned numbers."""
        quotient = isinstance(atom, FloorDiv)
        n = atom.b
        if isinstance(n, int) and n & (n - 1) == 0:
            return f"({a} >> {self._shift(n)})" if quotient else f"({a} & {self.literal(n - 1, 32)})"
        unsigned: Register = "u64" if register == "i64" else "u32"
        left, right = (self.dialect.cast_to(unsigned, x) for x in (a, b))
        return self.dialect.cast_to(register, f"({left} {'/' if quotient else '%'} {right})")

    def _shift(self, n: int) -> str:
        return f"{n.bit_length() - 1}{self.dialect.suffixes.get('u32', '')}"


__all__ = ["IndexText", "Variable", "fits", "is_linear"]
