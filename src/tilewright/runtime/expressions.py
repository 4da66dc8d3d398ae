"""Sizes written as formulas in an artifact's metadata (``"4*batch*((seq + 31) // 32)"``), and the values of
their symbols.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tilewright.errors import ArtifactError, ShapeError

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}

Formula = int | str


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ArtifactError(f"the metadata holds a formula that cannot be read: {text!r}") from error


def evaluate(formula: Formula, symbols: Mapping[str, int]) -> int:
    """The value of a formula; floor division and modulo as in Python.

    Raises:
        ArtifactError: The formula has a syntax or a symbol that is not known.
    """
    return formula if isinstance(formula, int) else _evaluate(_parsed(formula), symbols, formula)


def _evaluate(node: ast.expr, symbols: Mapping[str, int], text: str) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if name in symbols:
            return symbols[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left, symbols, text), _evaluate(right, symbols, text))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, symbols, text)
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluate(a, symbols, text) for a in args))
    raise ArtifactError(f"the metadata holds a formula that cannot be read: {text!r}")


def solve_symbols(
    solver: Sequence[Mapping[str, Any]], names: Sequence[str], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    """Values of the symbolic dimensions from the shapes of the inputs.

    A step of `solver` has ``input`` and ``dim``, which select a size. With ``symbol``, ``coefficient``,
    ``offset``, ``lower`` and ``upper`` it solves ``size = coefficient * symbol + offset`` and compares the
    bounds; with ``expr`` it compares the size with a formula.

    Raises:
        ShapeError: An input contradicts its declaration, another input, or a bound.
    """
    symbols: dict[str, int] = {}
    for step in solver:
        k, d = step["input"], step["dim"]
        size = int(shapes[k][d])
        what = f"input '{names[k]}' has size {size} in dimension {d}"
        if "symbol" not in step:
            wanted = evaluate(step["expr"], symbols)
            if wanted != size:
                raise ShapeError(
                    f"{what}, expected {step['expr']}"
                    + ("" if isinstance(step["expr"], int) else f" = {wanted}")
                )
            continue
        coefficient = evaluate(step["coefficient"], symbols)
        value, rest = divmod(size - evaluate(step["offset"], symbols), coefficient) if coefficient else (0, 1)
        lower, upper = step["lower"], step["upper"]
        if rest or (lower is not None and value < lower) or (upper is not None and value > upper):
            raise ShapeError(f"{what}: '{step['symbol']}' must be between {lower} and {upper}")
        symbols[step["symbol"]] = value
    return symbols
