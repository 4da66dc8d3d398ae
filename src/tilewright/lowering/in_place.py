"""Which results may be written where they belong, or where an input lies that dies there.

A function's `updates` are new values of its own arguments. One is written in place where nobody reads the old value afterwards: so a cache
that a model extends costs what is written to it, not a copy of the whole. What cannot be is copied at the end of the run.
"""

from __future__ import annotations

from typing import cast

from ..dialects import func, tensor
from ..dialects.tensor import Read
from ..ir.cleanup import sort_block
from ..ir.core import Block, BlockArgument, IRError, Module, Operation, OpResult, Value
from ..ir.symbolic import Dim, Expr, prove_eq
from ..ir.walk import reachable
from ..transforms.index_maps import flatten_index, substitute_all

WRITTEN = "tw.in_place"
"""Attribute of a function: the names of arguments that are updated in place."""
OVERWRITES = "tw.overwrites"
"""Attribute of a group whose only kernel scatters into the memory of one of its operands: that operand's number."""


def computed(value: Value, block: Block) -> list[Value] | None:
    """A value that operations of `block` compute in memory of their own choice, after what leads there: views of it, and values that are overwritten
    one after the other. None for one that lies somewhere already."""
    chain = [value]
    while (before := _same_memory(chain[-1])) is not None:
        chain.append(before)
    op = chain[-1].defining_op
    if isinstance(op, tensor.Scan):
        chosen = chain[-1] in op.results[len(op.initial) :]
    else:
        chosen = isinstance(op, (tensor.Group, tensor.Join, tensor.If))
    return chain if chosen and op is not None and op.parent is block else None


def _same_memory(value: Value) -> Value | None:
    """The value that lay in the same memory before: one that is viewed, or computed here and overwritten by a scatter."""
    op = value.defining_op
    if isinstance(op, tensor.Reshape):
        return op.x
    if isinstance(op, tensor.Group) and (number := op.attributes.get(OVERWRITES)) is not None:
        before = op.operands[number]
        return None if isinstance(_root(before), BlockArgument) else before
    return None


def write_in_place(module: Module) -> None:
    """Decide for each of the functions' updates whether it is made where its argument lies, and for scatters whether they write to where the
    tensor lies that they change; notes it at the function, and at scatters."""
    for function in module.functions(func.Func):
        if function.updates:
            _write_in_place(function)
    for block in tensor.blocks_of_computations(module):
        _overwrite_dying(block)


def _overwrite_dying(block: Block) -> None:
    """Let scatters into tensors that `block` computes write to where these lie, if nobody reads them afterwards."""
    found: dict[Operation, int] = {}
    earlier: dict[Operation, set[Operation]] = {}
    for op in block.ops:
        version = _scattered_into(op) if OVERWRITES not in op.attributes else None
        if version is None or tensor.place_of(op.results[0]) is not None:
            continue
        maker = version.defining_op
        if (
            not isinstance(version, OpResult)
            or not isinstance(maker, tensor.Group | tensor.Join)
            or maker.parent is not block
        ):
            continue
        number = _overwritten(op.results[0], version, block)
        readers = _readers(version, block) - {op}
        if (
            number is None
            or number < 0
            or not _only_reshaped(op.operands[number])
            or any(r.terminator for r in readers)
        ):
            continue
        found[op], earlier[op] = number, readers
    if not _put_before(block, earlier):
        place = {op: k for k, op in enumerate(block.ops)}
        found = {op: n for op, n in found.items() if all(place[r] < place[op] for r in earlier[op])}
    for op, number in found.items():
        op.attributes[OVERWRITES] = number


def _only_reshaped(value: Value) -> bool:
    """Whether a value is under another shape at most what an operation computes."""
    while isinstance(op := value.defining_op, tensor.Reshape):
        value = op.x
    return not isinstance(op, tensor.View)


def _write_in_place(main: func.Func) -> None:
    written: list[str] = []
    taken: set[Value] = set()
    earlier: dict[Operation, set[Operation]] = {}
    for name, (argument, value) in zip(main.updates, main.updated, strict=True):
        chain = computed(value, main.body)
        if chain is None:
            continue
        results = _versions(cast(OpResult, chain[-1]), argument)
        steps = list(zip((argument, *results), results, strict=False))
        overwritten = [_overwritten(result, version, main.body) for version, result in steps]
        if taken.intersection(results) or None in overwritten:
            continue
        # Whoever reads a version of the argument's value does so before the next one begins to be made.
        wanted = {op: set(before) for op, before in earlier.items()}
        for version, result in steps:
            readers = _readers(version, main.body) - {result.op}
            for maker in _makers(result.op):
                wanted.setdefault(maker, set()).update(readers)
        if not _put_before(main.body, wanted):
            continue
        earlier = wanted
        for (_, result), number in zip(steps, overwritten, strict=True):
            if number is not None and number >= 0:  # of a scatter
                result.op.attributes[OVERWRITES] = number
        written.append(name)
        taken.update(results)
    main.attributes[WRITTEN] = tuple(written)


def _put_before(block: Block, earlier: dict[Operation, set[Operation]]) -> bool:
    """Order a block so that all of `earlier[op]` stand before `op`; False, and unchanged, where they depend on it."""
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


def _versions(result: OpResult, argument: Value) -> list[OpResult]:
    """The values that follow each other in the memory of an argument, the first one first: several where one scatter after the other changes it."""
    versions = [result]
    while (before := _scattered_into(versions[0].op)) is not argument:
        if not isinstance(before, OpResult):
            return [result]
        versions.insert(0, before)
    return versions


def _scattered_into(op: Operation) -> Value | None:
    """The tensor of which the only result of a group is a copy with other elements at some places."""
    if not isinstance(op, tensor.Group) or op.kind != "scatter" or len(op.results) != 1:
        return None
    scatter = op.body.terminator.operands[0].defining_op
    if not isinstance(scatter, tensor.Scatter) or scatter.dest not in op.body.args:
        return None
    return _root(op.operands[op.body.args.index(scatter.dest)])


def updates_in_place(main: func.Func) -> set[Value]:
    """The arguments that `write_in_place` has chosen."""
    return {a for n, a in zip(main.arg_names, main.body.args, strict=True) if n in main.attributes.get(WRITTEN, ())}


def _makers(op: Operation | None) -> list[Operation]:
    """Those that write the memory of an operation's results: for a join, whoever computes its parts."""
    parts = reachable([op], lambda x: [p.defining_op for p in x.parts] if isinstance(x, tensor.Join) else [])
    return [x for x in parts if x is not None and not isinstance(x, tensor.Join)]


def _readers(value: Value, block: Block) -> set[Operation]:
    """The operations of `block` that read a value, themselves or inside them, also through views."""
    found: set[Operation] = set()
    for op in tensor.readers(value, tensor.View):
        while op.parent is not block:
            above = op.parent_op
            assert above is not None
            op = above
        found.add(op)
    return found


def _root(value: Value) -> Value:
    while isinstance(op := value.defining_op, tensor.View):
        value = op.x
    return value


def _overwritten(result: OpResult, version: Value, block: Block) -> int | None:
    """Where the operation that computes `result` may do so in the memory of `version`: the number of the operand that a scatter overwrites, -1 for
    what writes everything; None where it may not."""
    maker = result.op
    if maker not in _readers(version, block):
        return -1
    numbers = [k for k, v in enumerate(maker.operands) if _root(v) is version]
    if not isinstance(maker, tensor.Group) or len(numbers) != 1:
        return None
    if maker.kind == "scatter" and len(maker.results) == 1:
        arg = maker.body.args[numbers[0]]
        scatter = maker.body.terminator.operands[0].defining_op
        if (
            isinstance(scatter, tensor.Scatter)
            and scatter.dest is arg
            and len(arg.users) == 1
            and not scatter_reads(maker, arg)
        ):
            return numbers[0]
        return None
    return -1 if (result.index, numbers[0]) in in_place_pairs(maker) else None


def scatter_reads(group: tensor.Group, arg: Value) -> bool:
    """Whether anything in a group reads elements of its argument."""
    return any(isinstance(op, Read) and op.source is arg for op in group.walk())


def in_place_pairs(group: tensor.Group) -> tuple[tuple[int, int], ...]:
    """(output, input) numbers that may be the same memory: the input is last read exactly where, and when, the output is written.

    The members of a contraction's group have no row in common: nobody but the epilogue may read what it overwrites.
    """
    if OVERWRITES in group.attributes:
        return ((0, group.attributes[OVERWRITES]),)
    if group.kind not in ("rows", "contraction"):
        return ()
    members = [m for m in group.body.ops if isinstance(m, tensor.Compute)]
    rows = int(group.attributes["tw.rows"]) if group.kind == "rows" else None
    pairs = []
    for k, value in enumerate(group.body.terminator.operands):
        if tensor.place_of(group.results[k]) is not None:
            continue  # it lies in the midst of others
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
        still: dict[Expr, Dim] = {axis: 0 for axis in m.axes if prove_eq(axis.upper, 0)}  # may be written as 0
        for r in reads:
            if position == writer:
                address = flatten_index(substitute_all(r.indices, still), arg.type.shape)
                own = flatten_index(substitute_all(m.axes, still), m.result.type.shape)
                if not prove_eq(address, own):
                    return False
            elif (
                rows is None
                or tuple(r.indices[:rows]) != tuple(m.axes[:rows])
                or arg.type.shape[:rows] != members[writer].result.type.shape[:rows]
            ):
                return False
    return True


__all__ = ["OVERWRITES", "computed", "in_place_pairs", "updates_in_place", "write_in_place"]
