"""Follow integers that are computed from sizes: operations evaluated on arrays of symbolic integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.symbolic import Dim, Expr, prove_eq, prove_le, prove_lt, smax, smin
from ...ir.types import boolean
from .module_builder import FOLLOWED, MAX_FOLLOWED, Content
from .node import Node


class _Unknown(Exception):
    """The result of an operation cannot be determined; the operation is imported as data."""


def follow(node: Node) -> Content | None:
    """Return the elements of an operation's only result, if they follow from known ones, else None."""
    rule = _RULES.get(node.name)
    if rule is None or len(node.op.results) != 1 or node.importer.scalar:
        return None
    shape = node.shape()
    if node.dtype() not in FOLLOWED or None in shape or int(np.prod([d or 0 for d in shape])) > MAX_FOLLOWED:
        return None
    operands = [node.content(k) for k in range(len(node.inputs))]
    if any(c is None for c in operands):
        known = _PARTLY[node.name](node, *operands) if node.name in _PARTLY else None
        if known is not None:
            return np.broadcast_to(known, [d or 0 for d in shape])
        if node.name != "stablehlo.get_dimension_size":
            return None
    try:
        elements = rule(node, *operands)
    except _Unknown:
        return None
    result: Content = np.empty([d or 0 for d in shape], object)
    result[...] = elements
    return result


def _each(function: Callable[..., Any], *operands: Content) -> Any:
    return np.frompyfunc(function, len(operands), 1)(*operands)


def _quotient(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int) and b > 0 and prove_le(0, a):
        return a // b
    if isinstance(a, int) and isinstance(b, int) and b != 0:
        return int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    if prove_le(0, a) and prove_lt(0, b):
        return a // b
    raise _Unknown


def _remainder(a: Dim, b: Dim) -> Dim:
    return a - _quotient(a, b) * b


def _proved(holds: bool, fails: bool) -> bool:
    if holds == fails:
        raise _Unknown
    return holds


def _different(a: Dim, b: Dim) -> bool:
    return prove_lt(a, b) or prove_lt(b, a)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": lambda a, b: _proved(prove_eq(a, b), _different(a, b)),
    "NE": lambda a, b: _proved(_different(a, b), prove_eq(a, b)),
    "LT": lambda a, b: _proved(prove_lt(a, b), prove_le(b, a)),
    "LE": lambda a, b: _proved(prove_le(a, b), prove_lt(b, a)),
    "GT": lambda a, b: _proved(prove_lt(b, a), prove_le(a, b)),
    "GE": lambda a, b: _proved(prove_le(b, a), prove_lt(a, b)),
}


def _logic(numbers: Callable[[Any, Any], Any], flags: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(n: Node, a: Content, b: Content) -> Any:
        if n.dtype() is boolean:
            return _each(flags, a, b)
        if any(isinstance(e, Expr) for e in (*a.reshape(-1), *b.reshape(-1))):
            raise _Unknown
        return _each(numbers, a, b)

    return rule


def _decided(by: bool) -> Callable[..., Content | None]:
    """Return the result of ``and`` or ``or`` if one known operand determines it: False for ``and``, True for
    ``or``.
    """

    def rule(n: Node, *operands: Content | None) -> Content | None:
        flags = [c for c in operands if c is not None and n.dtype() is boolean]
        return next((c for c in flags if all(e is by for e in c.reshape(-1))), None)

    return rule


def _chosen(n: Node, c: Content | None, a: Content | None, b: Content | None) -> Content | None:
    """Return the result of a selection with a known condition; the operand that is not selected need not be
    known.
    """
    if c is None or not c.size:
        return None
    first = c.reshape(-1)[0]
    return (a if first else b) if all(e is first for e in c.reshape(-1)) else None


def _sign(a: Dim) -> int:
    signs = (prove_lt(a, 0), prove_eq(a, 0), prove_lt(0, a))
    if not any(signs):
        raise _Unknown
    return signs.index(True) - 1


def _select(n: Node, c: Content, a: Content, b: Content) -> Any:
    return _each(lambda c, x, y: x if c else y, c, a, b)


def _convert(n: Node, a: Content) -> Any:
    if n.dtype() is boolean and n.inputs[0].type.dtype is not boolean:
        return _each(lambda e: COMPARISONS["NE"](e, 0), a)
    return _each(int if n.inputs[0].type.dtype is boolean else lambda e: e, a)


def _broadcast(n: Node, a: Content, *_: Content) -> Any:
    dims = n.ints("broadcast_dimensions")
    shape = [1] * len(n.shape())
    if dims != sorted(dims):
        raise _Unknown
    for d, size in zip(dims, a.shape, strict=True):
        shape[d] = size
    return a.reshape(shape)


def _slice(n: Node, a: Content) -> Any:
    ranges = zip(n.ints("start_indices"), n.ints("limit_indices"), n.ints("strides"), strict=True)
    return a[tuple(slice(*r) for r in ranges)]


_RULES: dict[str, Callable[..., Any]] = {
    "add": lambda n, a, b: _each(lambda x, y: (x or y) if n.dtype() is boolean else x + y, a, b),
    "subtract": lambda n, a, b: _each(lambda x, y: x - y, a, b),
    "multiply": lambda n, a, b: _each(lambda x, y: (x and y) if n.dtype() is boolean else x * y, a, b),
    "divide": lambda n, a, b: _each(_quotient, a, b),
    "remainder": lambda n, a, b: _each(_remainder, a, b),
    "maximum": lambda n, a, b: _each(smax, a, b),
    "minimum": lambda n, a, b: _each(smin, a, b),
    "clamp": lambda n, low, x, high: _each(lambda l, e, h: smin(smax(e, l), h), low, x, high),
    "sign": lambda n, a: _each(_sign, a),
    "negate": lambda n, a: _each(lambda x: -x, a),
    "compare": lambda n, a, b: _each(COMPARISONS[n.word("comparison_direction")], a, b),
    "and": _logic(lambda a, b: a & b, lambda a, b: a and b),
    "or": _logic(lambda a, b: a | b, lambda a, b: a or b),
    "not": lambda n, a: _each(lambda x: not x if n.dtype() is boolean else ~x, a),
    "select": _select,
    "convert": _convert,
    "reshape": lambda n, a: a.reshape([d or 0 for d in n.shape()]),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda n, *parts: np.concatenate(parts, n.number("dimension")),
    "slice": _slice,
    "get_dimension_size": lambda n, _: n.inputs[0].type.shape[n.number("dimension")],
}
_PARTLY: dict[str, Callable[..., Content | None]] = {
    "stablehlo.and": _decided(False),
    "stablehlo.or": _decided(True),
    "stablehlo.select": _chosen,
}
"""Rules that may give a result although some operands are unknown (None)."""
_RULES = {f"stablehlo.{name}": rule for name, rule in _RULES.items()}

__all__ = ["COMPARISONS", "FOLLOWED", "MAX_FOLLOWED", "Content", "follow"]
