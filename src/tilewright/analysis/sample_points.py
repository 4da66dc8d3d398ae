"""Values of symbols at which inequalities are tried before they are proved.

An inequality that fails at one point has no proof, and the search for one is long where many bounds nest.
"""

from __future__ import annotations

from ..ir.substitution import evaluate
from ..ir.symbolic import Dim, Expr, Symbol, free_symbols


def fails_somewhere(small: Dim, large: Dim) -> bool:
    """Whether ``small <= large`` fails where all symbols have their least values, or rather large ones."""
    e = large - small
    if isinstance(e, int):
        return e < 0
    return any(value is not None and value < 0 for value in (_value(e, high) for high in (True, False)))


def _value(e: Expr, high: bool) -> int | None:
    """The value of an expression at one of the points; None if that point is outside of a symbol's bounds."""
    values: dict[str, int] = {}
    try:
        for s in sorted(free_symbols(e), key=lambda s: str(s.name)):
            _assign(s, high, values)
        return int(evaluate(e, values))
    except (ArithmeticError, ValueError):
        return None


def _assign(s: Expr, high: bool, values: dict[str, int]) -> None:
    """Give a symbol, after those in its bounds, its largest value (or the fifth, if it has no largest one),
    or its least.

    Raises:
        ValueError: It has no value at this point, or two symbols have its name.
    """
    atom = s.atom
    assert isinstance(atom, Symbol)
    low, up, step = atom.lower, atom.upper, atom.multiple_of
    if isinstance(up, Expr):
        for other in sorted(free_symbols(up), key=lambda s: str(s.name)):
            _assign(other, high, values)
        up = int(evaluate(up, values))
    first = -(-(low if low is not None else 0) // step) * step
    value = (first + 4 * step if up is None else up // step * step) if high else first
    if (low is not None and value < low) or (up is not None and value > up):
        raise ValueError(f"no value of {atom.name}")
    if values.setdefault(atom.name, value) != value:
        raise ValueError(f"two symbols {atom.name}")


__all__ = ["fails_somewhere"]
