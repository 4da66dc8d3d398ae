"""Chooses results that can reuse the buffer of an argument or of a tensor that is not read afterwards.

The `updates` of a function are new values of its own arguments. An update is written in place if nothing
reads the old value afterwards: a model that extends a cache then writes the new elements only, and does not
copy the cache. Other updates are copied at the end of the run. The values that a loop carries are treated
likewise: others alternate between two buffers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from ...analysis.index_maps import flatten_index, substitute_all
from ...dialects import func, kernels, tensor
from ...dialects.places import place_of
from ...dialects.tensor import Read
from ...ir import notes
from ...ir.cleanup import sort_block
from ...ir.core import Block, BlockArgument, IRError, Module, Operation, OpResult, Value
from ...ir.symbolic import Dim, Expr, prove_eq, prove_le
from ...ir.walk import reachable


@dataclass
class _Chosen:
    """Values and an order that later choices for a block keep."""

    written: set[Value] = field(default_factory=set)
    """The values written to the memory of arguments."""
    earlier: dict[Operation, set[Operation]] = field(default_factory=dict)
    """The operations that must precede an operation."""


def computed(value: Value, block: Block) -> list[Value] | None:
    """The values that share a buffer with `value` if operations of `block` compute them in a buffer of their
    own choice.

    The first is `value`, followed by what it is a view of, or what a scatter overwrites to produce it. None
    if the values already have a place, such as that of an argument.
    """
    chain = [value]
    while (before := _same_memory(chain[-1])) is not None:
        chain.append(before)
    op = chain[-1].defining_op
    if isinstance(op, tensor.Scan):
        chosen = chain[-1] in op.results[len(op.initial) :]
    else:
        chosen = isinstance(op, (tensor.Group, tensor.Concat, tensor.If))
    return chain if chosen and op is not None and op.parent is block else None


def _same_memory(value: Value) -> Value | None:
    """The value that had the same memory before: the source of a view, or what a scatter or a kernel of the
    user's in this function overwrites.
    """
    op = value.defining_op
    if isinstance(op, tensor.Reshape):
        return op.x
    if isinstance(op, tensor.Group) and isinstance(value, OpResult):
        number = dict(notes.OVERWRITES.get(op, ())).get(value.index)
        if number is None:
            return None
        before = op.operands[number]
        return None if isinstance(memory_of(before), BlockArgument) else before
    return None


def write_in_place(module: Module) -> None:
    """Choose the function's updates and the values carried by loops that are computed in their arguments'
    buffers, and the scatters and kernels of users' that overwrite an operand.

    Notes the choice at the function (`UPDATED_IN_PLACE`), at the loops (`CARRIED_IN_PLACE`) and at the groups
    (`OVERWRITES`).
    """
    chosen: defaultdict[Block, _Chosen] = defaultdict(_Chosen)
    for function in module.functions(func.Func):
        if function.updates:
            written = _written_in_place(function.body, function.updated, chosen[function.body])
            names = tuple(function.updates[k] for k in written)
            notes.UPDATED_IN_PLACE.set(function, names)
    for op in module.walk():
        if isinstance(op, tensor.Scan | tensor.While):
            # A value is computed in a stacked result if one of its slices, perhaps another view, lies there.
            stacked = [chain[-1] for v in op.slices if (chain := computed(v, op.body)) is not None]
            numbers = [
                k
                for k, v in enumerate(op.carried)
                if (chain := computed(v, op.body)) is not None and chain[-1] not in stacked
            ]
            pairs = [(op.body.args[k], op.carried[k]) for k in numbers]
            if written := _written_in_place(op.body, pairs, chosen[op.body]):
                notes.CARRIED_IN_PLACE.set(op, tuple(numbers[k] for k in written))
    for block in tensor.blocks_of_computations(module):
        _overwrite_dying(block, chosen[block])


def _overwrite_dying(block: Block, chosen: _Chosen) -> None:
    """Let operations overwrite tensors that `block` computes and that nothing reads afterwards.

    A scatter's result that is written to an argument's memory overwrites no other value: that one would be
    computed in this memory too, while the argument's old value is still read. A kernel that changes its
    input, as the end of a collective operation does, has no other form: the readers of the old value then
    precede also the operations that compute the input.
    """
    numbers: dict[OpResult, int] = {}
    earlier = {op: set(before) for op, before in chosen.earlier.items()}
    for result in [r for op in block.ops if isinstance(op, tensor.Group) for r in op.results]:
        op = result.op
        version = _changed_version(result) if not _is_written(result) else None
        if version is None or place_of(result) is not None:
            continue
        if result in chosen.written and not _changes_input(result):
            continue
        maker = version.defining_op
        if (
            not isinstance(version, OpResult)
            or not isinstance(maker, tensor.Group | tensor.Concat)
            or maker.parent is not block
        ):
            continue
        number = _overwritten(result, version, block)
        readers = readers_in(version, block) - {op}
        if (
            number is None
            or number < 0
            or not _only_reshaped(op.operands[number])
            or any(r.terminator for r in readers)
        ):
            continue
        numbers[result] = number
        earlier.setdefault(op, set()).update(readers)
        if result in chosen.written:
            makers = makers_of(maker)
            for first in makers:
                earlier.setdefault(first, set()).update(chosen.earlier.get(op, set()) - {*makers, op})
    if not _put_before(block, earlier):
        place = {op: k for k, op in enumerate(block.ops)}
        numbers = {r: n for r, n in numbers.items() if all(place[x] < place[r.op] for x in earlier[r.op])}
    for result, number in numbers.items():
        overwrite(result, number)


def overwrite(result: OpResult, number: int) -> None:
    """Note that a group writes `result` in the memory of its operand `number`."""
    notes.OVERWRITES.set(result.op, (*notes.OVERWRITES.get(result.op, ()), (result.index, number)))


def _changes_input(result: OpResult) -> bool:
    """Whether a kernel of a group computes a result by changing one of its inputs."""
    value = result.op.body.terminator.operands[result.index]
    return isinstance(value.defining_op, kernels.Run)


def _is_written(result: OpResult) -> bool:
    return result.index in dict(notes.OVERWRITES.get(result.op, ()))


def _only_reshaped(value: Value) -> bool:
    """Whether a value is the result of an operation, or a reshape of one."""
    while isinstance(op := value.defining_op, tensor.Reshape):
        value = op.x
    return not isinstance(op, tensor.View)


def _written_in_place(block: Block, pairs: Sequence[tuple[Value, Value]], chosen: _Chosen) -> tuple[int, ...]:
    """The numbers of the pairs (argument, new value) of a block whose new value is written to the argument's
    memory, added to what is `chosen` for the block.

    The block is ordered so that all readers of an old value come first.
    """
    written: list[int] = []
    for number, (argument, value) in enumerate(pairs):
        chain = computed(value, block)
        if chain is None:
            continue
        results = versions_of(cast(OpResult, chain[-1]), argument)
        steps = list(zip((argument, *results), results, strict=False))
        overwritten = [_overwritten(result, version, block) for version, result in steps]
        if chosen.written.intersection(results) or None in overwritten:
            continue
        # All readers of a version of the argument's value run before the next version is computed.
        wanted = {op: set(before) for op, before in chosen.earlier.items()}
        for version, result in steps:
            readers = readers_in(version, block) - {result.op}
            for maker in makers_of(result.op):
                wanted.setdefault(maker, set()).update(readers)
        if not _put_before(block, wanted):
            continue
        chosen.earlier = wanted
        for (_, result), place in zip(steps, overwritten, strict=True):
            if place is not None and place >= 0:  # what it changes
                overwrite(result, place)
        written.append(number)
        chosen.written.update(results)
    return tuple(written)


def _put_before(block: Block, earlier: dict[Operation, set[Operation]]) -> bool:
    """Order a block so that all operations of `earlier[op]` precede `op`.

    Returns False, and leaves the block as it is, if one of them depends on `op`.
    """
    place = {op: k for k, op in enumerate(block.ops)}
    if all(place[reader] < place[op] for op, readers in earlier.items() for reader in readers):
        return True
    if any(reader.terminator for readers in earlier.values() for reader in readers):
        return False
    try:
        sort_block(block, {op: sorted(readers, key=place.__getitem__) for op, readers in earlier.items()})
    except IRError:
        return False
    return True


def versions_of(result: OpResult, argument: Value) -> list[OpResult]:
    """The successive values in an argument's buffer, first to last; several if operations change it one after
    another.
    """
    versions = [result]
    while (before := _changed_version(versions[0])) is not argument:
        if not isinstance(before, OpResult):
            return [result]
        versions.insert(0, before)
    return versions


def _changed_version(result: OpResult) -> Value | None:
    """The tensor that a result is but for some elements, see `changed_operand`."""
    number = changed_operand(result)
    return None if number is None else memory_of(result.op.operands[number])


def changed_operand(result: OpResult) -> int | None:
    """The number of the operand of a group that a result is but for some elements: what a scatter writes
    into, or the input that a kernel of the user's changes. None for other results.
    """
    group = result.op
    if not isinstance(group, tensor.Group):
        return None
    value = group.body.terminator.operands[result.index]
    op, arg = value.defining_op, None
    if isinstance(op, tensor.Scatter) and len(group.results) == 1:
        arg = op.dest
    elif isinstance(op, kernels.Run) and isinstance(value, OpResult):
        number = kernels.definition_of(op).in_place.get(value.index)
        arg = None if number is None else op.inputs[number]
    return list(group.body.args).index(arg) if arg in group.body.args else None


def updates_in_place(main: func.Func) -> set[Value]:
    """The arguments whose updates `write_in_place` has chosen."""
    return {
        a
        for n, a in zip(main.arg_names, main.body.args, strict=True)
        if n in notes.UPDATED_IN_PLACE.get(main, ())
    }


def makers_of(op: Operation | None) -> list[Operation]:
    """The operations that write the memory of an operation's results; for a concatenation, those that compute
    its parts.
    """
    parts = reachable(
        [op], lambda x: [p.defining_op for p in x.parts] if isinstance(x, tensor.Concat) else []
    )
    return [x for x in parts if x is not None and not isinstance(x, tensor.Concat)]


def readers_in(value: Value, block: Block) -> set[Operation]:
    """The operations of `block` that read a value, themselves or in their regions, also through views and as
    the result of a loop that may make no step.
    """
    readers: set[Operation] = set()
    for op in (x for v in reachable([value], _results_without_steps) for x in tensor.readers(v, tensor.View)):
        while op.parent is not block:
            above = op.parent_op
            assert above is not None
            op = above
        readers.add(op)
    return readers


def may_make_no_step(op: Operation) -> bool:
    """Whether an operation is a loop that may make no step; its results are then the initial values, in their
    memory.
    """
    if isinstance(op, tensor.Scan):
        return not prove_le(1, tensor.extent(op.step))
    return isinstance(op, tensor.While)


def _results_without_steps(value: Value) -> Iterator[Value]:
    """The results of loops that are `value` if the loops make no step."""
    for op in tensor.readers(value, tensor.View):
        if isinstance(op, tensor.Scan | tensor.While) and may_make_no_step(op):
            pairs = zip(op.initial, op.results, strict=False)
            yield from (result for initial, result in pairs if memory_of(initial) is memory_of(value))


def memory_of(value: Value) -> Value:
    """The value behind a chain of views."""
    while isinstance(op := value.defining_op, tensor.View):
        value = op.x
    return value


def _overwritten(result: OpResult, version: Value, block: Block) -> int | None:
    """How the operation that computes `result` may overwrite `version`.

    The number of the operand that it changes in place; -1 for an operation that writes all elements; None if
    it may not overwrite it.
    """
    maker = result.op
    if maker not in readers_in(version, block):
        return -1
    numbers = [k for k, v in enumerate(maker.operands) if memory_of(v) is version]
    if not isinstance(maker, tensor.Group) or len(numbers) != 1:
        return None
    if maker.kind in (tensor.GroupKind.SCATTER, tensor.GroupKind.CALL):
        arg = maker.body.args[numbers[0]]
        if changed_operand(result) == numbers[0] and len(arg.users) == 1 and not scatter_reads(maker, arg):
            return numbers[0]
        return None
    return -1 if (result.index, numbers[0]) in in_place_pairs(maker) else None


def scatter_reads(group: tensor.Group, arg: Value) -> bool:
    """Whether an operation of a group reads elements of its argument."""
    return any(isinstance(op, Read) and op.source is arg for op in group.walk())


def in_place_pairs(group: tensor.Group) -> tuple[tuple[int, int], ...]:
    """The (output, input) numbers of a group that may share a buffer.

    The last read of each element of the input must be at the point where the output is written, which a
    reduction writes more than once. Members of a
    contraction's or tiles' group share no rows, so only the epilogue may read what it overwrites.
    """
    if notes.OVERWRITES.present(group):
        return notes.OVERWRITES.of(group)
    if group.kind not in (tensor.GroupKind.ROWS, tensor.GroupKind.CONTRACTION, tensor.GroupKind.TILES):
        return ()
    members = [m for m in group.body.ops if isinstance(m, tensor.Compute)]
    rows = int(notes.ROW_AXES.of(group)) if group.kind == tensor.GroupKind.ROWS else None
    pairs = []
    for k, value in enumerate(group.body.terminator.operands):
        if place_of(group.results[k]) is not None:
            continue  # it has a place in a concatenation
        writer = next(k for k, m in enumerate(members) if m.result is value)
        for n, arg in enumerate(group.body.args):
            if (
                arg.type.dtype is value.type.dtype
                and prove_eq(arg.type.size, value.type.size)
                and _dies_where_written(members, writer, arg, rows)
            ):
                pairs.append((k, n))
    return tuple(pairs)


def _dies_where_written(members: list[tensor.Compute], writer: int, arg: Value, rows: int | None) -> bool:
    for position, m in enumerate(members):
        reads = [x for x in m.reads if x.source is arg]
        if not reads:
            continue
        if position > writer or any(r.dynamic or (r.guard and position != writer) for r in reads):
            return False
        if position == writer and m.is_reduction:
            return False  # the first term may replace what the next one reads
        still: dict[Expr, Dim] = {
            axis: 0 for axis in m.axes if prove_eq(axis.upper, 0)
        }  # may be written as 0
        shape = members[writer].result.type.shape
        for r in reads:
            if position == writer or rows is not None and m.result.type.shape == shape:
                address = flatten_index(substitute_all(r.indices, still), arg.type.shape)
                written = flatten_index(substitute_all(m.axes, still), m.result.type.shape)
                if prove_eq(address, written):
                    continue
            if (
                position == writer
                or rows is None
                or tuple(r.indices[:rows]) != tuple(m.axes[:rows])
                or arg.type.shape[:rows] != shape[:rows]
            ):
                return False
    return True


__all__ = [
    "changed_operand",
    "computed",
    "in_place_pairs",
    "makers_of",
    "may_make_no_step",
    "memory_of",
    "overwrite",
    "readers_in",
    "updates_in_place",
    "versions_of",
    "write_in_place",
]
