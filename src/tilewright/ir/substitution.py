"""Substitute, evaluate and linearize symbolic integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .symbolic import (
    Binary,
    Dim,
    Expr,
    FloorDiv,
    Min,
    Mod,
    Monomial,
    Symbol,
    _add,
    _make,
    _mul,
    _rebuild_atom,
    free_symbols,
)


def substitute(e: Dim, mapping: Mapping[Expr, Dim]) -> Dim:
    """`e` with symbols replaced, simplified anew."""
    if isinstance(e, int) or not mapping or free_symbols(e).isdisjoint(mapping):
        return e
    return _substitute(e, mapping, {})


def _substitute(e: Dim, mapping: Mapping[Expr, Dim], memo: dict[Expr, Dim]) -> Dim:
    if isinstance(e, int) or free_symbols(e).isdisjoint(mapping):
        return e
    if e in memo:
        return memo[e]
    total: Dim = 0
    for c, atoms in e.terms:
        term: Dim = c
        for atom in atoms:
            if isinstance(atom, Binary):
                a, b = _substitute(atom.a, mapping, memo), _substitute(atom.b, mapping, memo)
                term = _mul(term, _rebuild_atom(type(atom).__name__, a, b))
            else:
                term = _mul(term, mapping.get(atom.expr, atom.expr))
        total = _add(total, term)
    memo[e] = total
    return total


def evaluate(e: Dim, values: Mapping[str, Any]) -> Any:
    """The value of `e`; `values` may also hold NumPy integer arrays, which broadcast.

    Raises:
        KeyError: a symbol has no value.
    """
    if isinstance(e, int):
        return e
    total: Any = 0
    for c, atoms in e.terms:
        term: Any = c
        for atom in atoms:
            if isinstance(atom, Symbol):
                value = values[atom.name]
            else:
                assert isinstance(atom, Binary)
                a, b = evaluate(atom.a, values), evaluate(atom.b, values)
                if isinstance(atom, FloorDiv):
                    value = a // b
                elif isinstance(atom, Mod):
                    value = a % b
                elif isinstance(a, int) and isinstance(b, int):
                    value = min(a, b) if isinstance(atom, Min) else max(a, b)
                else:
                    import numpy as np

                    value = np.minimum(a, b) if isinstance(atom, Min) else np.maximum(a, b)
            term = term * value
        total = total + term
    return total


def linear_in(e: Dim, sym: Expr) -> tuple[Dim, Dim] | None:
    """``(coefficient, rest)`` with ``e == coefficient*sym + rest``, neither containing `sym`; None when not
    affine in it.
    """
    if isinstance(e, int) or sym not in free_symbols(e):
        return 0, e
    target = sym.atom
    coefficient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for c, atoms in e.terms:
        if target in atoms:
            k = atoms.index(target)
            others = atoms[:k] + atoms[k + 1 :]
            if target in others:
                return None
            if any(isinstance(o, Binary) and sym in free_symbols(o.expr) for o in others):
                return None
            coefficient[others] = coefficient.get(others, 0) + c
        else:
            if any(isinstance(o, Binary) and sym in free_symbols(o.expr) for o in atoms):
                return None
            rest[atoms] = c
    return _make(coefficient), _make(rest)


__all__ = ["evaluate", "linear_in", "substitute"]
