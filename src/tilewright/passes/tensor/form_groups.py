"""Decides kernels: encloses computations that run together in a `tensor.group`.

These forms of fusion go beyond the substitution of `fuse_elementwise`:

- a contraction with the elementwise computation that is its only consumer (its epilogue), and on a GPU with
  those that give its factors (`prologues`);
- a *chain*: a contraction, computations on its rows, and the contraction that takes those rows as its left
  operand (attention: scores, softmax, weighted values). A few rows of the intermediate matrix at a time stay
  in the cache;
- *row groups*: computations that agree on their leading axes (the rows) and exchange values of one row only,
  such as the maxima, sums and elementwise steps of a softmax or a layer norm. One kernel computes them row by
  row, in one pass over memory;
- loops over time whose columns are independent (`analysis/recurrence.py`): one kernel runs all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...analysis.axis_roles import Roles
from ...analysis.cumulative import match_cumulative
from ...analysis.index_maps import at_same_point, product, substitute_all, symbols_of
from ...analysis.recurrence import enclose, match_recurrence
from ...dialects import kernels, scalar, tensor
from ...dialects.places import place_of
from ...dialects.tensor import extent
from ...ir import notes
from ...ir.cleanup import sort_block
from ...ir.core import Block, Module, Operation, Value
from ...ir.refusal import Refusal, refused
from ...ir.run_time_symbols import definers_of, definitions
from ...ir.symbolic import Dim, Expr, bounds, prove_eq
from ...ir.target_info import Gpu, TargetInfo
from ...ir.types import boolean
from .prologues import absorb_gathers, absorb_prologues

RULE = "form-groups"
"""The name of the rule that refuses to put two computations into one kernel."""
CYCLE = Refusal("another kernel stands between the two: it needs the producer, and the reader needs it")

Computation = tensor.Compute | tensor.Scatter | tensor.Argsort | kernels.Run

Between = tensor.Nested | tensor.Concat | tensor.BindSize | tensor.Check | tensor.After
"""Operations that stand between kernels: groups are formed around them, and they are never members of one."""


@dataclass(eq=False)
class _Draft:
    """A group being formed.

    `rows` are the leading dimensions that its members share. A `closed` group takes no more members. `needs`
    has the bits of all drafts that it depends on, directly or not: a merge must not make a cycle. Bit sets
    are integers because a model has thousands of drafts.
    """

    members: list[Any]
    kind: str
    rows: tuple[Dim, ...] = ()
    closed: bool = False
    bit: int = 0
    needs: int = 0


def form_groups(module: Module, info: TargetInfo, *, row_groups: bool = True) -> None:
    """Enclose every computation of a module in a group.

    `info` describes the target; its `row_group_bytes` bounds the intermediate values of a row. Without
    `row_groups` the only member that a reduction's group takes is an epilogue.
    """
    room = _Room(info.row_group_bytes, info.gpu.shared_element if info.gpu is not None else 1)
    most = info.gpu.max_buffers if info.gpu is not None else None
    inside: set[Block] = set()  # bodies of loops that are one kernel
    for block in tensor.blocks_of_computations(module):
        if block in inside:
            continue
        free: frozenset[Operation] = frozenset()
        if row_groups and info.gpu is not None:
            # A block of a GPU never holds whole rows of scores, so the length of a row does not matter.
            chains = _chain_contractions(_draft(block, row_groups, None, most=most), info.gpu)
            free = frozenset(m for d in chains if d.kind == tensor.GroupKind.CHAIN for m in d.members)
        drafts = _draft(block, row_groups, room, free, most)
        if row_groups:
            drafts = _chain_contractions(drafts, info.gpu)
            drafts = _join_transforms(drafts)
        if info.gpu is not None:
            drafts = _absorb_prologues(drafts)
        for draft in drafts:
            if draft.kind == tensor.GroupKind.RECURRENCE:
                inside.add(draft.members[0].body)
                enclose(draft.members[0])
            elif draft.kind != "loop":
                _enclose(draft)
        sort_block(block)


def _absorb_prologues(drafts: list[_Draft]) -> list[_Draft]:
    """Let contractions compute their factors as they load them, where that is worthwhile; return the drafts
    left.
    """
    alone = {d.members[0] for d in drafts if d.kind == tensor.GroupKind.ROWS and len(d.members) == 1}
    for draft in drafts:
        if draft.kind == tensor.GroupKind.CONTRACTION:
            absorb_prologues(draft.members[0], alone)
        elif draft.kind == tensor.GroupKind.CHAIN:
            for product in [m for m in draft.members if notes.CONTRACTION.present(m)]:
                absorb_gathers(product, alone)
    return [d for d in drafts if d.members[0].parent is not None]


def _source_of(value: Value) -> Operation | None:
    """The computation, loop or concatenation that produces a value, through views."""
    op = _behind_views(value).defining_op
    return op if isinstance(op, Computation | Between) else None


def _behind_views(value: Value) -> Value:
    """The value that views show, up to an operation that stands between kernels."""
    while isinstance(view := value.defining_op, tensor.View) and not isinstance(view, Between):
        value = view.x
    return value


def _producers(op: Operation, symbols: Mapping[Expr, Operation] | None = None) -> list[Operation]:
    """The operations of the same block that produce an operation's operands or define `symbols` that it
    mentions.

    Operands of a loop are all values that its body reads.
    """
    if isinstance(op, tensor.Nested | tensor.BindSize | tensor.Check):
        values = [v for inner in op.walk() for v in inner.operands]
    elif isinstance(op, tensor.Argsort):
        values = [op.x]
    elif isinstance(op, kernels.Run):
        values = list(op.inputs)
    elif isinstance(op, tensor.Concat):
        values = list(op.parts)
    elif isinstance(op, tensor.After):
        values = list(op.operands)
    else:
        assert isinstance(op, (tensor.Compute, tensor.Scatter))
        values = [r.source for r in op.reads]
    if isinstance(op, tensor.Scatter):
        values.append(op.dest)
    sources = dict.fromkeys(p for v in values if (p := _source_of(v)) is not None)
    producers = [
        p for p in sources if p.parent is op.parent
    ]  # what stands before a loop cannot be a member of a group inside the loop
    return [*producers, *definers_of(op, symbols)] if symbols else producers


class _Room(NamedTuple):
    """Room for the intermediate values of a row."""

    bytes: int
    element: int
    """The least bytes that an element takes there."""


def _draft(
    block: Block,
    row_groups: bool,
    room: _Room | None,
    free: frozenset[Operation] = frozenset(),
    most: int | None = None,
) -> list[_Draft]:
    """The groups of a block. Intermediate values of a row of a row group fit in `room` (None: they have any
    size), but for those of the members `free`. Fusion makes no group with more than `most` buffers.
    """
    drafts: list[_Draft] = []
    home: dict[Operation, _Draft] = {}
    symbols = definitions(block)
    for op in block.ops:
        if not isinstance(op, Computation | Between):
            continue
        sources = [home[p] for p in _producers(op, symbols)]
        target = _home_for(op, sources, row_groups, room, free, most)
        if target is None and row_groups:
            target = _home_of_siblings(op, sources, home, most)
        if target is None:
            target = _new_draft(op, row_groups)
            target.bit = 1 << len(home)
            target.needs = _behind(sources)
            drafts.append(target)
            home[op] = target
            continue
        target.members.append(op)
        home[op] = target
        before = target.needs
        sources = _absorb(target, sources, drafts, home, most)
        target.needs |= _behind(sources) & ~target.bit
        if target.needs & ~before:  # drafts that depend on the target now depend on its new needs, too
            for other in drafts:
                if other.needs & target.bit:
                    other.needs |= target.needs
    return drafts


def _behind(sources: list[_Draft]) -> int:
    """The bits of `sources` and of all drafts that these depend on."""
    bits = 0
    for s in sources:
        bits |= s.bit | s.needs
    return bits


def _absorb(
    target: _Draft,
    sources: list[_Draft],
    drafts: list[_Draft],
    home: dict[Operation, _Draft],
    most: int | None,
) -> list[_Draft]:
    """Merge other producers' drafts that are elementwise over the same points into `target`; return the
    sources left.
    """
    left = []
    # Including the needs of the operation that has just joined.
    wanted = target.needs | _behind([s for s in sources if s is not target])
    for other in dict.fromkeys(sources):  # several producers may be members of one draft
        verdict = other is not target and _joins(other, target, wanted, drafts, most)
        if not verdict:
            refused(RULE, verdict, target.members[-1], other.members)
            left.append(other)
        else:
            drafts.remove(other)
            places = {m: k for k, m in enumerate(home)}
            target.members = sorted([*other.members, *target.members], key=places.__getitem__)
            target.needs = (target.needs | other.needs) & ~(target.bit | other.bit)
            for m in other.members:
                home[m] = target
            for draft in drafts:
                if draft.needs & other.bit:
                    draft.needs = draft.needs & ~other.bit | target.bit
    return left


def _joins(
    other: _Draft, target: _Draft, wanted: int, drafts: list[_Draft], most: int | None
) -> bool | Refusal:
    """Whether a producer's draft is merged into `target`, which needs the drafts of the bits `wanted`."""
    if not _is_elementwise(target) or not _is_elementwise(other):
        return Refusal("only elementwise computations join the kernel that the reader is already part of")
    if other.rows != target.rows:
        return Refusal("the kernel that the reader is part of runs over other points")
    if not _same_points(other, target):
        return Refusal("the reader reads elements at other points than its own")
    if not _few_buffers([*other.members, *target.members], most):
        return Refusal(f"the kernel would have more than the {most} buffers that the target allows")
    between = (d for d in drafts if d is not other and d is not target)
    if any(
        (d.needs & other.bit and wanted & d.bit) or (d.needs & target.bit and other.needs & d.bit)
        for d in between
    ):
        return CYCLE
    return True


def _few_buffers(members: list[Any], most: int | None) -> bool:
    """Whether a kernel of these computations has at most `most` buffers: values from outside, and results
    that are used outside.
    """
    if most is None or not all(isinstance(m, tensor.Compute) for m in members):
        return True
    inside = set(members)
    read = {_behind_views(r.source) for m in members for r in m.reads}
    taken = sum(1 for value in read if value.defining_op not in inside)
    given = sum(1 for m in members if any(u.parent_op not in inside for u in m.result.users))
    return taken + given <= most


def _same_points(producer: _Draft, reader: _Draft) -> bool:
    """Whether members of `reader` read those of `producer` only at their own point."""
    produced = {m.result for m in producer.members}
    return all(
        r.source in produced and not r.guard and not r.dynamic and at_same_point(r.indices, m.axes)
        for m in reader.members
        for r in m.reads
        if _source_of(r.source) in producer.members
    )


def _is_elementwise(draft: _Draft) -> bool:
    return (
        draft.kind == tensor.GroupKind.ROWS
        and not draft.closed
        and not any(
            not isinstance(m, tensor.Compute) or m.is_reduction or tuple(m.result.type.shape) != draft.rows
            for m in draft.members
        )
    )


def _new_draft(op: Operation, row_groups: bool) -> _Draft:
    if row_groups and isinstance(op, tensor.Scan) and match_recurrence(op) is not None:
        return _Draft([op], tensor.GroupKind.RECURRENCE, closed=True)
    if isinstance(op, Between):
        return _Draft([op], "loop", closed=True)  # stands between groups, is never a group
    if isinstance(op, tensor.Scatter):
        return _Draft([op], tensor.GroupKind.SCATTER, closed=True)
    if isinstance(op, tensor.Argsort):
        return _Draft([op], tensor.GroupKind.ARGSORT, closed=True)
    if isinstance(op, kernels.Run):
        return _Draft([op], tensor.GroupKind.CALL, closed=True)
    if notes.CONTRACTION.present(op):
        return _Draft([op], tensor.GroupKind.CONTRACTION)
    if row_groups and isinstance(op, tensor.Compute) and match_cumulative(op) is not None:
        return _Draft([op], tensor.GroupKind.CUMULATIVE, closed=True)
    return _Draft([op], tensor.GroupKind.ROWS, tuple(op.result.type.shape))


def _home_for(
    op: Operation,
    sources: list[_Draft],
    row_groups: bool,
    room: _Room | None,
    free: frozenset[Operation],
    most: int | None,
) -> _Draft | None:
    """A draft among the producers' that can take the operation as a member; None where there is none."""
    alone = _stays_alone(op, row_groups)
    for draft in dict.fromkeys(sources):
        verdict = _takes(draft, op, sources, row_groups, room, free, most) if alone is None else alone
        if verdict is True:
            return draft
        refused(RULE, verdict, op, draft.members)
    return None


def _stays_alone(op: Operation, row_groups: bool) -> Refusal | None:
    """The reason for which an operation begins a kernel, whatever produces its operands; None if there is
    none.
    """
    if isinstance(op, Between):
        return Refusal("the reader is not a kernel: it stands between kernels")
    if not isinstance(op, tensor.Compute):
        return Refusal(f"the reader is a {op.name.partition('.')[2]}, which is a kernel of its own")
    if notes.CONTRACTION.present(op):
        return Refusal("the reader is a contraction, which begins a kernel")
    if row_groups and match_cumulative(op) is not None:
        return Refusal("the reader is a cumulative sum, which is a kernel of its own")
    return None


def _takes(
    draft: _Draft,
    op: Operation,
    sources: list[_Draft],
    row_groups: bool,
    room: _Room | None,
    free: frozenset[Operation],
    most: int | None,
) -> bool | Refusal:
    """Whether a draft takes a computation as a member, and with it the rows that both share."""
    assert isinstance(op, tensor.Compute)
    if draft.closed:
        return Refusal("the producer's kernel is complete: it takes no further computations")
    if not _few_buffers([*draft.members, op], most):
        return Refusal(f"the kernel would have more than the {most} buffers that the target allows")
    if any(other.needs & draft.bit for other in sources):
        return CYCLE
    if draft.kind == tensor.GroupKind.CONTRACTION:
        verdict = _is_epilogue(draft, op)
        draft.closed = verdict is True
        return verdict
    first = draft.members[0]
    assert isinstance(first, tensor.Compute)  # the draft of a scatter is closed
    if not row_groups and (first.is_reduction or op.is_reduction):
        if len(draft.members) > 1 or not first.is_reduction:
            return Refusal("this level of optimization joins reductions with their epilogue only")
        verdict = _is_epilogue(draft, op)
        draft.closed = verdict is True
        return verdict
    rows = _common_rows(draft, op, None if free.issuperset([*draft.members, op]) else room)
    if isinstance(rows, Refusal):
        return rows
    draft.rows = rows
    return True


JOINED_ROWS = 64
"""Least number of rows of a concatenation for which one kernel copies all parts.

With fewer rows there is too little to share among threads, and each part is a kernel of its own. A larger
value leads to more, smaller kernels.
"""


def _home_of_siblings(
    op: Operation, sources: list[_Draft], home: dict[Operation, _Draft], most: int | None
) -> _Draft | None:
    """The draft of other parts of the same concatenation, which one kernel copies row by row; None where
    there is none.
    """
    place = place_of(op.results[0]) if notes.CONCAT_AXIS.present(op) else None
    if place is None or not isinstance(op, tensor.Compute) or op.is_reduction:
        return None
    rows = op.shape[: notes.CONCAT_AXIS.of(op)]
    most = bounds(product(rows))[1]
    if most is not None and most < JOINED_ROWS:
        return None
    for part in place.join.parts:
        draft = home.get(part.defining_op) if part.defining_op is not None else None
        if (
            draft is not None
            and all(
                isinstance(m, tensor.Compute) and not m.is_reduction and notes.CONCAT_AXIS.present(m)
                for m in draft.members
            )
            and draft.kind == tensor.GroupKind.ROWS
            and _few_buffers([*draft.members, op], most)
            and not any(s is draft or s.needs & draft.bit for s in sources)
        ):
            draft.rows = rows
            return draft
    return None


def _is_epilogue(draft: _Draft, op: tensor.Compute) -> bool | Refusal:
    (contraction,) = draft.members
    result = contraction.result
    if op.is_reduction:
        return Refusal("the reader is a reduction, which cannot be the epilogue of a contraction")
    if op.result.type.shape != result.type.shape:
        return Refusal("the reader has another shape than the contraction")
    if op.dtype is boolean:
        return Refusal("the reader gives booleans, which cannot be stored in place of the contraction's sums")
    reads = [r for r in op.reads if r.source is result]
    if not reads or any(r.guard or r.dynamic or not at_same_point(r.indices, op.axes) for r in reads):
        return Refusal("the reader reads elements of the contraction at other points than its own")
    if set(result.users) != set(reads):
        return Refusal("the contraction has other readers, too")
    for r in reads:
        r.indices = tuple(op.axes)  # schedules then see that it reads what it overwrites
    return True


def _common_rows(draft: _Draft, op: tensor.Compute, room: _Room | None) -> tuple[Dim, ...] | Refusal:
    """The leading dimensions that the draft keeps when it takes `op`, or the reason why it cannot take it."""
    members = set(draft.members)
    axes, shape = op.axes, op.result.type.shape
    limit = min(len(draft.rows), len(shape))
    for read in op.reads:
        source = _source_of(read.source)
        if source not in members:
            continue
        if read.source.defining_op is not source or read.guard or read.dynamic:
            # behind a view, the leading index does not identify the row
            return Refusal("the reader reads it through a change of shape, a border or at indices from data")
        matching = 0
        for d, (index, axis) in enumerate(zip(read.indices, axes, strict=False)):
            if not at_same_point((index,), (axis,)) or d >= limit or not prove_eq(draft.rows[d], shape[d]):
                break
            matching += 1
        limit = min(limit, matching)
    rows = draft.rows[:limit]
    if not _all_unit(draft.rows[limit:]) and not (op.is_reduction and _all_unit(shape[limit:])):
        # any other than a reduction of the last axes would lose parallelism
        return Refusal(
            f"only the first {limit} of {len(draft.rows)} dimensions are common rows, and the reader is no "
            "reduction of the last ones"
        )
    everything = [*draft.members, op]
    if all(
        not m.is_reduction and m.result.type.shape == shape
        for m in everything
        if isinstance(m, tensor.Compute)
    ):
        # All members are elementwise: one kernel is worthwhile only if they run over the same points.
        return rows if limit == len(shape) else Refusal("both are elementwise, over different points")
    # The work of a row must be worth a loop, and the row's intermediate values must fit in the cache.
    if not rows:
        return Refusal("the two have no rows in common")
    if room is None:
        return rows
    budget = room.bytes if not _all_unit(rows) else room.bytes // 4
    for m in everything:
        rest = product(m.result.type.shape[limit:]) * max(m.result.type.dtype.itemsize, room.element)
        size = bounds(rest)[1] if not isinstance(rest, int) else rest
        if size is None or size > budget:
            return Refusal(f"the intermediate values of a row take more than {budget} bytes")
    return rows


def _is_unit(d: Dim) -> bool:
    return isinstance(d, int) and d == 1


def _all_unit(dims: tuple[Dim, ...]) -> bool:
    return all(_is_unit(d) for d in dims)


NO_BLOCK = Refusal("the chain is not attention whose smallest tiles fit into a block of the device")
LARGE_OPERAND = Refusal(
    "in a chain, each tile of rows would read the whole right operands, which are too large"
)
CHAIN_COLUMNS = 1 << 20
"""Longest row, in elements, of a chain's intermediate matrix. Longer rows leave the products as kernels of
their own.

Chains take long rows a block of columns at a time.
"""


def _chain_contractions(drafts: list[_Draft], gpu: Gpu | None) -> list[_Draft]:
    """Merge drafts (contraction, rows, contraction) that pass rows of one matrix on into chains. On a GPU
    only attention is a chain.
    """
    home: dict[Operation, _Draft] = {m: d for d in drafts for m in d.members}
    gone: set[_Draft] = set()
    for last in drafts:
        middle = _rows_before(last, home, gpu)
        first = _contraction_before(middle, home) if middle is not None else None
        if middle is None or first is None or {first, middle, last} & gone:
            continue
        if gpu is not None:
            if not _fits_block(first, middle, last, gpu):
                refused(RULE, NO_BLOCK, last.members[0], middle.members)
                continue
        elif not all(_right_operand_fits(d.members[0], _is_softmax(middle)) for d in (first, last)):
            refused(RULE, LARGE_OPERAND, last.members[0], middle.members)
            continue
        last.members = [*first.members, *middle.members, *last.members]
        last.kind = tensor.GroupKind.CHAIN
        gone |= {first, middle}
    return [d for d in drafts if d not in gone]


def _join_transforms(drafts: list[_Draft]) -> list[_Draft]:
    """Merge the transform of tiles, their products, and the transform of the results into one draft."""
    home: dict[Operation, _Draft] = {m: d for d in drafts for m in d.members}
    gone: set[_Draft] = set()
    for middle in drafts:
        (m, *others) = middle.members
        if not notes.TRANSFORMED.present(m) or middle.kind != tensor.GroupKind.CONTRACTION or others:
            continue
        columns = {m.axes[p] for p in roles.n} if (roles := Roles.of(m)) is not None else set()
        tiles = [r.source.defining_op for r in m.reads if not columns & symbols_of(r.indices)]
        first = home.get(tiles[0]) if len(tiles) == 1 and tiles[0] is not None else None
        behind = {home.get(_computation_around(user)) for user in m.result.users}
        last = behind.pop() if len(behind) == 1 else None
        if first is None or last is None:
            continue
        alone = all(d.kind == tensor.GroupKind.ROWS and len(d.members) == 1 for d in (first, last))
        if not alone or any(_computation_around(u) is not m for u in first.members[0].result.users):
            continue
        op = last.members[0]
        if isinstance(op, tensor.Compute) and not op.is_reduction and _in_known_tiles(m, op):
            last.members = [first.members[0], m, op]
            last.kind = tensor.GroupKind.TILES
            gone |= {first, middle}
    return [d for d in drafts if d not in gone]


def _in_known_tiles(products: tensor.Compute, image: tensor.Compute) -> bool:
    """Whether all sizes of transformed tiles are known, and the image has several rows, columns and channels,
    which tiles and vectors divide.
    """
    known = all(isinstance(axis.upper, int) for axis in (*image.axes, *products.reduce_axes))
    return known and all(axis.upper != 0 for axis in image.axes[1:])


CHAIN_OPERAND_BYTES = 1 << 28
"""Largest right operand, in bytes per batch entry, of the contractions of a chain.

An operand that exceeds the cache is loaded again for each tile of rows, but the intermediate matrix never
goes to memory. A larger value makes chains of longer sequences.
"""
CHAIN_WEIGHT_BYTES = 1 << 20
"""Largest right operand, in bytes, of a chain's contractions without batch axes and without a softmax.

All rows share this matrix, so it is better to read it for many rows at a time, as a contraction alone does.
Axes of extent 1 do not count: an output head has such an axis for one sequence.
"""


LARGEST_HEAD = 256
"""The most elements of a query, key or value of attention for which a block of a GPU computes a chain: the
weighted values of 16 to 64 queries lie in its registers.
"""
LEAST_TILE = 16
"""Queries, and keys, of the smallest tile of attention in a block."""


def _fits_block(first: _Draft, middle: _Draft, last: _Draft, gpu: Gpu) -> bool:
    """Whether a chain is attention whose smallest tiles fit into the shared memory of a block."""
    scores, values = first.members[0], last.members[0]
    roles, others = Roles.of(scores), Roles.of(values)
    if roles is None or others is None or len(roles.n) != 1 or len(others.n) != 1 or len(roles.k) != 1:
        return False
    if roles.quantized or others.quantized or roles.grouped or others.grouped:
        return False
    if not roles.m:
        return False  # one query of each head: no tile has rows that share keys
    depth, width = (bounds(extent(a))[1] for a in (scores.reduce_axes[0], values.axes[others.n[0]]))
    if depth is None or width is None or max(depth, width) > LARGEST_HEAD:
        return False
    bytes_ = LEAST_TILE * (-(-width // LEAST_TILE) * LEAST_TILE + 64) * 4 + 2 * LEAST_TILE**2 * 4
    # Values of rows, unused elements at ends of rows, and what threads without shuffles exchange.
    return bytes_ + 5 * 1024 <= gpu.shared_bytes and _is_softmax(middle)


def _is_softmax(rows: _Draft) -> bool:
    """Whether a row group has the maxima, exponentials and sums of a softmax."""
    combiners = [m.combiner for m in rows.members if isinstance(m, tensor.Compute) and m.is_reduction]
    stored = [m.body.terminator.operands[0] for m in rows.members if isinstance(m, tensor.Compute)]
    while any(isinstance(v.defining_op, scalar.Cast) for v in stored):
        stored = [v.defining_op.x if isinstance(v.defining_op, scalar.Cast) else v for v in stored]
    return sorted(combiners) == ["max", "sum"] and any(
        isinstance(v.defining_op, scalar.UNARY["exp"]) for v in stored
    )


def _right_operand_fits(op: Computation, attention: bool) -> bool:
    """Whether a contraction's right operand is small enough for a chain; `attention` says that a softmax is
    between the chain's contractions, so that the operand may be the keys or values of a single head.
    """
    roles = Roles.of(op)
    if roles is None or roles.quantized or not isinstance(op, tensor.Compute):
        return False
    elements = product(extent(a) for a in (*(op.axes[p] for p in roles.n), *op.reduce_axes))
    most = bounds(elements)[1]
    batched = attention or any(op.axes[p].upper != 0 for p in roles.batch)
    limit = CHAIN_OPERAND_BYTES if batched else CHAIN_WEIGHT_BYTES
    return most is not None and most * op.dtype.itemsize <= limit


def _rows_before(last: _Draft, home: dict[Operation, _Draft], gpu: Gpu | None) -> _Draft | None:
    """The row group whose only result is the left operand of a draft's contraction, row for row."""
    op = last.members[0]
    if (
        last.kind != tensor.GroupKind.CONTRACTION
        or not isinstance(op, tensor.Compute)
        or len(op.reduce_axes) != 1
    ):
        return None
    for read in op.reads:
        middle = home.get(read.source.defining_op) if read.source.defining_op is not None else None
        *rows, column = read.indices
        if (
            middle is None
            or middle.kind != tensor.GroupKind.ROWS
            or column is not op.reduce_axes[0]
            or op.axes[-1] in rows
        ):
            continue
        long = [e for e, n in zip(rows, read.source.type.shape, strict=False) if not _is_unit(n)]
        if len(set(long)) != len(long) or not set(long) <= set(op.axes) or len(middle.rows) != len(rows):
            continue
        limit = bounds(extent(column))[1]
        if gpu is None and (limit is None or limit > CHAIN_COLUMNS):
            continue
        inside = set(middle.members)
        users = [
            user
            for m in middle.members
            for user in m.result.users
            if _computation_around(user) not in inside
            and not (gpu is not None and _all_unit(m.result.type.shape[len(middle.rows) :]))
        ]
        if all(user is read or _reads_row(user, last, rows) for user in users):
            return middle
    return None


def _reads_row(user: Operation, last: _Draft, rows: list[Dim]) -> bool:
    """Whether the epilogue of a chain's last contraction reads a value of the row `rows`, given in the
    contraction's axes.
    """
    around = _computation_around(user)
    if not isinstance(user, tensor.Read) or around not in last.members[1:] or user.guard or user.dynamic:
        return False
    assert isinstance(around, tensor.Compute)
    mapping: dict[Expr, Dim] = dict(zip(last.members[0].axes, around.axes, strict=True))
    wanted = substitute_all(tuple(rows), mapping)
    indices = tuple(user.indices)
    return indices[: len(wanted)] == wanted and all(isinstance(e, int) for e in indices[len(wanted) :])


def _contraction_before(middle: _Draft, home: dict[Operation, _Draft]) -> _Draft | None:
    """The contraction whose result only the row group `middle` reads, each member at its own row."""
    contraction = None
    for m in middle.members:
        for p in _producers(m):
            draft = home[p]
            if draft is not middle and draft.kind == tensor.GroupKind.CONTRACTION:
                if contraction is not None and draft is not contraction:
                    return None
                contraction = draft
    if contraction is None:
        return None
    result = contraction.members[-1].result
    rows = len(middle.rows)
    if len(result.type.shape) != rows + 1:
        return None
    inside = set(middle.members)
    for user in result.users:
        around = _computation_around(user)
        if around not in inside or not isinstance(user, tensor.Read) or user.guard or user.dynamic:
            return None
        if not isinstance(around, tensor.Compute):
            return None
        if not at_same_point(user.indices[:rows], around.axes[:rows]):
            return None
    return contraction


def _enclose(draft: _Draft) -> None:
    """Move the members of a draft into a new group behind the last of them."""
    members = draft.members
    last = members[-1]
    assert last.parent is not None
    inside = {r for m in members for r in m.results}
    # The places of each value of the outside. A kernel of the user's may change an input that it also gets as
    # another, so each of its places is an argument of its own.
    places: dict[tuple[Value, int], list[tuple[Operation, int]]] = {}
    for m in members:
        for op in (m, *_body(m)):
            for k, v in enumerate(op.operands):
                if v not in inside and (op is m or _from_outside(v, m)):
                    places.setdefault((v, k if isinstance(op, kernels.Run) else 0), []).append((op, k))
    outputs = [
        r
        for m in members
        for r in m.results
        if isinstance(m, kernels.Run) or any(_computation_around(user) not in members for user in r.users)
    ]
    anchor = last.next
    while anchor in members:  # what a chain stores for each row may stand behind its products
        anchor = anchor.next
    block = last.parent
    operands, types = [v for v, _ in places], [v.type for v in outputs]
    group = tensor.Group(operands, kind=draft.kind, result_types=types, location=last.location)
    if draft.kind == tensor.GroupKind.ROWS:
        notes.ROW_AXES.set(group, len(draft.rows))
    for m in members:
        group.body.append(m)
    for (v, _), uses in places.items():
        argument = group.body.add_arg(v.type, v.hint)
        for op, k in uses:
            op.set_operand(k, argument)
    for value, result in zip(outputs, group.results, strict=True):
        for user, k in list(value.uses):
            if _computation_around(user) not in members:
                user.set_operand(k, result)
    group.body.append(tensor.Yield(outputs))
    block.insert_before(anchor, group)


def _body(op: Computation) -> list[Operation]:
    return [] if isinstance(op, tensor.Argsort | kernels.Run) else list(op.body.ops)


def _from_outside(v: Value, member: Operation) -> bool:
    """Whether a value that a member's body uses is defined outside of the member."""
    op = v.defining_op
    return op is None or op.parent_op is not member


def _computation_around(op: Operation) -> Operation:
    """The computation that a read belongs to, or the operation itself."""
    parent = op.parent_op
    return parent if isinstance(parent, (tensor.Compute, tensor.Scatter)) else op


__all__ = ["form_groups"]
