"""Walks over graphs of anything - operations, values, expressions - that may be as deep as a model is long.

A function that calls itself for what an operation reads is as deep as the model, and Python's stack is not. Whoever follows data uses these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .core import Value

T = TypeVar("T")


def reachable(roots: Iterable[T], below: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """The roots and what is reached from them, each once and before what is below it; a caller that has seen enough stops asking."""
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
    """The roots and what is reached from them, each once and after all that is below it, which has no cycles. `below` is asked when a node is
    reached, so that it may tell what the caller has found out about others by then."""
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
    """What the operation that computes a value reads; nothing for arguments of blocks."""
    op = value.defining_op
    return () if op is None else tuple(op.operands)


__all__ = ["operands_of", "post_order", "reachable"]
