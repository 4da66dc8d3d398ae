"""Index expressions whose parts have values of their own, for languages whose compilers leave to the program
what others do: they neither move invariant parts out of loops nor compute common parts once.

A part is defined at the beginning of the innermost loop on whose variable it depends, or of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...ir.substitution import substitute
from ...ir.symbolic import Atom, Binary, Dim, free_symbols
from .dialect import Dialect, Register
from .index_text import IndexText, Variable


@dataclass
class _Scope:
    """The kernel or a loop, and what is defined at its beginning."""

    symbols: set[str]
    """The symbols whose variables it defines."""
    define: Callable[[str], str]
    """Defines a value at the beginning, and returns its name."""
    known: dict[str, str] = field(default_factory=dict)
    """The names of values by their texts."""


class NamedIndexText(IndexText):
    """Prints index expressions in 32 bits. A symbol in `constants` is a number: its loop is written out."""

    def __init__(
        self,
        dialect: Dialect,
        unknown: Callable[[str], Variable],
        call: Callable[[str, Register], str],
    ) -> None:
        super().__init__(dialect, unknown, call)
        self.constants: dict[str, int] = {}
        self.scopes: list[_Scope] = []

    @contextmanager
    def scope(self, symbols: set[str], define: Callable[[str], str]) -> Iterator[None]:
        """Statements inside the kernel or a loop, which defines the variables of `symbols`. `define` defines
        a value, given its text, at the beginning, and returns its name.
        """
        self.scopes.append(_Scope(symbols, define))
        yield
        self.scopes.pop()

    def bind(self, symbol: str, variable: Variable) -> None:
        if self.scopes:
            self.scopes[0].symbols.add(symbol)
        super().bind(symbol, variable)

    def text(self, e: Dim, dynamic: Mapping[str, Variable] | None = None) -> tuple[str, int]:
        return self._by_levels(self.fixed(e), {} if dynamic is None else dynamic), 32

    def address(self, e: Dim, size: Dim, dynamic: Mapping[str, Variable]) -> str:
        return self.text(e, dynamic)[0]

    def condition(self, conditions: tuple[Dim, ...], dynamic: Mapping[str, Variable] | None = None) -> str:
        """Whether all `conditions` are at least 0: ``true`` or ``false`` if that is known."""
        texts = {self._at_least_zero(self.fixed(e), dynamic): None for e in conditions}
        texts.pop("true", None)
        return "false" if "false" in texts else " && ".join(texts) or "true"

    def fixed(self, e: Dim) -> Dim:
        """`e` with the numbers of loops that are written out."""
        if isinstance(e, int) or not self.constants:
            return e
        return substitute(e, {s: self.constants[s.name] for s in free_symbols(e) if s.name in self.constants})

    # -- Parts -----------------------------------------------------------------------------------------------

    def _side(self, e: Dim, bits: int, dynamic: Mapping[str, Variable]) -> str:
        return self._by_levels(e, dynamic)

    def _by_levels(self, e: Dim, dynamic: Mapping[str, Variable]) -> str:
        """A sum as a value of each scope on whose variables it depends, and the rest in place."""
        if isinstance(e, int):
            return self.literal(e, 32)
        levels: dict[int, Dim] = {}
        rest: Dim = 0
        for c, atoms in e.terms:
            term: Dim = c
            for atom in atoms:
                term = term * atom.expr
            level = self._level(term, dynamic) if atoms else None
            if level is None:
                rest = rest + term
            else:
                levels[level] = levels.get(level, 0) + term
        text = ""
        for level in sorted(levels):
            part = self._sum(levels[level], 32, dynamic)
            text = self._named(level, f"({text} + {part})" if text else part)
        if rest == 0:
            return text or "0"
        return f"({text} + {self._sum(rest, 32, dynamic)})" if text else self._sum(rest, 32, dynamic)

    def _level(self, e: Dim, dynamic: Mapping[str, Variable]) -> int | None:
        """The innermost scope whose variables an expression has; None if some are not those of scopes."""
        level = 0
        for s in free_symbols(e):
            if s.name in dynamic:
                return None
            levels = [k for k, scope in enumerate(self.scopes) if s.name in scope.symbols]
            if not levels and s.name in self.variables:
                return None
            level = max(level, *levels, 0)
        return level if self.scopes else None

    def _named(self, level: int, text: str) -> str:
        """The name of a value that is defined at the beginning of a scope."""
        if re.fullmatch(r"\w+", text):
            return text
        scope = self.scopes[level]
        if text not in scope.known:
            scope.known[text] = scope.define(text)
        return scope.known[text]

    def _atom(self, atom: Atom, bits: int, dynamic: Mapping[str, Variable]) -> str:
        text = super()._atom(atom, bits, dynamic)
        if not isinstance(atom, Binary) or (level := self._level(atom.expr, dynamic)) is None:
            return text
        return self._named(level, text)


__all__ = ["NamedIndexText"]
