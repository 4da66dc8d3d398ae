"""Primitives on the softmax between two contractions: masked columns are skipped, long rows are processed in
blocks of columns.

All match one pattern, from a block that stores ``e[i, j] = exp(x[i, j] - top[i])``: `x` comes from local
buffers over the same columns, `top` is the maximum of one of them, and only sums over the columns
(contractions among them) read `e`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np

from ..analysis.index_maps import at_same_point, symbols_of
from ..analysis.loop_nest import (
    enclosing_loops,
    inside,
    interval_of,
    reduce_variables,
    resolved,
    substitute_tree,
    written_buffer,
)
from ..dialects import loop, scalar
from ..dialects.scalar import BINARY, UNARY, Constant
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import (
    Dim,
    Expr,
    ceildiv,
    free_symbols,
    prove_divisible,
    prove_eq,
    prove_le,
    smax,
    smin,
    symbol,
)
from ..ir.types import BufferType, i64
from ..ir.walk import operands_of, post_order, reachable
from .blocks import BlockPrimitives, parallel_nest
from .core import ScheduleCore, ScheduleError, primitive
from .loops import LoopPrimitives
from .order import Order


class SoftmaxPrimitives(BlockPrimitives, LoopPrimitives):
    """Primitives on the softmax between two contractions."""

    @primitive
    def relax_accuracy(self, name: str) -> None:
        """Relax the arithmetic of a softmax, whose block `name` stores the exponentials, where no result
        shows it.

        The maximum may ignore a NaN: it makes an exponential NaN, and so every sum of its row. If products
        read the exponentials as 16-bit numbers, `exp` may be computed with as few digits.
        """
        softmax = _match_softmax(self, "relax_accuracy", name)
        notes.IGNORE_NAN.set(_accumulate(softmax.top), True)
        store = list(softmax.weights.body.ops)[-1]
        assert isinstance(store, loop.Store)
        narrow = {b for b in softmax.carriers if b.type.dtype.bits == 16}
        if narrow and all(_is_plain_sum(b) or any(_loads(b, x) for x in narrow) for b in softmax.sums):
            op = store.value.defining_op
            while isinstance(op, scalar.Cast):
                op = op.x.defining_op
            assert op is not None
            notes.RELAXED_ACCURACY.set(op, True)

    @primitive
    def skip_masked(self, name: str, at: str, step: int) -> None:
        """Run only over the columns that some row of one iteration of loop `at` can see, rounded to multiples
        of `step`.

            for rows of the tile:  for j in n:  x[i, j] = a[i, j] if j <= i else -inf
            ...  e[i, j] = exp(x[i, j] - top[i])  ...
        becomes, for the tile of rows r .. r + 23, everywhere
            for j in min(n, r + 24):  ...
        The block `name` stores the exponentials, which are 0 for masked columns. Comparisons of indices
        decide which columns these are.
        """
        softmax = _match_softmax(self, "skip_masked", name)
        target = self.loop(at)
        first: Dim = 0
        last: Dim | None = None
        if not all(inside(f, target) and f is not target for f in softmax.nests.values()):
            raise ScheduleError(f"skip_masked: the columns of block {name!r} are not inside loop {at!r}")
        for block, column in softmax.columns.items():
            low, high = _limits(block, column, target)
            first = first if low is None else low
            last = last if high is None else high
        if last is None and first == 0:
            raise ScheduleError(f"skip_masked: no comparison of indices masks columns of block {name!r}")
        n = softmax.columns[softmax.weights].extent
        start: Dim = 0 if isinstance(first, int) and first <= 0 else smax(0, first // step) * step
        if last is None:
            extent: Dim = smax(0, n - start)
        elif isinstance(start, int) and prove_divisible(n, step):
            extent = smax(0, smin(n // step, ceildiv(last + 1, step))) * step
        else:
            extent = smax(0, smin(n, ceildiv(last + 1, step) * step) - start)
        for block in (softmax.top, *softmax.sums):
            # A reduction begins at its column 0, if that column remains.
            if not notes.INITIALIZED.get(block) and not (prove_eq(start, 0) and prove_le(1, extent)):
                self.decompose_reduction(block.sym_name, softmax.nests[block].iv.name)
        for column in softmax.columns.values():
            iv = symbol(column.iv.name, 0, extent - 1)
            old, column.iv = column.iv, iv
            substitute_tree(column, {old: start + iv})

    @primitive
    def online_softmax(self, name: str, factor: int, padded: bool = False) -> str:
        """Process a softmax, whose block `name` stores the exponentials, in blocks of `factor` columns;
        return the new loop's name.

            for j: x[j] = ...;  for j: top = max(top, x[j])
            for j: e[j] = exp(x[j] - top);  for j: y += e[j] * v[j]
        becomes
            for jo:
                for ji: x[ji] = ...
                before = top;  for ji: top = max(top, x[ji]);  scale = exp(before - top)
                for ji: e[ji] = exp(x[ji] - top)
                y *= scale;  for ji: y += e[ji] * v[jo * factor + ji]
        so that a block's columns stay in the cache, however many columns there are. A row without a visible
        column so far has the lowest finite number as its maximum. Source: Milakov and Gimelshein, "Online
        normalizer calculation for softmax", 2018.

        With `padded`, all blocks have `factor` columns. Columns beyond the end count as masked; they, and
        rows beyond the end of the data, are computed like others.
        """
        softmax = _match_softmax(self, "online_softmax", name)
        if not isinstance(written_buffer(softmax.top).defining_op, loop.Alloc):
            raise ScheduleError(f"online_softmax: the maxima of block {name!r} are a result of the kernel")
        if factor < 1:
            raise ScheduleError(f"online_softmax: factor must be at least 1, got {factor}")
        if padded:
            _move_behind(softmax)
        _check_between(softmax)
        tops = {}
        for block, column in softmax.columns.items():
            around = enclosing_loops(block)
            own = around[around.index(softmax.nests[block]) :]
            outer, inner = self.split(column.iv.name, factor, padded)
            self.reorder(outer, *(inner if f is column else f.iv.name for f in own))
            tops[block] = self.loop(outer)
        if padded:
            _pad(softmax)
            _fill_tiles(softmax)
        first = next(iter(tops.values()))
        parent = first.parent
        assert parent is not None
        for block in (softmax.top, *softmax.sums):
            if not notes.INITIALIZED.get(block):
                self.decompose_reduction(block.sym_name, tops[block].iv.name)
        order = Order(self.kernel)
        written = {written_buffer(b) for b in softmax.columns}
        for op in _statements(first, list(tops.values())[-1]):
            if op in tops.values():
                continue
            if isinstance(op, loop.Alloc) or _initializes(op):
                parent.insert_before(first, op.detach())
            elif _uses(op, written):
                raise _stands_between()
        rolled = loop.For(iv=symbol(self.fresh(f"{name}_roll"), 0, first.extent - 1), location=first.location)
        parent.insert_before(first, rolled)
        for f in tops.values():
            for op in list(f.body.ops):
                rolled.body.append(op)
            substitute_tree(rolled, {f.iv: rolled.iv})
            f.erase()
        _rescale(self, softmax, rolled)
        order.check("online_softmax", self.kernel, apart=softmax.columns)
        return rolled.iv.name


@dataclass(frozen=True)
class _Softmax:
    """A matched softmax.

    Attributes:
        weights: the block that stores the exponentials.
        top: the block that computes the maxima.
        sums: the blocks that sum the exponentials, or products of them.
        columns: the column loop of every block that has one, in program order.
        nests: the outermost loop that each of these blocks has for itself.
        carriers: the buffers that hold the exponentials, also converted to another type.
    """

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
    """Return the loop that runs over the last index of an access, and the index at its first iteration."""
    last = resolved(op, op.indices)[-1] if op.indices else 0
    if isinstance(last, int):
        return None
    moving = next((f for f in reversed(enclosing_loops(op)) if f.iv in free_symbols(last)), None)
    parts = linear_in(last, moving.iv) if moving is not None else None
    return (moving, parts[1]) if moving is not None and parts is not None and parts[0] == 1 else None


def _match_softmax(s: ScheduleCore, what: str, name: str) -> _Softmax:
    """Match the softmax around the block `name`, which stores exponentials; `what` is the primitive that
    messages name.

    Raises:
        ScheduleError: the pattern differs, or its values are read elsewhere.
    """

    def refuse(why: str) -> ScheduleError:
        return ScheduleError(f"{what}: {why}")

    weights = s.block(name)
    store = list(weights.body.ops)[-1]
    column = _column(store) if isinstance(store, loop.Store) else None
    top_load = _exponent(store) if isinstance(store, loop.Store) else None
    if top_load is None or column is None or not isinstance(store, loop.Store):
        raise refuse(f"block {name!r} does not store exp(x - top) along a loop")
    top = next((_block_of(op) for op in top_load.buffer.users if isinstance(op, loop.Accumulate)), None)
    if top is None or _accumulate(top).combiner != "max":
        raise refuse(f"block {name!r} subtracts a value that is not a maximum")
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
                raise refuse(f"block {block.sym_name!r} stores a result of the kernel")
        for buffer in buffers:
            for op in buffer.users:
                if not isinstance(op, (loop.Load, loop.Store, loop.Accumulate)) or op.guard or op.dynamic:
                    raise refuse("its columns are accessed in another way")
                other, there = _block_of(op), _column(op)
                if (
                    there is None
                    or columns.get(other, there[0]) is not there[0]
                    or not prove_eq(there[1], start)
                ):
                    raise refuse(f"block {other.sym_name!r} does not run along the columns")
                if other not in columns:
                    columns[other] = there[0]
                    pending.append(other)
    if top not in columns:
        raise refuse("the maximum is not taken over the same columns")
    sums = []
    position = {op: k for k, op in enumerate(s.kernel.walk())}
    order = sorted(columns, key=lambda b: position[b])
    carriers = {store.buffer}  # the exponentials, also converted to another type
    for block in order:
        along = columns[block]
        reads_weights = any(isinstance(op, loop.Load) and op.buffer in carriers for op in block.body.ops)
        if along.iv in reduce_variables(block) and block is not top:
            if not reads_weights or not _is_linear_sum(block, carriers):
                raise refuse(f"block {block.sym_name!r} is not a sum of the exponentials")
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
                and (block is not weights or op.buffer is not top_load.buffer)
            ):
                raise refuse(f"block {block.sym_name!r} reads a sum over the columns too")
    nests = _nests(order, columns, refuse)
    return _Softmax(weights, top, tuple(sums), {b: columns[b] for b in order}, nests, frozenset(carriers))


def _nests(
    blocks: list[loop.Block], columns: dict[loop.Block, loop.For], refuse: Callable[[str], ScheduleError]
) -> dict[loop.Block, loop.For]:
    """Return the neighbouring nests of the blocks, each of serial loops that hold nothing else."""
    shared = enclosing_loops(blocks[0])
    for block in blocks[1:]:
        around = set(enclosing_loops(block))
        shared = [f for f in shared if f in around]
    nests = {}
    for block in blocks:
        own = enclosing_loops(block)[len(shared) :]
        name = block.sym_name
        if columns[block] not in own or any(
            f.kind != loop.LoopKind.SERIAL or f.body.first is not f.body.last for f in own
        ):
            raise refuse(f"block {name!r} does not have a nest of serial loops of its own")
        if own[0].parent is not enclosing_loops(blocks[0])[len(shared)].parent:
            raise refuse(f"the nest of block {name!r} is not next to the others")
        upper = columns[block].iv.upper
        if isinstance(upper, Expr) and not free_symbols(upper).isdisjoint(f.iv for f in own):
            raise refuse(f"the columns of block {name!r} depend on its row")
        if not prove_eq(columns[block].extent, columns[blocks[0]].extent):
            raise refuse(f"block {name!r} has other columns")
        reduced, parallel = reduce_variables(block), symbols_of(block.bindings[: len(block.axes)])
        if columns[block].iv in reduced and (
            notes.KEEPS_CONTENTS.get(block) or any(f.iv in reduced - parallel for f in shared)
        ):
            raise refuse(f"block {name!r} continues a sum from outside")
        nests[block] = own[0]
    return nests


def _accumulate(block: loop.Block) -> loop.Accumulate:
    last = list(block.body.ops)[-1]
    assert isinstance(last, loop.Accumulate)
    return last


def _exponent(store: loop.Store) -> loop.Load | None:
    """Return the load of `top` in a stored ``exp(x - top)``, perhaps converted."""
    op = store.value.defining_op
    while isinstance(op, scalar.Cast):
        op = op.x.defining_op
    difference = op.operands[0].defining_op if isinstance(op, UNARY["exp"]) else None
    if not isinstance(difference, BINARY["sub"]):
        return None
    top = difference.operands[1].defining_op
    return top if isinstance(top, loop.Load) and not top.guard and not top.dynamic else None


def _is_conversion(block: loop.Block, carriers: set[Value]) -> bool:
    """Whether a block stores the exponentials at the same indices of another buffer, converted or times a
    factor of their column.
    """
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
        producers = (v.defining_op for v in reachable([value], operands_of))
        return any(isinstance(op, loop.Load) and op.buffer in weights for op in producers)

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


# -- Accuracy ------------------------------------------------------------------------------------------


def _is_plain_sum(block: loop.Block) -> bool:
    """Whether a block sums elements as they are."""
    return isinstance(_accumulate(block).value.defining_op, loop.Load)


def _loads(block: loop.Block, buffer: Value) -> bool:
    return any(isinstance(op, loop.Load) and op.buffer is buffer for op in block.body.ops)


# -- Masked columns ------------------------------------------------------------------------------------


def _limits(block: loop.Block, column: loop.For, at: loop.For) -> tuple[Dim | None, Dim | None]:
    """Return the (first, last) column that a block does not set to minus infinity in one iteration of `at`;
    None where unknown.
    """
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
        parts = linear_in(
            substitute(difference, mapping) if isinstance(difference, Expr) else difference, column.iv
        )
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
    """Return expressions that are all >= 0 where a condition holds, as far as it compares indices."""
    differences: list[Dim] = []
    for value in reachable(
        [condition], lambda v: operands_of(v) if isinstance(v.defining_op, BINARY["and"]) else ()
    ):
        op = value.defining_op
        for name, (more, less, strict) in {
            "le": (1, 0, 0),
            "lt": (1, 0, 1),
            "ge": (0, 1, 0),
            "gt": (0, 1, 1),
        }.items():
            if isinstance(op, BINARY[name]):
                a, b = _integer(op.operands[more]), _integer(op.operands[less])
                differences += [] if a is None or b is None else [a - b - strict]
    return differences


def _integer(value: Value) -> Dim | None:
    """Return an integer value as an index expression; None if it is none."""
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


# -- Blocks of columns ---------------------------------------------------------------------------------


def _statements(first: Operation, last: Operation) -> list[Operation]:
    """Return the operations from `first` to `last`."""
    statements = [first]
    while statements[-1] is not last and (following := statements[-1].next) is not None:
        statements.append(following)
    return statements


def _initializes(nest: Operation) -> bool:
    """Whether a nest only stores constants."""
    return all(
        isinstance(op, (loop.For, loop.If, loop.Block, Constant))
        or (isinstance(op, loop.Store) and isinstance(op.value.defining_op, Constant))
        for op in nest.walk()
    )


def _check_between(softmax: _Softmax) -> None:
    """Raise if a statement between the nests accesses what they compute: it would have to run in the middle
    of the rows.
    """
    nests = list(softmax.nests.values())
    written = {written_buffer(b) for b in softmax.columns}
    for op in _statements(nests[0], nests[-1]):
        if op not in nests and not isinstance(op, loop.Alloc) and not _initializes(op):
            if _uses(op, written):
                raise _stands_between()


def _uses(statement: Operation, buffers: Container[Value]) -> bool:
    return any(v in buffers for op in statement.walk() for v in op.operands)


def _stands_between() -> ScheduleError:
    return ScheduleError("online_softmax: a statement between the columns' loops uses what they compute")


def _move_behind(softmax: _Softmax) -> None:
    """Move nests that stand between those of a softmax, use what these compute, and compute nothing for them
    (a term of the sum that has no column) behind the last of them.
    """
    nests = list(softmax.nests.values())
    written = {written_buffer(b) for b in softmax.columns}
    used = {v for nest in nests for op in nest.walk() for v in op.operands}
    last = nests[-1]
    parent = last.parent
    assert parent is not None
    for op in reversed(_statements(nests[0], nests[-1])):
        if op in nests or isinstance(op, loop.Alloc) or _initializes(op):
            continue
        reads = {v for x in op.walk() for v in x.operands}
        stored = {x.buffer for x in op.walk() if isinstance(x, (loop.Store, loop.Accumulate))}
        if reads & written and not stored & used:
            parent.insert_after(last, op.detach())


def _rescale(s: ScheduleCore, softmax: _Softmax, rolled: loop.For) -> None:
    """Save the maxima before each block of columns; after their update, scale the sums so far by ``exp(before
    - top)``.
    """
    update = _accumulate(softmax.top)
    buffer, dtype = update.buffer, update.dtype
    lowest = float(np.finfo(dtype.numpy).min)
    kind = BufferType(dtype, buffer.type.shape, "local")
    alloc = buffer.defining_op
    assert alloc is not None and alloc.parent is not None
    before, scale = (loop.Alloc(buffer=kind, location=softmax.top.location) for _ in range(2))
    for new in (before, scale):
        alloc.parent.insert_before(alloc, new)

    def safe(body: Builder, indices: tuple[Dim, ...]) -> Value:
        top = body(loop.Load(buffer, (), None, indices=indices))
        maximum: Value = body(BINARY["max"](top, body(Constant(value=lowest, dtype=dtype))))
        return maximum

    def nest_of(block: loop.Block) -> loop.For:
        return enclosing_loops(block)[len(enclosing_loops(rolled)) + 1]

    old = parallel_nest(s, softmax.top, nest_of(softmax.top), f"{softmax.top.sym_name}_before")
    body = Builder(old.body, location=old.location)
    body.insert(loop.Store(safe(body, update.indices), before.result, (), indices=update.indices))
    change = parallel_nest(s, softmax.top, nest_of(softmax.top), f"{softmax.top.sym_name}_scale", after=True)
    body = Builder(change.body, location=change.location)
    was = body(loop.Load(before.result, (), None, indices=update.indices))
    factor = body(UNARY["exp"](body(BINARY["sub"](was, safe(body, update.indices)))))
    body.insert(loop.Store(factor, scale.result, (), indices=update.indices))
    store = list(softmax.weights.body.ops)[-1]
    assert isinstance(store, loop.Store)
    load = _exponent(store)
    assert load is not None
    body = Builder.after(load)
    number = body(Constant(value=lowest, dtype=dtype))
    bounded = body(BINARY["max"](load.result, number))
    for user, k in list(load.result.uses):
        if user is not bounded.defining_op:
            user.set_operand(k, bounded)
    for block in softmax.sums:
        total = _accumulate(block)
        loads = (op for op in block.body.ops if isinstance(op, loop.Load))
        read = next(op for op in loads if op.buffer in softmax.carriers)
        row = {a: e for a, e in zip(store.indices, read.indices, strict=True) if isinstance(a, Expr)}
        indices = tuple(substitute(e, row) for e in load.indices)
        shrink = parallel_nest(s, block, nest_of(block), f"{block.sym_name}_shrink")
        body = Builder(shrink.body, location=shrink.location)
        value = body(loop.Load(total.buffer, (), None, indices=total.indices))
        by = body(loop.Load(scale.result, (), None, indices=indices))
        by = by if dtype is total.dtype else body(scalar.Cast(by, dtype=total.dtype))
        body.insert(loop.Store(body(BINARY["mul"](value, by)), total.buffer, (), indices=total.indices))


# -- Columns and rows beyond the end -------------------------------------------------------------------


def _pad(softmax: _Softmax) -> None:
    """Let the blocks of a softmax compute all columns and rows of a tile: their conditions become guards of
    what they read from outside of the kernel, and scores beyond the end are minus infinity.

    Products keep their conditions on what they read from elsewhere, which tell `stage_factors` where zeros
    stand.
    """
    load = next(op for op in softmax.top.body.ops if isinstance(op, loop.Load))
    if not any(
        isinstance(op, loop.Store) and op.buffer is load.buffer for b in softmax.columns for op in b.body.ops
    ):
        raise ScheduleError("online_softmax: the scores are a sum; use cache_write first to pad them")
    for block in softmax.columns:
        conditions: list[Dim] = []
        kept = _read_elsewhere(block, softmax) if notes.CONTRACTION.present(block) else frozenset()
        inside_of: Operation = block
        while isinstance(guard := inside_of.parent_op, loop.If):
            left = tuple(e for e in guard.conditions if symbols_of([e]) & kept)
            conditions += [e for e in guard.conditions if e not in left]
            if left:
                guard.conditions, inside_of = left, guard
                continue
            assert guard.parent is not None
            guard.parent.insert_before(guard, inside_of.detach())
            guard.erase()
        if not conditions or notes.CONTRACTION.present(block):
            continue
        last = list(block.body.ops)[-1]
        outside = [
            op
            for op in block.body.ops
            if isinstance(op, loop.Load) and not isinstance(op.buffer.defining_op, loop.Alloc)
        ]
        masked = isinstance(last, loop.Store) and last.buffer is load.buffer
        if not outside and not masked:
            continue
        at = _in_axes(block, conditions)
        for op in outside:
            _guard(op, at)
        if masked:
            assert isinstance(last, loop.Store)
            body = Builder.before(last)
            inside = None
            for e in at:
                zero = body(Constant(value=0, dtype=i64))
                holds = body(BINARY["ge"](body(scalar.Index(expr=e)), zero))
                inside = holds if inside is None else body(BINARY["and"](inside, holds))
            hidden = body(Constant(value=-math.inf, dtype=last.value.type))
            last.set_operand(0, body(scalar.Select(inside, last.value, hidden)))


def _fill_tiles(softmax: _Softmax) -> None:
    """Take the conditions off the initial values of maxima and sums that have them already: `_pad` lets all
    rows of a tile read these.
    """
    for block in (softmax.top, *softmax.sums):
        buffer = written_buffer(block)
        if not isinstance(buffer.defining_op, loop.Alloc):
            continue
        for store in [op for op in buffer.users if isinstance(op, loop.Store)]:
            initial = _block_of(store)
            while _initializes(initial) and isinstance(guard := initial.parent_op, loop.If):
                assert guard.parent is not None
                guard.parent.insert_before(guard, initial.detach())
                guard.erase()


def _read_elsewhere(block: loop.Block, softmax: _Softmax) -> frozenset[Expr]:
    """The loops of a product's own nest by which it reads other values than the exponentials."""
    loads = [op for op in block.body.ops if isinstance(op, loop.Load) and op.buffer not in softmax.carriers]
    around = enclosing_loops(block)
    own = {f.iv for f in around[around.index(softmax.nests[block]) :]}
    return symbols_of(e for op in loads for e in resolved(op, op.indices)) & own


def _in_axes(block: loop.Block, conditions: list[Dim]) -> list[Dim]:
    """Conditions on loop variables in terms of a block's axes, which become new ones where none has such a
    value.
    """
    variables = {f.iv for f in enclosing_loops(block)}
    names = {a.name for a in (*block.axes, *block.reduce_axes)}
    mapping: dict[Expr, Dim] = {}
    for iv in sorted({s for e in conditions for s in symbols_of([e])} & variables, key=lambda iv: iv.name):
        axis = symbol(next(x for k in range(len(names) + 1) if (x := f"t{k}") not in names), 0, iv.upper)
        names.add(axis.name)
        mapping[iv] = axis
        block.axes = (*block.axes, axis)
        places = len(block.axes) - 1
        block.bindings = (*block.bindings[:places], iv, *block.bindings[places:])
    return [substitute(e, mapping) for e in conditions]


def _guard(op: loop.Load, conditions: list[Dim]) -> None:
    """Let a load give zero, or what it gave beyond its guards, where a condition does not hold."""
    body = Builder.before(op)
    otherwise = op.otherwise if op.otherwise is not None else body(Constant(value=0, dtype=op.result.type))
    new = body(
        loop.Load(op.buffer, op.dynamic, otherwise, indices=op.indices, guard=(*op.guard, *conditions))
    )
    op.replace_by(new)
    op.erase()


__all__ = ["SoftmaxPrimitives"]
