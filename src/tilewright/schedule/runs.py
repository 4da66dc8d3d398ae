"""The primitive for rows that choose what they meet: one iteration of the nest for each run of rows that choose the same."""

from __future__ import annotations

from ..dialects import loop
from ..ir.symbolic import Dim, Expr, bounds, free_symbols, linear_in, substitute, symbol
from .schedule import Schedule, ScheduleError, only_child, primitive
from .tree import address, enclosing_loops, reduce_variables, substitute_tree


@primitive
def split_runs(s: Schedule, name: str, rows: str) -> str:
    """Cut a loop where an integer that block `name` reads at its iterations, and which tells the place of other reads, changes. Returns the inner loop.

        for i in n:  y[i] += x[i] * w[index[i]]
    becomes
        for first, length, value in runs of index[0 : n]:
            for i_r in length:  y[first + i_r] += x[first + i_r] * w[value]
    """
    block, f = s.block(name), s.loop(rows)
    dependent = [op for op in block.body.ops if isinstance(op, loop.Load) and op.dynamic]
    chosen = {v for op in dependent for v in op.dynamic}
    index = chosen.pop().defining_op if len(chosen) == 1 else None
    if not isinstance(index, loop.Load) or index.guard or index.dynamic:
        raise ScheduleError(f"split_runs: block {name!r} does not read at places that one plain read tells")
    inside = enclosing_loops(block)
    if f not in inside or f.kind != "serial":
        raise ScheduleError(f"split_runs: {rows!r} is no serial loop around block {name!r}")
    for outer in inside[: inside.index(f)]:
        if outer.iv in reduce_variables(block) and not block.attributes.get("tw.initialized"):
            raise ScheduleError(
                f"split_runs: loop {outer.iv.name!r} outside {rows!r} is part of the reduction of block {name!r}"
            )
    inside = inside[inside.index(f) :]
    if [only_child(x) for x in inside] != [*inside[1:], block]:
        raise ScheduleError(f"split_runs: the loops from {rows!r} to block {name!r} are not perfectly nested")
    where = address(index)
    parts = (0, where) if isinstance(where, int) else linear_in(where, f.iv)
    if parts is None or (parts[0] != 1 and f.iv.upper != 0):
        raise ScheduleError(f"split_runs: {rows!r} does not move the read in steps of one element ({where})")
    start = parts[1]
    if not isinstance(start, int) and free_symbols(start) & {x.iv for x in inside}:
        raise ScheduleError(f"split_runs: a loop inside {rows!r} moves the read ({where})")
    most, count = bounds(f.extent)[1], dependent[0].buffer.type.shape[0]
    first = symbol(s.fresh(f"{rows}_first"), 0, None if most is None else most - 1)
    length = symbol(s.fresh(f"{rows}_length"), 1, most)
    value = symbol(s.fresh(f"{rows}_value"), 0, count - 1)
    row = symbol(s.fresh(f"{rows}_r"), 0, length - 1)
    runs = loop.Runs(
        index.buffer, first=first, length=length, value=value, range=(start, f.extent), location=f.location
    )
    inner = loop.For(iv=row, location=f.location)
    runs.body.append(inner)
    for op in list(f.body.ops):
        inner.body.append(op)
    substitute_tree(inner, {f.iv: first + row})
    assert f.parent is not None
    f.parent.insert_before(f, runs)
    f.erase()
    v0 = symbol("v0", None, None)
    for op in dependent:
        plain = loop.Load(
            op.buffer, (), None, indices=tuple(_at(e, v0, value) for e in op.indices), location=op.location
        )
        block.body.insert_before(op, plain)
        op.replace_by(plain.result)
        op.erase()
    index.erase()
    return row.name


def _at(e: Dim, v0: Expr, value: Expr) -> Dim:
    return e if isinstance(e, int) else substitute(e, {v0: value})


__all__ = ["split_runs"]
