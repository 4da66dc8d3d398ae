"""Moves computations out of scans.

Values that every step computes alike are computed before the loop. Values that depend on slices of scanned
inputs alone are computed for all steps at once. Values that no step needs are dropped. The product of each
time step with the input weights of a recurrent cell thus becomes one matmul over the whole sequence, and the
body keeps only computations that depend on the previous step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dialects import graph, tensor
from ...dialects.graph.base import tensor_type
from ...ir.builder import Builder
from ...ir.core import Effect, Module, Operation, Value
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.run_time_symbols import defined_inside, symbols_of
from ...ir.symbolic import Dim, Expr, bounds
from .match import ELEMENTWISE, is_one, rebuild, reshape

GROWTH = 4
"""Largest ratio of the number of result elements to operand elements of an operator that is computed for all
steps at once, matmuls excepted. A larger value hoists more and stores larger intermediate tensors.
"""


def hoist(module: Module) -> None:
    """Reduce the body of every `graph.scan` to the computations that depend on earlier steps."""
    apply_patterns(module, [single_step, drop_unused, constant_carried], fold=False)
    hoist_invariants(module)
    for op in _loops(module, graph.Scan):
        _compute_at_once(op)
    apply_patterns(module, [drop_unused], fold=False)
    hoist_invariants(module)


def hoist_invariants(module: Module) -> None:
    """Move computations that depend neither on the step nor on carried values in front of their loop.

    Works at the graph and the tensor level.
    """
    for loop in _loops(module, graph.Scan, tensor.Scan, graph.While, tensor.While):
        step = loop.attributes.get("step")
        symbols = {
            *([step] if step is not None else []),
            *(s for op in loop.body.ops for s in defined_inside(op)),
        }
        inside: set[Value] = set(loop.body.args)
        for op in loop.body.ops:
            if op.effects == Effect.PURE and not op.terminator and not _depends(op, inside, symbols):
                assert loop.parent is not None
                loop.parent.insert_before(loop, op)
            else:
                inside.update(op.results)


def _loops(module: Module, *classes: type[Operation]) -> list[Any]:
    """The loops of a module that are of the given classes, inner ones first."""
    return [op for op in module.walk() if isinstance(op, classes)][::-1]


def _depends(op: Operation, values: set[Value], symbols: set[Expr]) -> bool:
    used = any(v in values for inner in op.walk() for v in inner.operands)
    return used or (bool(symbols) and any(s in symbols for s in symbols_of(op)))


# -- Carried values, slices and results --


@pattern(graph.Scan)
def single_step(op: graph.Scan, rewriter: Rewriter) -> bool:
    """A loop of one step -> its body."""
    if not is_one(op.length):
        return False
    b = rewriter.builder
    values: dict[Value, Value] = dict(zip(op.carried, op.initial, strict=True))
    for x, arg in zip(op.scanned, op.slices, strict=True):
        values[arg] = reshape(b, x, arg.type.shape)
    for inner in op.body.ops:
        if not inner.terminator:
            b.insert(inner.clone(values))
    results = [values.get(v, v) for v in op.body.terminator.operands]
    rewriter.replace(op, [reshape(b, v, r.type.shape) for v, r in zip(results, op.results, strict=True)])
    return True


@pattern(graph.Scan)
def drop_unused(op: graph.Scan, rewriter: Rewriter) -> bool:
    """Unused scanned inputs, stacked results and carried values are removed."""
    _drop_dead_operations(op)
    count = len(op.initial)
    ends = op.body.terminator.operands
    carried = [k for k, arg in enumerate(op.carried) if op.results[k].has_uses or not _feeds_itself(op, k)]
    scanned = [k for k, arg in enumerate(op.slices) if arg.has_uses]
    stacked = [k for k in range(len(ends) - count) if op.results[count + k].has_uses]
    if (len(carried), len(scanned), len(stacked)) == (count, len(op.scanned), len(ends) - count):
        return False
    _rebuild(op, rewriter, carried, scanned, stacked)
    return True


@pattern(graph.Scan)
def constant_carried(op: graph.Scan, rewriter: Rewriter) -> bool:
    """A carried value that no step changes -> its initial value."""
    changed = False
    for k, (x, arg) in enumerate(zip(op.initial, op.carried, strict=True)):
        if op.body.terminator.operands[k] is arg and (len(list(arg.uses)) > 1 or op.results[k].has_uses):
            arg.replace_by(x)
            op.body.terminator.set_operand(k, arg)
            op.results[k].replace_by(x)
            changed = True
    if changed:
        rewriter.changed(op)
    return changed


def _feeds_itself(op: graph.Scan, k: int) -> bool:
    """Whether carried value `k` is needed only to compute its own next value."""
    seen: set[Operation] = set()
    end = op.body.terminator
    pending = [op.carried[k]]
    while pending:
        value = pending.pop()
        for user, index in value.uses:
            if user is end:
                if index != k:
                    return False
            elif user.parent is not op.body:
                return False
            elif user not in seen:
                seen.add(user)
                pending += user.results
    # The operations that compute the next value must have no other use: otherwise dropping it would gain
    # nothing.
    return True


def _drop_dead_operations(op: graph.Scan) -> None:
    for inner in reversed(list(op.body.ops)):
        if (
            inner.effects == Effect.PURE
            and not inner.terminator
            and not any(r.has_uses for r in inner.results)
        ):
            inner.erase()


def _rebuild(
    op: graph.Scan, rewriter: Rewriter, carried: Sequence[int], scanned: Sequence[int], stacked: Sequence[int]
) -> None:
    """Replace a scan by one with only some of its carried values, scanned inputs and stacked results."""
    count, inputs = len(op.initial), len(op.scanned)
    end = op.body.terminator
    body = op.regions.pop()
    kept = [*(end.operands[k] for k in carried), *(end.operands[count + k] for k in stacked)]
    end.set_operands(kept)
    initial, xs = [op.initial[k] for k in carried], [op.scanned[k] for k in scanned]
    block = body.block
    dropped = {block.args[k] for k in range(count) if k not in carried}
    dropped |= {block.args[count + k] for k in range(inputs) if k not in scanned}
    # operations that compute a dropped value from itself are dropped, too
    for inner in reversed(list(block.ops)):
        if inner is not end and not any(r.has_uses for r in inner.results):
            inner.erase()
    for arg in dropped:
        block.erase_arg(arg)
    backward = (
        (*(op.backward[k] for k in scanned), *(op.backward[inputs + k] for k in stacked))
        if op.backward
        else ()
    )
    new = rewriter.builder.insert(
        graph.Scan(initial, xs, length=op.length, backward=backward, regions=[body], location=op.location)
    )
    numbers = [*carried, *(count + k for k in stacked)]
    for k, number in enumerate(numbers):
        op.results[number].replace_by(new.results[k])
    for result in op.results:
        assert not result.has_uses
    rewriter.changed(new)
    op.erase()


# -- All steps at once --


def _compute_at_once(scan: graph.Scan) -> None:
    """Compute operators that depend on slices alone before the loop, on the whole inputs; scan their results
    instead.
    """
    block = scan.body
    flags = scan.backward or (False,) * (len(scan.scanned) + len(scan.results) - len(scan.initial))
    whole: dict[Value, tuple[Value, bool]] = {
        arg: (x, flag) for arg, x, flag in zip(scan.slices, scan.scanned, flags, strict=False)
    }
    local: set[Value] = set(scan.carried)
    made: list[Value] = []
    b = Builder.before(scan)
    for op in block.ops:
        if op.terminator:
            break
        operands = [whole[v][0] if v in whole else None for v in op.operands]
        directions = {whole[v][1] for v in op.operands if v in whole}
        outside = not any(v in local for inner in op.walk() for v in inner.operands)
        stacked = _for_all_steps(op, operands, scan.length, b) if outside and len(directions) == 1 else None
        if stacked is None:
            local.update(op.results)
            continue
        whole[op.results[0]] = (stacked, directions.pop())
        made.append(op.results[0])
    wanted = [
        v
        for v in made
        if any(user.results and user.results[0] not in whole or user.terminator for user in v.users)
    ]
    if not made:
        return
    _scan_also(scan, [(v, *whole[v]) for v in wanted], flags)
    _drop_dead_operations(scan)


def _scan_also(scan: graph.Scan, inputs: Sequence[tuple[Value, Value, bool]], flags: Sequence[bool]) -> None:
    """Let a scan read (value of its body, whole input, direction) instead of computing the value."""
    count = len(scan.scanned)
    for value, _, _ in inputs:
        value.replace_by(scan.body.add_arg(value.type, value.hint))
    whole = [x for _, x, _ in inputs]
    scan.set_operands([*scan.operands, *whole], (len(scan.initial), count + len(whole)))
    backward = (*flags[:count], *(flag for _, _, flag in inputs), *flags[count:])
    scan.backward = backward if any(backward) else ()


def _for_all_steps(op: Operation, stacked: Sequence[Value | None], length: Dim, b: Builder) -> Value | None:
    """The results of `op` for all steps, stacked; None if an operator of this kind cannot take stacked
    operands.

    `stacked` has the operands that differ by step, with all their slices; None for an operand that is the
    same in every step.
    """
    if len(op.results) != 1:
        return None
    result = tensor_type(op.results[0])
    with b.at(op.location):
        if isinstance(op, graph.Matmul):
            return _matmul(op, stacked, b)
        sizes = [tensor_type(v).size for v, x in zip(op.operands, stacked, strict=True) if x is not None]
        if not _affordable(result.size, sizes):
            return None
        x = stacked[0]
        if isinstance(op, graph.Reshape) and x is not None:
            return reshape(b, x, (length, *op.shape))
        if isinstance(op, graph.Transpose) and x is not None:
            moved: Value = b(graph.Transpose(x, permutation=(0, *(p + 1 for p in op.permutation))))
            return moved
        if isinstance(op, ELEMENTWISE):
            operands = [
                v if x is None else _aligned(x, result.rank, b)
                for v, x in zip(op.operands, stacked, strict=True)
            ]
            applied: Value = b(rebuild(op, operands))
            return applied
    return None


def _matmul(op: graph.Matmul, stacked: Sequence[Value | None], b: Builder) -> Value | None:
    left, right = stacked
    rank = op.result.type.rank
    if op.a.type.rank < 2 or op.b.type.rank < 2:
        # A row times a matrix: the steps become the rows.
        if left is not None and right is None and op.a.type.rank == 1 and op.b.type.rank == 2:
            rows: Value = b(rebuild(op, [left, op.b]))
            return rows
        return None
    a = op.a if left is None else _aligned(left, rank, b)
    c = op.b if right is None else _aligned(right, rank, b)
    product: Value = b(rebuild(op, [a, c]))
    return product


def _aligned(x: Value, rank: int, b: Builder) -> Value:
    """Stacked slices with unit dimensions inserted behind the first, so that they broadcast to `rank`
    dimensions as each slice would.
    """
    shape = tensor_type(x).shape
    return reshape(b, x, (shape[0], *(1,) * (rank + 1 - len(shape)), *shape[1:]))


def _affordable(size: Dim, operands: Sequence[Dim]) -> bool:
    most, sizes = bounds(size)[1], [bounds(s)[1] for s in operands]
    known = [n for n in sizes if n is not None]
    return most is not None and len(known) == len(sizes) and most <= GROWTH * sum(known)


__all__ = ["hoist", "hoist_invariants"]
