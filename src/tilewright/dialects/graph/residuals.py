"""Values that the backward pass of a region reads from the region: stored by the forward pass, or computed
again.

Storing everything takes the most memory, computing everything again the most time (Griewank and Walther,
"Revolve", 2000). Computed again is what costs about as much as reading the stored value, what is the same in
every step of a loop, and what has a size that only its own region knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...ir.core import Block, Effect, Operation, Value
from ...ir.run_time_symbols import definitions, mentions, symbols_of
from ...ir.symbolic import Expr
from ...ir.types import TensorType
from .base import tensor_type
from .contract import Matmul
from .elementwise import Binary, Cast, Constant, Identity, Select, Symbolic, Unary
from .shape import BroadcastTo, Iota, Reshape, Transpose

_GENERATED = (Constant, Symbolic, Iota, BroadcastTo)
"""Operators whose results are larger than what they read."""
_MOVED = (Reshape, Transpose, Identity)
"""Operators whose results are what they read, at other places."""
_CHEAP = (Binary, Select, Cast)
"""Operators of a few instructions an element."""
_AT_ONCE = (Matmul, Reshape, Transpose, Unary, Binary, Select, Cast)
"""Operators that `passes/graph/hoist.py` computes for all steps at once where they read slices only. A copy
in the backward loop becomes equal to the forward loop's, and is merged with it.
"""


def inner_uses(op: Operation) -> Iterator[Value]:
    """The operands of an operation and of those in its regions."""
    for inside in op.walk() if op.regions else (op,):
        yield from inside.operands


def values_of(block: Block) -> set[Value]:
    """The arguments of a block and the results of its operations."""
    return {*block.args, *(r for op in block.ops for r in op.results)}


def varying(block: Block, args: Iterable[Value]) -> set[Value]:
    """The values of a block that depend on some of its arguments."""
    found = set(args)
    for op in block.ops:
        if any(v in found for v in inner_uses(op)) or op.effects & Effect.WRITE:
            found.update(op.results)
    return found


def is_local(value: Value, symbols: Mapping[Expr, Operation]) -> bool:
    """Whether the size of a value is one of `symbols`."""
    return isinstance(value.type, TensorType) and mentions(value.type.shape, symbols)


def copy_residuals(target: Block, source: Block, early: Iterable[Value] = ()) -> list[Value]:
    """Find what a backward block reads from its forward block.

    Args:
        target: The backward block. Values that are computed again are inserted at its start.
        source: The forward block.
        early: Arguments of `source` that are slices of whole tensors outside of it.

    Returns:
        The values of `source` that `target` still uses, for which the caller substitutes stored ones.
    """
    inside, symbols = values_of(source), definitions(source)
    late = varying(source, {*source.args} - {*early})
    variable = varying(source, source.args)
    needed = {v for op in target.ops for v in inner_uses(op) if v in inside}
    forced = {symbols[s] for op in target.ops for s in symbols_of(op) if s in symbols}
    copied: list[Operation] = []
    for op in reversed(list(source.ops)):
        own = needed.intersection(op.results)
        if op not in forced and not (
            own
            and (
                any(is_local(v, symbols) for v in own)
                or not variable.intersection(op.results)
                or _is_cheap(op, needed, inside, late)
            )
        ):
            continue
        copied.append(op)
        needed.difference_update(op.results)
        needed.update(v for v in inner_uses(op) if v in inside)
        forced.update(symbols[s] for s in symbols_of(op) if s in symbols and symbols[s] is not op)
    first = target.first
    mapping: dict[Value, Value] = {}
    for op in reversed(copied):
        target.insert_before(first, op.clone(mapping))
    substitute(target, mapping)
    return [v for v in (*source.args, *(r for op in source.ops for r in op.results)) if v in needed]


def substitute(block: Block, values: Mapping[Value, Value]) -> None:
    """Let the operations of a block, and of blocks inside it, use other values."""
    for op in block.ops:
        for inside in op.walk():
            for k, v in enumerate(inside.operands):
                if v in values:
                    inside.set_operand(k, values[v])


def _is_cheap(op: Operation, needed: set[Value], inside: set[Value], late: set[Value]) -> bool:
    """Whether to compute an operation again, where the values `needed` are stored anyway."""
    if op.effects != Effect.PURE or op.regions:
        return False
    reads = [v for v in op.operands if v in inside]
    if isinstance(op, (*_GENERATED, *_MOVED)):
        return True
    if isinstance(op, _AT_ONCE) and not any(v in late for v in reads):
        return True
    if isinstance(op, Cast):
        return tensor_type(op.x).dtype.bits <= tensor_type(op.result).dtype.bits
    return isinstance(op, _CHEAP) and all(v in needed for v in reads)


__all__ = ["copy_residuals", "inner_uses", "is_local", "substitute", "values_of", "varying"]
