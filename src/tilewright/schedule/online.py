"""Primitives on softmax-like exchanges: columns that cannot count are skipped, long rows are taken a block of columns at a time.

Both know one form, found from a block that stores ``e[i, j] = exp(x[i, j] - top[i])``: `x` comes from local buffers over the same columns, `top` is
the maximum of one of them, and `e` is only read by sums over the columns (contractions among them).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..dialects import loop, scalar
from ..dialects.scalar import BINARY, UNARY, Constant
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.symbolic import (
    Dim,
    Expr,
    ceildiv,
    free_symbols,
    linear_in,
    prove_divisible,
    prove_eq,
    prove_le,
    smax,
    smin,
    substitute,
    symbol,
)
from ..ir.types import BufferType
from ..ir.walk import operands_of, post_order, reachable
from ..transforms.index_maps import at_same_point, symbols_of
from .blocks import decompose_reduction, parallel_nest
from .loops import reorder, split
from .schedule import Schedule, ScheduleError, primitive
from .tree import enclosing_loops, inside, interval_of, reduce_variables, resolved, substitute_tree, written_buffer


@dataclass(frozen=True)
class _Exchange:
    """`weights` stores the exponentials, `top` the maxima; `columns`: the loop over columns of every block that has one, in program order;
    `nests`: the outermost loop that each of these blocks has for itself; `carriers`: buffers that hold the exponentials."""

    weights: loop.Block
    top: loop.Block
    sums: tuple[loop.Block, ...]
    columns: dict[loop.Block, loop.For]
    nests: dict[loop.Block, loop.For]
    carriers: frozenset[Value]


def _block_of(op: Operation) -> loop.Block:
    parent = op.parent_op
    assert isinstance(parent, loop.Block)
    return parent


def _column(op: loop.Load | loop.Store | loop.Accumulate) -> tuple[loop.For, Dim] | None:
    """The loop that runs over the last index of an access, and where it starts."""
    last = resolved(op, op.indices)[-1] if op.indices else 0
    if isinstance(last, int):
        return None
    found = next((f for f in reversed(enclosing_loops(op)) if f.iv in free_symbols(last)), None)
    parts = linear_in(last, found.iv) if found is not None else None
    return (found, parts[1]) if found is not None and parts is not None and parts[0] == 1 else None


def _exchange(s: Schedule, what: str, name: str) -> _Exchange:
    """The exchange around the block `name`, which stores exponentials.

    Raises:
        ScheduleError: it is of another form, or its values are read elsewhere.
    """

    def refuse(why: str) -> ScheduleError:
        return ScheduleError(f"{what}: {why}")

    weights = s.block(name)
    store = list(weights.body.ops)[-1]
    column = _column(store) if isinstance(store, loop.Store) else None
    found = _exponent(store) if isinstance(store, loop.Store) else None
    if found is None or column is None or not isinstance(store, loop.Store):
        raise refuse(f"block {name!r} does not store exp(x - top) along a loop")
    top = next((_block_of(op) for op in found.buffer.users if isinstance(op, loop.Accumulate)), None)
    if top is None or _accumulate(top).combiner != "max":
        raise refuse(f"what block {name!r} subtracts is no maximum")
    along, start = column
    columns: dict[loop.Block, loop.For] = {weights: along}
    buffers: list[Value] = [store.buffer]
    pending: list[loop.Block] = [weights]
    while pending:
        block = pending.pop()
        for access in [x for x in block.body.ops if isinstance(x, (loop.Load, loop.Store, loop.Accumulate))]:
            there = _column(access)
            if there is None or there[0] is not columns[block] or access.buffer in buffers:
                continue
            if isinstance(access.buffer.defining_op, loop.Alloc):
                buffers.append(access.buffer)
            elif not isinstance(access, loop.Load):
                raise refuse(f"what block {block.sym_name!r} stores is a result of the kernel")
        for buffer in buffers:
            for op in buffer.users:
                if not isinstance(op, (loop.Load, loop.Store, loop.Accumulate)) or op.guard or op.dynamic:
                    raise refuse("its columns are accessed in another way")
                other, there = _block_of(op), _column(op)
                if there is None or columns.get(other, there[0]) is not there[0] or not prove_eq(there[1], start):
                    raise refuse(f"block {other.sym_name!r} does not run along the columns")
                if other not in columns:
                    columns[other] = there[0]
                    pending.append(other)
    if top not in columns:
        raise refuse("the maximum is taken over something else")
    sums = []
    position = {op: k for k, op in enumerate(s.kernel.walk())}
    order = sorted(columns, key=lambda b: position[b])
    carriers = {store.buffer}  # the exponentials, and what they are as another type
    for block in order:
        along = columns[block]
        reads_weights = any(isinstance(op, loop.Load) and op.buffer in carriers for op in block.body.ops)
        if along.iv in reduce_variables(block) and block is not top:
            if not reads_weights or not _is_linear_sum(block, carriers):
                raise refuse(f"block {block.sym_name!r} is no sum of the exponentials")
            sums.append(block)
        elif reads_weights:
            if not _is_conversion(block, carriers):
                raise refuse(f"block {block.sym_name!r} reads the exponentials and does not sum them")
            carriers.add(written_buffer(block))
    results = {written_buffer(b): b for b in (top, *sums)}
    for block in order:
        for op in block.body.ops:
            if (
                isinstance(op, loop.Load)
                and results.get(op.buffer, block) is not block
                and (block is not weights or op.buffer is not found.buffer)
            ):
                raise refuse(f"block {block.sym_name!r} reads a sum over the columns too")
    nests = _nests(order, columns, refuse)
    return _Exchange(weights, top, tuple(sums), {b: columns[b] for b in order}, nests, frozenset(carriers))


def _nests(
    blocks: list[loop.Block], columns: dict[loop.Block, loop.For], refuse: Callable[[str], ScheduleError]
) -> dict[loop.Block, loop.For]:
    """The neighbouring nests of the blocks: each of serial loops around it alone."""
    shared = enclosing_loops(blocks[0])
    for block in blocks[1:]:
        around = set(enclosing_loops(block))
        shared = [f for f in shared if f in around]
    nests = {}
    for block in blocks:
        own = enclosing_loops(block)[len(shared) :]
        name = block.sym_name
        if columns[block] not in own or any(f.kind != "serial" or f.body.first is not f.body.last for f in own):
            raise refuse(f"block {name!r} has no nest of serial loops for itself")
        if own[0].parent is not enclosing_loops(blocks[0])[len(shared)].parent:
            raise refuse(f"the nest of block {name!r} is no neighbour of the others")
        upper = columns[block].iv.upper
        if isinstance(upper, Expr) and not free_symbols(upper).isdisjoint(f.iv for f in own):
            raise refuse(f"the columns of block {name!r} depend on its row")
        if not prove_eq(columns[block].extent, columns[blocks[0]].extent):
            raise refuse(f"block {name!r} has other columns")
        reduced, parallel = reduce_variables(block), symbols_of(block.bindings[: len(block.axes)])
        if columns[block].iv in reduced and (
            block.attributes.get("tw.in_place") or any(f.iv in reduced - parallel for f in shared)
        ):
            raise refuse(f"block {name!r} goes on with a sum from outside")
        nests[block] = own[0]
    return nests


def _accumulate(block: loop.Block) -> loop.Accumulate:
    last = list(block.body.ops)[-1]
    assert isinstance(last, loop.Accumulate)
    return last


def _exponent(store: loop.Store) -> loop.Load | None:
    """The load of `top` in a stored ``exp(x - top)``, perhaps converted."""
    op = store.value.defining_op
    while isinstance(op, scalar.Cast):
        op = op.x.defining_op
    difference = op.operands[0].defining_op if isinstance(op, UNARY["exp"]) else None
    if not isinstance(difference, BINARY["sub"]):
        return None
    top = difference.operands[1].defining_op
    return top if isinstance(top, loop.Load) and not top.guard and not top.dynamic else None


def _is_conversion(block: loop.Block, carriers: set[Value]) -> bool:
    """Whether a block stores the exponentials in the same places of another buffer, as another type or times a factor of their column."""
    store = list(block.body.ops)[-1]
    load = store.value.defining_op if isinstance(store, loop.Store) else None
    if isinstance(load, scalar.Cast):
        load = load.x.defining_op
    if isinstance(load, BINARY["mul"]):
        load, factor = (x.defining_op for x in load.operands)
        if not isinstance(factor, loop.Load) or factor.buffer in carriers:
            return False
    return (
        isinstance(load, loop.Load)
        and load.buffer in carriers
        and isinstance(store, loop.Store)
        and at_same_point(load.indices, store.indices)
    )


def _is_linear_sum(block: loop.Block, weights: set[Value]) -> bool:
    """Whether a block sums the weights, or products of them with something else."""
    update = list(block.body.ops)[-1]
    if not isinstance(update, loop.Accumulate) or update.combiner != "sum" or update.guard or update.dynamic:
        return False

    def reads(value: Value) -> bool:
        made = (v.defining_op for v in reachable([value], operands_of))
        return any(isinstance(op, loop.Load) and op.buffer in weights for op in made)

    value = update.value
    while True:
        op = value.defining_op
        if isinstance(op, loop.Load):
            return op.buffer in weights
        if isinstance(op, scalar.Cast):
            value = op.x
        elif isinstance(op, BINARY["mul"]) and reads(op.operands[0]) != reads(op.operands[1]):
            value = op.operands[0] if reads(op.operands[0]) else op.operands[1]
        else:
            return False


# -- Precision that is not needed ----------------------------------------------------------------------------------------------


@primitive
def ease(s: Schedule, name: str) -> None:
    """Leave out what does not show in the results of a softmax-like exchange, whose block `name` stores the exponentials.

    The maximum may pass over a NaN, which makes an exponential and so every sum of its row NaN. Where products take the exponentials as 16-bit
    numbers, these need no more digits (`scalar.QUIET`, `scalar.ROUGH`).
    """
    found = _exchange(s, "ease", name)
    _accumulate(found.top).attributes[scalar.QUIET] = True
    store = list(found.weights.body.ops)[-1]
    assert isinstance(store, loop.Store)
    narrow = {b for b in found.carriers if b.type.dtype.bits == 16}
    if narrow and all(_is_plain_sum(b) or any(_loads(b, x) for x in narrow) for b in found.sums):
        op = store.value.defining_op
        while isinstance(op, scalar.Cast):
            op = op.x.defining_op
        assert op is not None
        op.attributes[scalar.ROUGH] = True


def _is_plain_sum(block: loop.Block) -> bool:
    """Whether a block sums elements as they are."""
    return isinstance(_accumulate(block).value.defining_op, loop.Load)


def _loads(block: loop.Block, buffer: Value) -> bool:
    return any(isinstance(op, loop.Load) and op.buffer is buffer for op in block.body.ops)


# -- Columns that cannot count -------------------------------------------------------------------------------------------------


@primitive
def skip_hidden(s: Schedule, name: str, at: str, step: int) -> None:
    """Run only over the columns that some row of one iteration of loop `at` can see, rounded to multiples of `step`.

        for rows of the tile:  for j in n:  x[i, j] = a[i, j] if j <= i else -inf
        ...  e[i, j] = exp(x[i, j] - top[i])  ...
    becomes, for the tile of rows r .. r + 23, everywhere
        for j in min(n, r + 24):  ...
    The block `name` stores the exponentials; of hidden columns they are 0. Comparisons of indices tell what is hidden.
    """
    found = _exchange(s, "skip_hidden", name)
    target = s.loop(at)
    first: Dim = 0
    last: Dim | None = None
    if not all(inside(f, target) and f is not target for f in found.nests.values()):
        raise ScheduleError(f"skip_hidden: the columns of block {name!r} are not inside loop {at!r}")
    for block, column in found.columns.items():
        low, high = _limits(block, column, target)
        first = first if low is None else low
        last = last if high is None else high
    if last is None and first == 0:
        raise ScheduleError(f"skip_hidden: nothing tells that columns of block {name!r} are hidden")
    n = found.columns[found.weights].extent
    start: Dim = 0 if isinstance(first, int) and first <= 0 else smax(0, first // step) * step
    if last is None:
        extent: Dim = smax(0, n - start)
    elif isinstance(start, int) and prove_divisible(n, step):
        extent = smax(0, smin(n // step, ceildiv(last + 1, step))) * step
    else:
        extent = smax(0, smin(n, ceildiv(last + 1, step) * step) - start)
    for block in (found.top, *found.sums):
        # A reduction begins at its column 0, if that is among those that are left.
        if not block.attributes.get("tw.initialized") and not (prove_eq(start, 0) and prove_le(1, extent)):
            decompose_reduction(s, block.sym_name, found.nests[block].iv.name)
    for column in found.columns.values():
        iv = symbol(column.iv.name, 0, extent - 1)
        old, column.iv = column.iv, iv
        substitute_tree(column, {old: start + iv})


def _limits(block: loop.Block, column: loop.For, at: loop.For) -> tuple[Dim | None, Dim | None]:
    """(first, last) column that a block does not set to minus infinity in one iteration of `at`; None where nothing tells."""
    store = list(block.body.ops)[-1]
    chosen = store.value.defining_op if isinstance(store, loop.Store) else None
    if not isinstance(chosen, scalar.Select):
        return None, None
    hidden = chosen.b.defining_op
    if not isinstance(hidden, Constant) or hidden.value != -math.inf:
        return None, None
    around = enclosing_loops(block)
    varying = [f.iv for f in around[around.index(at) + 1 :] if f is not column]
    mapping = dict(zip((*block.axes, *block.reduce_axes), block.bindings, strict=True))
    first: Dim | None = None
    last: Dim | None = None
    for difference in _differences(chosen.condition):
        parts = linear_in(substitute(difference, mapping) if isinstance(difference, Expr) else difference, column.iv)
        if parts is None or not isinstance(parts[0], int) or parts[0] not in (1, -1):
            continue
        rest = interval_of(parts[1], varying)
        if rest is None:
            continue
        most = rest.lower + rest.extent - 1
        if parts[0] < 0:  # most - j >= 0
            last = most if last is None else smin(last, most)
        else:  # j + most >= 0
            first = 0 - most if first is None else smax(first, 0 - most)
    return first, last


def _differences(condition: Value) -> list[Dim]:
    """Expressions that are all >= 0 where a condition holds, as far as comparisons of indices tell."""
    found: list[Dim] = []
    for value in reachable([condition], lambda v: operands_of(v) if isinstance(v.defining_op, BINARY["and"]) else ()):
        op = value.defining_op
        for name, (more, less, strict) in {"le": (1, 0, 0), "lt": (1, 0, 1), "ge": (0, 1, 0), "gt": (0, 1, 1)}.items():
            if isinstance(op, BINARY[name]):
                a, b = _integer(op.operands[more]), _integer(op.operands[less])
                found += [] if a is None or b is None else [a - b - strict]
    return found


def _integer(value: Value) -> Dim | None:
    """An integer value as an index expression."""
    known: dict[Value, Dim] = {}
    for v in post_order([value], _integer_operands):
        op = v.defining_op
        if isinstance(op, scalar.Index):
            known[v] = op.expr
        elif isinstance(op, Constant) and op.dtype.is_integer:
            known[v] = int(op.value)
        elif isinstance(op, scalar.Cast) and op.x in known:
            known[v] = known[op.x]
        elif isinstance(op, (BINARY["add"], BINARY["sub"])) and all(x in known for x in op.operands):
            a, b = (known[x] for x in op.operands)
            known[v] = a + b if isinstance(op, BINARY["add"]) else a - b
    return known.get(value)


def _integer_operands(value: Value) -> tuple[Value, ...]:
    op = value.defining_op
    if isinstance(op, scalar.Cast):
        return (op.x,) if op.dtype.is_integer and op.dtype.bits >= 32 and op.x.type.is_integer else ()
    return operands_of(value) if isinstance(op, (BINARY["add"], BINARY["sub"])) else ()


# -- A block of columns at a time ------------------------------------------------------------------------------------------------


@primitive
def roll(s: Schedule, name: str, factor: int) -> str:
    """Take `factor` columns at a time through a softmax-like exchange, whose block `name` stores the exponentials. Returns the new loop.

        for j: x[j] = ...;  for j: top = max(top, x[j])
        for j: e[j] = exp(x[j] - top);  for j: y += e[j] * v[j]
    becomes
        for jo:
            for ji: x[ji] = ...
            before = top;  for ji: top = max(top, x[ji]);  scale = exp(before - top)
            for ji: e[ji] = exp(x[ji] - top)
            y *= scale;  for ji: y += e[ji] * v[jo * factor + ji]
    so that the columns of a block stay in the cache, however many there are. A row of which nothing is visible yet counts with the
    lowest number as its maximum. Source of the method: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    found = _exchange(s, "roll", name)
    if not isinstance(written_buffer(found.top).defining_op, loop.Alloc):
        raise ScheduleError(f"roll: the maxima of block {name!r} are a result of the kernel")
    if factor < 1:
        raise ScheduleError(f"roll: factor must be at least 1, got {factor}")
    _check_between(found)
    tops = {}
    for block, column in found.columns.items():
        around = enclosing_loops(block)
        own = around[around.index(found.nests[block]) :]
        outer, inner = split(s, column.iv.name, factor)
        reorder(s, outer, *(inner if f is column else f.iv.name for f in own))
        tops[block] = s.loop(outer)
    first = next(iter(tops.values()))
    parent = first.parent
    assert parent is not None
    for block in (found.top, *found.sums):
        if not block.attributes.get("tw.initialized"):
            decompose_reduction(s, block.sym_name, tops[block].iv.name)
    for op in _statements(first, list(tops.values())[-1]):
        if op not in tops.values() and not isinstance(op, loop.Alloc) and _initializes(op):
            parent.insert_before(first, op.detach())
    rolled = loop.For(iv=symbol(s.fresh(f"{name}_roll"), 0, first.extent - 1), location=first.location)
    parent.insert_before(first, rolled)
    for f in tops.values():
        for op in list(f.body.ops):
            rolled.body.append(op)
        substitute_tree(rolled, {f.iv: rolled.iv})
        f.erase()
    _rescale(s, found, rolled)
    return rolled.iv.name


def _statements(first: Operation, last: Operation) -> list[Operation]:
    """What stands in a block from `first` to `last`."""
    found = [first]
    while found[-1] is not last and (following := found[-1].next) is not None:
        found.append(following)
    return found


def _initializes(nest: Operation) -> bool:
    """Whether a nest does nothing but store constants."""
    return all(
        isinstance(op, (loop.For, loop.Block, Constant))
        or (isinstance(op, loop.Store) and isinstance(op.value.defining_op, Constant))
        for op in nest.walk()
    )


def _check_between(found: _Exchange) -> None:
    """Raise when a statement between the nests touches what they compute: it would have to run in the middle of the rows."""
    nests = list(found.nests.values())
    written = {written_buffer(b) for b in found.columns}
    for op in _statements(nests[0], nests[-1]):
        if op not in nests and not isinstance(op, loop.Alloc) and not _initializes(op):
            if any(v in written for x in op.walk() for v in x.operands):
                raise ScheduleError("roll: a statement between the columns' loops uses what they compute")


def _rescale(s: Schedule, found: _Exchange, rolled: loop.For) -> None:
    """Before each block of columns: what the maxima were; after them, by how much the sums so far shrink."""
    update = _accumulate(found.top)
    buffer, dtype = update.buffer, update.dtype
    lowest = float(np.finfo(dtype.numpy).min)
    kind = BufferType(dtype, buffer.type.shape, "local")
    alloc = buffer.defining_op
    assert alloc is not None and alloc.parent is not None
    before, scale = (loop.Alloc(buffer=kind, location=found.top.location) for _ in range(2))
    for new in (before, scale):
        alloc.parent.insert_before(alloc, new)

    def safe(body: Builder, indices: tuple[Dim, ...]) -> Value:
        top = body(loop.Load(buffer, (), None, indices=indices))
        return body(BINARY["max"](top, body(Constant(value=lowest, dtype=dtype))))  # type: ignore[no-any-return]

    def nest_of(block: loop.Block) -> loop.For:
        return enclosing_loops(block)[len(enclosing_loops(rolled)) + 1]

    old = parallel_nest(s, found.top, nest_of(found.top), f"{found.top.sym_name}_before")
    body = Builder(old.body, location=old.location)
    body(loop.Store(safe(body, update.indices), before.result, (), indices=update.indices))
    change = parallel_nest(s, found.top, nest_of(found.top), f"{found.top.sym_name}_scale", after=True)
    body = Builder(change.body, location=change.location)
    was = body(loop.Load(before.result, (), None, indices=update.indices))
    factor = body(UNARY["exp"](body(BINARY["sub"](was, safe(body, update.indices)))))
    body(loop.Store(factor, scale.result, (), indices=update.indices))
    store = list(found.weights.body.ops)[-1]
    assert isinstance(store, loop.Store)
    load = _exponent(store)
    assert load is not None
    body = Builder.after(load)
    number = body(Constant(value=lowest, dtype=dtype))
    bounded = body(BINARY["max"](load.result, number))
    for user, k in list(load.result.uses):
        if user is not bounded.defining_op:
            user.set_operand(k, bounded)
    for block in found.sums:
        total = _accumulate(block)
        read = next(op for op in block.body.ops if isinstance(op, loop.Load) and op.buffer in found.carriers)
        row = {a: e for a, e in zip(store.indices, read.indices, strict=True) if isinstance(a, Expr)}
        indices = tuple(substitute(e, row) for e in load.indices)
        shrink = parallel_nest(s, block, nest_of(block), f"{block.sym_name}_shrink")
        body = Builder(shrink.body, location=shrink.location)
        value = body(loop.Load(total.buffer, (), None, indices=total.indices))
        by = body(loop.Load(scale.result, (), None, indices=indices))
        by = by if dtype is total.dtype else body(scalar.Cast(by, dtype=total.dtype))
        body(loop.Store(body(BINARY["mul"](value, by)), total.buffer, (), indices=total.indices))


__all__ = ["roll", "skip_hidden"]
