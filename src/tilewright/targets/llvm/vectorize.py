"""Vector loops: whether iterations can run in lanes, the number of lanes, and the code around the loop body.

A loop is split into stages, each a loop over whole vectors. A step processes several vectors (`parts`) if the
body is light, so that independent operations hide each other's latency. Carried values have one partial
result per lane and part, combined after the loop. The remaining iterations run masked where the instruction
set masks for free, else in narrower vectors and finally one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...analysis.index_maps import flatten_index
from ...analysis.lanes import obstacle_to_lanes
from ...dialects import loop
from ...dialects.scalar import (
    COMBINER_OP,
    MULTI_INSTRUCTION,
    Constant,
    Index,
    ScalarOp,
    combiner_identity,
)
from ...ir.core import Block, Operation, Value
from ...ir.substitution import linear_in
from ...ir.symbolic import Dim, bounds, free_symbols, prove_divisible
from ...ir.types import DType, boolean
from .index_expr import Lanes, lane_numbers
from .scalars import binary
from .values import KernelContext, Val, literal, register

Body = Callable[[KernelContext, Block], list[Val]]
"""Prints a loop's body and returns the yielded values."""
MAX_LANES = 64


@dataclass
class _Body:
    """Properties of a vector loop's body."""

    varying: set[Value] = field(default_factory=set)
    bits: set[int] = field(default_factory=set)
    integers: bool = True  # All values are integers of at most 32 bits, and no access has a mask.
    operations: int = 0
    heavy: bool = False
    nested: bool = False
    carried: int = 0  # values carried by an inner loop
    scattered: bool = False  # Some access is neither contiguous nor uniform.


class VectorPlan(NamedTuple):
    """How the iterations of a loop run side by side: `parts` vectors of `lanes` lanes in each step. The rest
    that fills no vector begins with vectors of at most `rest` lanes.
    """

    lanes: int
    parts: int
    rest: int


def plan_lanes(g: KernelContext, f: loop.For) -> VectorPlan | None:
    """The vectors of a loop; None if its iterations cannot run in lanes."""
    if obstacle_to_lanes(f, masked=g.isa.masked, resolve=g.index.resolve) is not None:
        return None
    body = _Body(set(f.body.args))
    _look(g, f, f.body, body)
    extent = g.index.resolve(f.extent)
    most = bounds(extent)[1]
    widths = body.bits - {64}
    width = max(widths) if widths else 64 if body.bits else 32
    lanes = f.step or min(MAX_LANES, g.isa.lanes(width))
    if most is not None:
        # No wider than the trip count, which is rounded up where the rest can be masked.
        longest = 1 << max(most - 1, 0).bit_length() if g.isa.masked else 1 << max(most.bit_length() - 1, 0)
        lanes = min(lanes, longest)
    if lanes < 2 or lanes & (lanes - 1):
        return None
    if wide := _integer_lanes(g, f, body, extent):
        return VectorPlan(wide, 1, lanes)
    many = g.isa.vector_registers >= 32
    if body.heavy or body.scattered or running_values(f):
        parts = 1
    elif body.nested:
        parts = 4 if many else 2
        while parts > 1 and parts * body.carried > g.isa.vector_registers * 5 // 8:
            parts //= 2
    elif f.inits:
        parts = 4
        while parts > 1 and parts * len(f.inits) > max(4, g.isa.vector_registers * 5 // 8):
            parts //= 2
    else:
        parts = 4 if many and body.operations <= 8 else 2
    if most is not None:
        while parts > 1 and parts * lanes > most:
            parts //= 2
    return VectorPlan(lanes, parts, lanes // 2)


def _integer_lanes(g: KernelContext, f: loop.For, body: _Body, extent: Dim) -> int:
    """The lanes of a loop over integers that have registers of their own; 0 for other loops.

    The narrowest type decides, and wider values take several registers: parts of registers are computed in
    those of floats.
    """
    if not g.isa.integer_bits or f.step or not body.integers or body.scattered or body.heavy:
        return 0
    if not body.bits or running_values(f):
        return 0
    lanes, most = g.isa.integer_bits // min(body.bits), bounds(extent)[1]
    # The rest of a sum is added number by number.
    if (most is not None and most < lanes) or (f.inits and not prove_divisible(extent, lanes)):
        return 0
    return lanes


def _look(g: KernelContext, f: loop.For, block: Block, facts: _Body) -> None:
    """Collect properties of a body that can run in lanes."""

    def varies(e: Dim) -> bool:
        e = g.index.resolve(e)
        return not isinstance(e, int) and f.iv in free_symbols(e)

    for op in block.ops:
        operands_vary = any(v in facts.varying for v in op.operands)
        if isinstance(op, Index):
            if varies(op.expr):
                facts.integers = False
                facts.varying.add(op.result)
        elif isinstance(op, ScalarOp):
            if operands_vary:
                facts.varying.add(op.result)
                facts.operations += 1
                facts.heavy |= op.name in MULTI_INSTRUCTION
                if not isinstance(op, Constant):
                    _count(facts, op.result.type)
        elif isinstance(op, (loop.Load, loop.Store, loop.Accumulate)):
            _look_at_access(g, f, op, facts, varies, operands_vary)
        elif isinstance(op, loop.For):
            facts.nested = True
            facts.carried = max(facts.carried, len(op.inits))
            facts.varying.update(op.body.args)
            _look(g, f, op.body, facts)
            facts.varying.update(op.results)
        elif isinstance(op, loop.If):
            _look(g, f, op.body, facts)


def _look_at_access(
    g: KernelContext,
    f: loop.For,
    op: loop.Load | loop.Store | loop.Accumulate,
    facts: _Body,
    varies: Callable[[Dim], bool],
    operands_vary: bool,
) -> None:
    dtype: DType = op.buffer.type.dtype
    address = g.index.resolve(flatten_index(op.indices, op.buffer.type.shape))
    dynamic = any(v in facts.varying for v in op.dynamic)
    moves = varies(address) or dynamic
    parts = linear_in(address, f.iv)
    step = parts[0] if parts is not None and not dynamic else None
    facts.operations += 1
    facts.integers &= dtype is not boolean
    if isinstance(op, loop.Load):
        guarded = any(varies(e) for e in op.guard)
        facts.integers &= not guarded
        if moves or operands_vary or guarded:
            facts.varying.add(op.result)
            _count(facts, dtype)
            facts.scattered |= moves and not (isinstance(step, int) and abs(step) == 1)
        return
    if op.value in facts.varying or moves:
        _count(facts, dtype)
    facts.scattered |= not (isinstance(step, int) and abs(step) == 1)


def _count(facts: _Body, dtype: DType) -> None:
    if dtype is not boolean:
        facts.bits.add(32 if dtype.is_float and dtype.bits < 32 else max(dtype.bits, 8))
        facts.integers &= not dtype.is_float and dtype.bits <= 32


# -- Writing -----------------------------------------------------------------------------------------------


def emit_vector_loop(g: KernelContext, f: loop.For, plan: VectorPlan, write_body: Body) -> list[Val]:
    """Print a vector loop; returns the final carried values."""
    lanes, parts, narrow = plan
    extent = g.index.resolve(f.extent)
    n = g.index.value(extent)
    if running_values(f):
        return _emit_running(g, f, lanes, n, write_body)
    totals = [g.values[v] for v in f.inits]
    partial = _identities(f, lanes, parts)

    def run(
        start: str, stop: str, lanes: int, parts: int, masked: bool, partial: list[list[str]]
    ) -> list[list[str]]:
        kinds = [register(v.type, lanes) for v in f.inits]
        carried = [(kind, x) for kind, values in zip(kinds, partial, strict=True) for x in values]

        def body(i: str, current: list[tuple[str, str]]) -> list[str]:
            values = [x for _, x in current]
            with g.index.level():
                g.index.bind(f.iv, i)
                g.index.lanes = Lanes(f.iv, lanes, parts, i)
                saved = g.masks
                if masked:
                    g.masks = [_remaining(g, n, i, lanes)]
                for k, arg in enumerate(f.body.args):
                    g.values[arg] = Val(arg.type, values[k * parts : (k + 1) * parts], lanes)
                yielded = [x for v in write_body(g, f.body) for x in g.spread(v)]
                if g.masks is not None and masked:
                    kept = zip(current, yielded, strict=True)
                    yielded = [
                        g.e.op(f"select <{lanes} x i1> {g.masks[0]}, {kind} {new}, {kind} {old}")
                        for (kind, old), new in kept
                    ]
                g.masks = saved
                g.index.lanes = None
            return yielded

        result = g.e.loop(start, stop, str(lanes * parts), carried, body)
        return [result[k * parts : (k + 1) * parts] for k in range(len(kinds))]

    at = "0"

    def stage(lanes: int, parts: int, partial: list[list[str]]) -> list[list[str]]:
        """Whole steps of a width, starting where the last stage ended."""
        nonlocal at
        stop = _rounded(g, n, lanes * parts)
        result = run(at, stop, lanes, parts, False, partial) if stop != at else partial
        at = stop
        return result

    partial = stage(lanes, parts, partial)
    if parts > 1:
        partial = _join_parts(g, f, partial, lanes)
        if not g.isa.masked or (_numbers(n) and int(n) - int(at) >= lanes):
            partial = stage(lanes, 1, partial)
    if g.isa.masked:
        if at != n:
            partial = run(at, n, lanes, 1, True, partial)
        return _join_lanes(g, f, totals, partial, lanes)
    totals = _join_lanes(g, f, totals, partial, lanes)
    while narrow > (1 if _numbers(n) else 3) and not f.inits:
        if not _numbers(n) or int(n) - int(at) >= narrow:
            stage(narrow, 1, [])
        narrow = narrow // 2 if _numbers(n) else 0
    if at == n:
        return totals
    return emit_rest(g, f, at, n, totals, write_body)


def running_values(f: loop.For) -> list[Operation]:
    """Combinations of carried values that the body itself uses (prefix sums); empty if the body only passes
    them on.
    """
    last = f.body.last
    producers = [v.defining_op for v in last.operands] if f.inits and last is not None else []
    combinations = [op for op in producers if op is not None and op.parent is f.body]
    return combinations if any(set(op.result.users) != {last} for op in combinations) else []


def _emit_running(g: KernelContext, f: loop.For, lanes: int, n: str, write_body: Body) -> list[Val]:
    """Print a loop whose running values are used in each iteration.

    Within a vector they are combined in log2(lanes) steps; the last lane is carried to the next vector.
    """
    operations = running_values(f)

    def run(arg: Value, op: Operation, combiner: str, following: list[str]) -> Val:
        """The values of `op` in the lanes; appends the last one, broadcast to all lanes, to `following`."""
        dtype: DType = op.result.type
        kind = register(dtype, lanes)
        (value,) = [v for v in op.operands if v is not arg]
        (x,) = g.spread(g.values[value])
        identity = f"splat ({register(dtype)} {literal(combiner_identity(combiner, dtype), dtype)})"
        if g.masks is not None:
            x = g.e.op(f"select <{lanes} x i1> {g.masks[0]}, {kind} {x}, {kind} {identity}")

        distance = 1
        while distance < lanes:
            moved = g.e.shuffle(
                kind, identity, x, [k if k < distance else lanes + k - distance for k in range(lanes)]
            )
            x = _combine(g, combiner, dtype, lanes, moved, x)
            distance *= 2
        x = _combine(g, combiner, dtype, lanes, g.values[arg].parts[0], x)
        following.append(g.e.shuffle(kind, x, x, [lanes - 1] * lanes))
        return Val(dtype, [x], lanes)

    def step(i: str, current: list[tuple[str, str]], masked: bool) -> list[str]:
        following: list[str] = []
        with g.index.level():
            g.index.bind(f.iv, i)
            g.index.lanes = Lanes(f.iv, lanes, 1, i)
            saved = g.masks
            if masked:
                g.masks = [_remaining(g, n, i, lanes)]
            for arg, op, combiner, (_, carry) in zip(
                f.body.args, operations, f.combiners, current, strict=True
            ):
                g.values[arg] = Val(arg.type, [carry], lanes)
                g.running[op] = functools.partial(run, arg, op, combiner, following)
            write_body(g, f.body)
            for op in operations:
                del g.running[op]
            g.masks = saved
            g.index.lanes = None
        return following

    kinds = [register(v.type, lanes) for v in f.inits]
    values = [g.splat(g.values[v], lanes) for v in f.inits]
    stop = _rounded(g, n, lanes)
    for start, end, masked in (("0", stop, False), (stop, n, True)):
        if start != end and (g.isa.masked or not masked):
            write = functools.partial(step, masked=masked)
            values = g.e.loop(start, end, str(lanes), list(zip(kinds, values, strict=True)), write)
    totals = [
        Val(v.type, [g.e.op(f"extractelement {kind} {x}, i64 {lanes - 1}")])
        for v, kind, x in zip(f.inits, kinds, values, strict=True)
    ]
    return totals if stop == n or g.isa.masked else emit_rest(g, f, stop, n, totals, write_body)


def _remaining(g: KernelContext, n: str, i: str, lanes: int) -> str:
    """The mask of the lanes of a vector from iteration `i` on that are before `n`.

    LLVM must not learn that a single lane is active: it would then store the whole 32-bit lane of values that
    are truncated to 8 or 16 bits.
    """
    count = str(int(n) - int(i)) if _numbers(n, i) else g.e.op(f"sub i64 {n}, {i}")
    left = g.index.splat(g.e.op('call i64 asm "", "=r,0"(i64 1)') if count == "1" else count, 32)
    return g.e.op(f"icmp slt <{lanes} x i32> {lane_numbers(32, lanes)}, {left}")


def emit_rest(
    g: KernelContext, f: loop.For, start: str, stop: str, totals: list[Val], write_body: Body
) -> list[Val]:
    """Print single iterations."""
    kinds = [register(v.type) for v in f.inits]

    def body(i: str, current: list[tuple[str, str]]) -> list[str]:
        with g.index.level():
            g.index.bind(f.iv, i)
            for arg, (_, value) in zip(f.body.args, current, strict=True):
                g.values[arg] = Val(arg.type, [value])
            return [v.parts[0] for v in write_body(g, f.body)]

    carried = [(kind, v.parts[0]) for kind, v in zip(kinds, totals, strict=True)]
    values = g.e.loop(start, stop, "1", carried, body)
    return [Val(v.type, [x]) for v, x in zip(f.inits, values, strict=True)]


def _numbers(*values: str) -> bool:
    return all(v.isdigit() for v in values)


def _rounded(g: KernelContext, n: str, to: int) -> str:
    return str(int(n) // to * to) if _numbers(n) else g.e.op(f"and i64 {n}, {-to}")


def _identities(f: loop.For, lanes: int, parts: int) -> list[list[str]]:
    result = []
    for v, combiner in zip(f.inits, f.combiners, strict=True):
        text = literal(combiner_identity(combiner, v.type), v.type)
        result.append([f"splat ({register(v.type)} {text})"] * parts)
    return result


def _combine(g: KernelContext, combiner: str, dtype: DType, lanes: int, a: str, b: str) -> str:
    return binary(g, COMBINER_OP[combiner], dtype, lanes, a, b)


def _join_parts(g: KernelContext, f: loop.For, partial: list[list[str]], lanes: int) -> list[list[str]]:
    result = []
    for v, combiner, values in zip(f.inits, f.combiners, partial, strict=True):
        while len(values) > 1:
            half = len(values) // 2
            values = [
                _combine(g, combiner, v.type, lanes, a, b)
                for a, b in zip(values[:half], values[half:], strict=True)
            ]
        result.append(values)
    return result


def _join_lanes(
    g: KernelContext, f: loop.For, totals: list[Val], partial: list[list[str]], lanes: int
) -> list[Val]:
    """Combine the lanes of each partial result pairwise, then with the value before the loop."""
    result = []
    for v, combiner, total, values in zip(f.inits, f.combiners, totals, partial, strict=True):
        dtype = v.type
        x, n = values[0], lanes
        while n > 1:
            kind = register(dtype, n)
            half = n // 2
            halves = [
                g.e.op(
                    f"shufflevector {kind} {x}, {kind} poison, <{half} x i32> {lane_numbers(32, half, start)}"
                )
                for start in (0, half)
            ]
            if half == 1:
                halves = [g.e.op(f"extractelement <1 x {register(dtype)}> {h}, i64 0") for h in halves]
            x, n = _combine(g, combiner, dtype, half, *halves), half
        identity = combiner_identity(combiner, dtype)
        if total.constant is None or total.constant != identity:
            x = _combine(g, combiner, dtype, 1, total.parts[0], x)
        result.append(Val(dtype, [x]))
    return result


__all__ = ["emit_rest", "emit_vector_loop", "plan_lanes"]
