"""Conditions on sizes: comparisons of formulas over symbols, joined by ``and``, as Python writes them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from .symbolic import Dim, Expr, bounds, free_symbols, prove_le, symbol
from .symbolic_text import of_node


@dataclass(frozen=True)
class Condition:
    """A condition on sizes, which holds where every expression of `guards` is >= 0."""

    text: str
    """The condition as it was written."""
    guards: tuple[Dim, ...]
    """Expressions over the symbols."""

    @property
    def never_holds(self) -> bool:
        """Whether the symbols' bounds show that no sizes meet the condition."""
        sums = [a if a is b else a + b for a in self.guards for b in self.guards]
        return any((high := bounds(e)[1]) is not None and high < 0 for e in sums)

    def implies(self, other: Condition) -> bool:
        """Whether it is shown that all sizes that meet this condition meet `other`."""
        return all(prove_le(0, e) or any(prove_le(own, e) for own in self.guards) for e in other.guards)


def parse_condition(text: str, symbols: Mapping[str, Expr]) -> Condition:
    """The condition that `text` writes over `symbols`: ``"16 < n <= 64 and m % 8 == 0"``.

    Raises:
        ValueError: it is no conjunction of comparisons, or has an unknown symbol; the message quotes it.
    """
    tree = _tree(text)
    guards: list[Dim] = []
    for node in tree.values if isinstance(tree, ast.BoolOp) else [tree]:
        assert isinstance(node, ast.Compare)
        sides = [of_node(side, symbols, text) for side in (node.left, *node.comparators)]
        for a, compare, b in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(compare, (ast.LtE, ast.Lt, ast.Eq)):
                guards.append(b - a - isinstance(compare, ast.Lt))
            if isinstance(compare, (ast.GtE, ast.Gt, ast.Eq)):
                guards.append(a - b - isinstance(compare, ast.Gt))
    return Condition(" ".join(text.split()), tuple(guards))


def check_condition(text: str) -> None:
    """Check that `text` is a condition over some symbols.

    Raises:
        ValueError: it is none, or has no symbol.
    """
    names = {node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)} - {"min", "max"}
    guards = parse_condition(text, {name: symbol(name, 0, None) for name in names}).guards
    if not any(free_symbols(e) for e in guards):
        raise ValueError(f"'{text}' has no symbol of a size")


def _tree(text: str) -> ast.BoolOp | ast.Compare:
    form = "write comparisons of sizes, joined by 'and': \"16 < n <= 64 and m % 8 == 0\""
    if not isinstance(text, str):
        raise ValueError(f"a condition is text; {form}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ValueError(f"'{text}' is no condition; {form}") from None
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    known = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq)
    for part in parts:
        if not isinstance(part, ast.Compare) or not all(isinstance(op, known) for op in part.ops):
            raise ValueError(f"'{ast.unparse(part)}' is no comparison by <, <=, >, >= or ==; {form}")
    assert isinstance(tree, (ast.BoolOp, ast.Compare))
    return tree


__all__ = ["Condition", "check_condition", "parse_condition"]
