"""Parse symbolic integers written in Python's syntax; `Expr.__str__` writes them."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from .symbolic import Dim, Expr, smax, smin


def parse(text: str, symbols: Mapping[str, Expr]) -> Dim:
    """The expression written in Python syntax over `symbols`.

    Raises:
        ValueError: a syntax error or an unknown symbol, with its column.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"column {error.offset}: '{text}' is not an index expression") from None

    return of_node(tree, symbols, text)


def of_node(tree: ast.expr, symbols: Mapping[str, Expr], text: str) -> Dim:
    """The expression of a node of Python's syntax tree of `text`.

    Raises:
        ValueError: it is no expression over `symbols`.
    """

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
        raise ValueError(
            f"column {getattr(node, 'col_offset', 0) + 1}: cannot read '{text}' as an index expression"
        )

    return build(tree)
