"""Symbolic integers as text: Python's syntax in, an `Expr` (or an int) out, and back."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from .symbolic import Atom, Binary, Dim, Expr, FloorDiv, Max, Min, Symbol, is_symbol, smax, smin


def parse(text: str, symbols: Mapping[str, Expr]) -> Dim:
    """The expression written in Python syntax over `symbols`.

    Raises:
        ValueError: a syntax error or an unknown symbol, with its column.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"column {error.offset}: '{text}' is not an index expression") from None

    def build(node: ast.expr) -> Dim:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in symbols:
                known = ", ".join(sorted(symbols)) or "none"
                raise ValueError(
                    f"column {node.col_offset + 1}: unknown symbol '{node.id}' in '{text}' (known: {known})"
                )
            return symbols[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -build(node.operand)
        if isinstance(node, ast.BinOp):
            a, b = build(node.left), build(node.right)
            if isinstance(node.op, ast.Add):
                return a + b
            if isinstance(node.op, ast.Sub):
                return a - b
            if isinstance(node.op, ast.Mult):
                return a * b
            if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
                if isinstance(b, int) and b == 0:
                    raise ValueError(f"column {node.col_offset + 1}: division by zero in '{text}'")
                return a // b if isinstance(node.op, ast.FloorDiv) else a % b
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("min", "max")
            and node.args
        ):
            values = [build(a) for a in node.args]
            total = values[0]
            for v in values[1:]:
                total = smin(total, v) if node.func.id == "min" else smax(total, v)
            return total
        raise ValueError(f"column {getattr(node, 'col_offset', 0) + 1}: cannot read '{text}' as an index expression")

    return build(tree)


def _atom_text(atom: Atom, tight: bool) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    assert isinstance(atom, Binary)
    if isinstance(atom, (Min, Max)):
        return f"{'min' if isinstance(atom, Min) else 'max'}({atom.a}, {atom.b})"
    left, right = (str(x) if isinstance(x, int) and x >= 0 or is_symbol(x) else f"({x})" for x in (atom.a, atom.b))
    text = f"{left} {'//' if isinstance(atom, FloorDiv) else '%'} {right}"
    return f"({text})" if tight else text


def written(e: Expr) -> str:
    """An expression in Python's syntax; `Expr` keeps it."""
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
