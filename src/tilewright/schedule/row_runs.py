"""The primitive for rows that look up a matrix (experts): one iteration for each run of rows that use the
same matrix.
"""

from __future__ import annotations

from ..analysis.loop_nest import address, enclosing_loops, reduce_variables, substitute_tree
from ..dialects import loop
from ..ir import notes
from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import Dim, Expr, bounds, free_symbols, symbol
from .core import ScheduleCore, ScheduleError, only_child, primitive


class RunPrimitives(ScheduleCore):
    """The primitive that cuts rows into runs that use the same matrix."""

    @primitive
    def split_runs(self, name: str, rows: str) -> str:
        """Cut a loop into runs of iterations for which an integer index that block `name` reads is equal;
        return the inner loop's name.

            for i in n:  y[i] += x[i] * w[index[i]]
        becomes
            for first, length, value in runs of index[0 : n]:
                for i_r in length:  y[first + i_r] += x[first + i_r] * w[value]
        """
        block, f = self.block(name), self.loop(rows)
        dependent = [op for op in block.body.ops if isinstance(op, loop.Load) and op.dynamic]
        chosen = {v for op in dependent for v in op.dynamic}
        index = chosen.pop().defining_op if len(chosen) == 1 else None
        if not isinstance(index, loop.Load) or index.guard or index.dynamic:
            raise ScheduleError(
                f"split_runs: block {name!r} does not have exactly one index that it reads without a guard"
            )
        inside = enclosing_loops(block)
        if f not in inside or f.kind != loop.LoopKind.SERIAL:
            raise ScheduleError(f"split_runs: {rows!r} is not a serial loop around block {name!r}")
        for outer in inside[: inside.index(f)]:
            if outer.iv in reduce_variables(block) and not notes.INITIALIZED.get(block):
                raise ScheduleError(
                    f"split_runs: loop {outer.iv.name!r} outside {rows!r} is part of "
                    f"the reduction of block {name!r}"
                )
        inside = inside[inside.index(f) :]
        if [only_child(x) for x in inside] != [*inside[1:], block]:
            raise ScheduleError(
                f"split_runs: the loops from {rows!r} to block {name!r} are not perfectly nested"
            )
        where = address(index)
        parts = (0, where) if isinstance(where, int) else linear_in(where, f.iv)
        if parts is None or (parts[0] != 1 and f.iv.upper != 0):
            raise ScheduleError(
                f"split_runs: {rows!r} does not move the read in steps of one element ({where})"
            )
        start = parts[1]
        if not isinstance(start, int) and free_symbols(start) & {x.iv for x in inside}:
            raise ScheduleError(f"split_runs: a loop inside {rows!r} moves the read ({where})")
        most, count = bounds(f.extent)[1], dependent[0].buffer.type.shape[0]
        first = symbol(self.fresh(f"{rows}_first"), 0, None if most is None else most - 1)
        length = symbol(self.fresh(f"{rows}_length"), 1, most)
        value = symbol(self.fresh(f"{rows}_value"), 0, count - 1)
        row = symbol(self.fresh(f"{rows}_r"), 0, length - 1)
        runs = loop.Runs(
            index.buffer,
            first=first,
            length=length,
            value=value,
            range=(start, f.extent),
            location=f.location,
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
                op.buffer,
                (),
                None,
                indices=tuple(_at(e, v0, value) for e in op.indices),
                location=op.location,
            )
            block.body.insert_before(op, plain)
            op.replace_by(plain.result)
            op.erase()
        index.erase()
        return row.name


def _at(e: Dim, v0: Expr, value: Expr) -> Dim:
    return e if isinstance(e, int) else substitute(e, {v0: value})


__all__ = ["RunPrimitives"]
