"""Navigate and rewrite loop nests: substitution of loop variables, accesses, regions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..dialects import loop, scalar
from ..dialects.elements import Elements
from ..dialects.tensor import free_symbols_of, is_dynamic_symbol
from ..ir import notes
from ..ir.core import Operation, Value
from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import Dim, Expr, free_symbols, prove_eq, prove_le, smax, smin, symbol
from .index_maps import flatten_index, symbols_of

Access = loop.Load | loop.Store | loop.Accumulate
Touch = Access | Elements
"""An access to one element in each iteration, or the elements that a statement reads or writes in each."""
EXPRESSION_ATTRIBUTES = ("indices", "guard", "conditions", "bindings", "range")


def substitute_tree(root: Operation, mapping: Mapping[Expr, Dim]) -> None:
    """Replace symbols in all index expressions inside `root`'s regions. Loop variables whose bounds mention
    them are replaced by new ones.
    """
    for region in root.regions:
        for block in region.blocks:
            for op in list(block.ops):
                _substitute_op(op, dict(mapping))


def substitute_tree_at(op: Operation, mapping: Mapping[Expr, Dim]) -> None:
    """Do as `substitute_tree`, on the operation itself too."""
    _substitute_op(op, dict(mapping))


def _substitute_op(op: Operation, mapping: dict[Expr, Dim]) -> None:
    attributes = op.attributes
    for name in EXPRESSION_ATTRIBUTES:
        value = attributes.get(name)
        if value:
            attributes[name] = tuple(substitute(e, mapping) for e in value)
    if isinstance(op, scalar.Index):
        op.expr = substitute(op.expr, mapping)
    elif op.name.startswith(("simd.", "simt.")):
        for name, value in attributes.items():
            if isinstance(value, Expr):
                attributes[name] = substitute(value, mapping)
            elif isinstance(value, tuple):
                attributes[name] = tuple(substitute(v, mapping) if isinstance(v, Expr) else v for v in value)
    elif isinstance(op, loop.Alloc):
        shape = tuple(substitute(d, mapping) for d in op.buffer.shape)
        if shape != op.buffer.shape:
            op.buffer = type(op.buffer)(op.buffer.dtype, shape, op.buffer.space)
            op.result.type = op.buffer
    elif isinstance(op, loop.For):
        iv = op.iv
        if isinstance(iv.upper, Expr) and not free_symbols(iv.upper).isdisjoint(mapping):
            renewed = symbol(iv.name, iv.lower, substitute(iv.upper, mapping), iv.multiple_of)
            op.iv = renewed
            mapping = {**mapping, iv: renewed}
    for region in op.regions:
        for block in region.blocks:
            inner = dict(mapping)
            for child in list(block.ops):
                _substitute_op(child, inner)


def enclosing_loops(op: Operation | Elements) -> list[loop.For]:
    """The loops around `op`, outermost first."""
    loops = []
    parent = op.parent_op
    while parent is not None:
        if isinstance(parent, loop.For):
            loops.append(parent)
        parent = parent.parent_op
    return loops[::-1]


def enclosing(op: Operation | Elements, kind: type[Operation]) -> Operation | None:
    """The innermost operation of a class around `op`."""
    parent = op.parent_op
    while parent is not None and not isinstance(parent, kind):
        parent = parent.parent_op
    return parent


def accesses_of(buffer: Value) -> list[Access]:
    """All loads, stores and accumulations on a buffer."""
    return [op for op in buffer.users if isinstance(op, (loop.Load, loop.Store, loop.Accumulate))]


def inside(op: Operation | Elements, ancestor: Operation) -> bool:
    """Whether `op` stands within `ancestor`."""
    parent: Operation | None = op.op if isinstance(op, Elements) else op
    while parent is not None:
        if parent is ancestor:
            return True
        parent = parent.parent_op
    return False


def written_buffer(block: loop.Block) -> Value:
    """The buffer that a block stores to."""
    for op in block.body.ops:
        if isinstance(op, (loop.Store, loop.Accumulate)):
            return op.buffer
    raise ValueError(f"block {block.sym_name!r} stores nothing")


def reduce_variables(block: loop.Block) -> frozenset[Expr]:
    """The loop variables (and sizes) that a block's reduction runs over."""
    return symbols_of(block.bindings[len(block.axes) :])


def keeps_contents(op: Touch, f: loop.For) -> bool:
    """Whether an access adds to what earlier iterations of loop `f` left in its buffer.

    The block of a reduction sets the initial value itself, in the first iteration of its reduction loops,
    until `decompose_reduction` gives that to another block.
    """
    block = enclosing(op, loop.Block)
    if not isinstance(op, loop.Accumulate) or not isinstance(block, loop.Block):
        return False
    if notes.KEEPS_CONTENTS.get(block):
        return True
    return not notes.INITIALIZED.get(block) and f.iv in reduce_variables(block)


def resolved(op: Operation | Elements, exprs: Sequence[Dim]) -> tuple[Dim, ...]:
    """Index expressions of an operation in terms of loop variables (through the bindings of its block)."""
    block = enclosing(op, loop.Block)
    if not isinstance(block, loop.Block):
        return tuple(exprs)
    mapping = dict(zip((*block.axes, *block.reduce_axes), block.bindings, strict=True))
    return tuple(substitute(e, mapping) for e in exprs)


def address(op: Touch) -> Dim:
    """The flat address of an access, in elements from the start of its buffer, in terms of loop variables."""
    if isinstance(op, Elements):
        return resolved(op, (op.address,))[0]
    # The address is flattened before loop variables are substituted, so that the row, column and image of one
    # axis recombine.
    return resolved(op, (flatten_index(op.indices, op.buffer.type.shape),))[0]


def interleaves(op: loop.Store, lane: Expr, iv: Expr, count: int) -> bool:
    """Whether the `count` iterations of a loop fill the elements between those that successive iterations of
    another, `lane`, store.
    """
    if op.dynamic or op.guard:
        return False
    found = [linear_in(address(op), x) for x in (lane, iv)]
    return [parts and parts[0] for parts in found] == [count, 1]


@dataclass(frozen=True)
class Interval:
    """The elements ``lower .. lower + extent - 1`` of one dimension."""

    lower: Dim
    extent: Dim


def interval_of(e: Dim, varying: Sequence[Expr]) -> Interval | None:
    """The values of an expression over the iterations of the `varying` loop variables (innermost last); None
    if it is not affine in them.
    """
    lower: Dim = e
    upper: Dim = e
    for iv in reversed(varying):
        for end in ("lower", "upper"):
            value = lower if end == "lower" else upper
            parts = linear_in(value, iv)
            if parts is None:
                return None
            coefficient, rest = parts
            if not isinstance(coefficient, int):
                if not prove_le(0, coefficient):
                    return None
                up = True
            else:
                up = coefficient >= 0
            if isinstance(coefficient, int) and coefficient == 0:
                continue
            at = 0 if up == (end == "lower") else iv.upper
            value = rest + coefficient * at
            if end == "lower":
                lower = value
            else:
                upper = value
    return Interval(lower, upper - lower + 1)


def union(a: Interval, b: Interval) -> Interval:
    if prove_eq(a.lower, b.lower) and prove_eq(a.extent, b.extent):
        return a
    low = smin(a.lower, b.lower)
    high = smax(a.lower + a.extent, b.lower + b.extent)
    return Interval(low, high - low)


def region_of(accesses: Iterable[Access], scope: Operation | None, shape: Sequence[Dim]) -> list[Interval]:
    """The region of a buffer that accesses touch during all iterations of the loops inside `scope`, with the
    outer loops fixed.
    """
    outer = set(enclosing_loops(scope)) if scope is not None else set()
    if isinstance(scope, loop.For):
        outer.add(scope)
    result: list[Interval | None] = [None] * len(shape)
    for op in accesses:
        varying = [f.iv for f in enclosing_loops(op) if f not in outer]
        hidden = set(varying) | _decided_by_data(op, scope)
        for d, e in enumerate(resolved(op, op.indices)):
            dynamic = any(is_dynamic_symbol(s) for s in free_symbols_of(e))
            interval = None if dynamic else interval_of(e, varying)
            if (
                interval is None
                or free_symbols_of(interval.lower) & hidden
                or free_symbols_of(interval.extent) & hidden
            ):
                interval = Interval(0, shape[d])
            previous = result[d]
            result[d] = interval if previous is None else union(previous, interval)
    return [r if r is not None else Interval(0, n) for r, n in zip(result, shape, strict=True)]


def _decided_by_data(op: Operation, scope: Operation | None) -> set[Expr]:
    """The symbols that `loop.runs` define between an operation and the enclosing `scope`."""
    symbols: set[Expr] = set()
    parent = op.parent_op
    while parent is not None and parent is not scope:
        if isinstance(parent, loop.Runs):
            symbols |= {parent.first, parent.length, parent.value}
        parent = parent.parent_op
    return symbols


def walk_loops(root: Operation) -> Iterator[loop.For]:
    """The loops in a nest, outer ones first."""
    return (op for op in walk_statements(root) if isinstance(op, loop.For))


def walk_blocks(root: Operation) -> Iterator[loop.Block]:
    """The blocks in a nest, in order."""
    return (op for op in walk_statements(root) if isinstance(op, loop.Block))


def walk_statements(root: Operation) -> Iterator[Operation]:
    """Yield an operation and the operations inside it, except the bodies of blocks, which contain no
    loops.
    """
    yield root
    if isinstance(root, loop.Block):
        return
    for region in root.regions:
        for block in region.blocks:
            for op in block.ops:
                if op.regions:
                    yield from walk_statements(op)
                else:
                    yield op
