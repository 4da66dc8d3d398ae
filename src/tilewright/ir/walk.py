"""Iterative walks over graphs of operations, values or expressions.

A recursive walk along operands is as deep as the model is long and overflows Python's stack. Code that
follows data uses these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .core import Value

T = TypeVar("T")


def reachable(roots: Iterable[T], below: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield the roots and all nodes reachable from them through `below`, each once, in pre-order. The walk is
    lazy: a caller may stop early.
    """
    stack = list(roots)
    stack.reverse()
    seen: set[T] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(reversed(tuple(below(node))))


def post_order(roots: Iterable[T], below: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield the roots and all nodes reachable from them through `below`, each once and after the nodes below
    it.

    The graph has no cycles. `below` is called when a node is reached, so that it may use what the caller
    computed for nodes yielded before.
    """
    entered: set[T] = set()
    for root in roots:
        if root in entered:
            continue
        entered.add(root)
        stack = [(root, iter(below(root)))]
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if child not in entered:
                    entered.add(child)
                    stack.append((child, iter(below(child))))
                    break
            else:
                stack.pop()
                yield node


def operands_of(value: Value) -> tuple[Value, ...]:
    """The operands of the operation that computes a value; empty for a block argument."""
    op = value.defining_op
    return () if op is None else tuple(op.operands)


__all__ = ["operands_of", "post_order", "reachable"]
