"""Buffers that hold data at the same time do not overlap for any sizes, and little memory is wasted."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func, host, loop
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Constant, Module, Value
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, free_symbols, symbol
from tilewright.ir.types import BufferType, f32, i8
from tilewright.lowering.memory_plan import MemoryPlan, plan_memory, root

batch = symbol("batch", 1, 8)
seq = symbol("seq", 1, 512)
free = symbol("free", 1, None)
wide = symbol("wide", 0, None)


class Program:
    """Builds a host program; every launch writes one buffer and reads others."""

    def __init__(self, *inputs: Sequence[Dim], output: Sequence[Dim] = (1,)) -> None:
        self.module = Module()
        names = (*(f"x{k}" for k in range(len(inputs))), "y")
        main = func.Func(sym_name="main", arg_names=names, result_names=("y",))
        self.module.body.append(main)
        self.args = [main.body.add_arg(BufferType(f32, tuple(s))) for s in (*inputs, output)]
        self.builder = Builder(main.body)
        self.kernels = 0

    def launch(self, sources: Sequence[Value], shape: Sequence[Dim] | Value, in_place: Any = ()) -> Value:
        target = shape if isinstance(shape, Value) else self.alloc(shape)
        kernel = loop.Kernel(sym_name=f"k{self.kernels}")
        self.kernels += 1
        if in_place:
            notes.BUFFER_ALIASES.set(kernel, in_place)
        self.module.body.append(kernel)
        for v in (*sources, target):
            kernel.body.add_arg(v.type)
        self.builder.insert(host.Launch([*sources, target], kernel=kernel.sym_name))
        return target

    def alloc(self, shape: Sequence[Dim]) -> Value:
        made: Value = self.builder(host.Alloc(buffer=BufferType(f32, tuple(shape))))
        return made

    def plan(self) -> MemoryPlan:
        self.builder.insert(func.Return(()))
        return plan_memory(self.module)

    @property
    def ops(self) -> list[Any]:
        return list(self.module.symbol("main").body.ops)


def check(program: Program, plan: MemoryPlan, values: dict[str, int]) -> None:
    """Check that buffers that hold data at the same time share no byte, except where one is written in place
    of the other.
    """
    lives: dict[Value, list[int]] = {}
    for index, op in enumerate(program.ops):
        if isinstance(op, (host.Launch, host.Copy)):
            for v in op.operands:
                lives.setdefault(root(v), []).append(index)
    kernels = {k.sym_name: k for k in program.module.functions(loop.Kernel)}
    allowed = set()
    for op in program.ops:
        if isinstance(op, host.Launch):
            for out, source in notes.BUFFER_ALIASES.get(kernels[op.kernel], ()):
                allowed.add((root(op.inputs[source]), root(op.outputs[out])))
    arena = evaluate(plan.largest.arena, values)
    rows = []
    for buffer, uses in lives.items():
        if isinstance(buffer.defining_op, host.Alloc):
            start = evaluate(buffer.defining_op.offset, values)
            size = evaluate(buffer.type.size, values) * 4
            assert start % 64 == 0
            assert start >= 0
            assert start + size <= arena
            rows.append((buffer, start, start + size, min(uses), max(uses)))
    for k, (a, a0, a1, af, al) in enumerate(rows):
        for b, b0, b1, bf, bl in rows[:k]:
            if af <= bl and bf <= al and a0 < b1 and b0 < a1:
                assert ((b, a) in allowed and bl == af) or ((a, b) in allowed and al == bf), (a, b)


SHAPES: list[tuple[Dim, ...]] = [
    (3,),
    (1000,),
    (batch, 64),
    (batch, seq, 32),
    (batch, 4, seq, seq),
    (seq + 1,),
    (batch * seq // 2, 3),
    (5000,),
]
UNBOUNDED: list[tuple[Dim, ...]] = [*SHAPES, (free, 16), (free, seq), (wide, 3), (free * wide,)]


@pytest.mark.parametrize(
    "shapes", [SHAPES[:2] + SHAPES[-1:], SHAPES, UNBOUNDED], ids=["static", "bounded", "unbounded"]
)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(shapes: list[tuple[Dim, ...]], seed: int) -> None:
    plan = random_program(shapes, seed)
    # Buffers of several unrelated unbounded sizes may need separate regions, so more memory is allowed.
    assert plan.largest.arena_bytes <= (2 if shapes is UNBOUNDED else 1.35) * plan.largest.live_bytes


@pytest.mark.parametrize("shapes", [SHAPES, UNBOUNDED], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("seed", range(4))
def test_simpler_placements(
    shapes: list[tuple[Dim, ...]], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placements are also correct if formulas are limited in size, so that simpler ones are used."""
    monkeypatch.setattr("tilewright.lowering.memory_plan.LARGEST_FORMULA", 1)
    random_program(shapes, seed)


def random_program(shapes: list[tuple[Dim, ...]], seed: int) -> MemoryPlan:
    """Plan and check a program of 41 launches, and return its plan."""
    rng = random.Random(seed)
    program = Program((batch, seq), (free, wide), output=(1,))
    live = list(program.args[:2])
    for _ in range(40):
        sources = rng.sample(live, min(len(live), rng.choice([1, 1, 2, 3])))
        in_place = tuple((0, k) for k in range(len(sources)) if rng.random() < 0.5)
        live.append(program.launch(sources, rng.choice(shapes), in_place))
        if len(live) > 5:
            live.pop(rng.randrange(len(live)))
    program.launch(live, program.args[-1])
    plan = program.plan()
    for _ in range(20):
        values = {"batch": rng.randint(1, 8), "seq": rng.randint(1, 512)}
        values |= {"free": rng.choice([1, 7, 4000]), "wide": rng.choice([0, 5, 9000])}
        check(program, plan, values)
    assert plan.largest.live_bytes <= plan.largest.arena_bytes <= plan.largest.unplanned_bytes
    return plan


def test_arena_shrinks_with_the_sizes() -> None:
    program = Program((batch, seq, 64))
    x: Value = program.args[0]
    for k in range(12):
        x = program.launch([x], (batch, seq, 64 * (1 + 3 * (k % 2))))
    program.launch([x], program.args[-1])
    plan = program.plan()
    assert str(plan.largest.arena) == "1280*batch*seq"
    assert plan.largest.arena_bytes == 1280 * 8 * 512 == plan.largest.live_bytes
    assert plan.largest.unplanned_bytes == 6 * 1280 * 8 * 512


def test_unbounded_sizes_are_formulas() -> None:
    program = Program((free,))
    a = program.launch(program.args[:1], (free, 4))
    b = program.launch([a], (free, 4))
    c = program.launch([b], (free, 4))
    program.launch([c], program.args[-1])
    plan = program.plan()
    assert {s.name for s in free_symbols(plan.largest.arena)} == {"free"}
    assert evaluate(plan.largest.arena, {"free": 4}) == 128
    assert plan.to_metadata()["arena"] == str(plan.largest.arena)


def test_in_place_only_where_it_is_sound() -> None:
    program = Program((100,), output=(100,))
    x, y = program.args
    a = program.launch([x], (100,), ((0, 0),))  # not in place: the input belongs to the caller
    b = program.launch([a], (100,), ((0, 0),))  # in place: `a` has no later use
    c = program.launch([b, x], (100,), ((0, 0),))  # not in place: `b` has later uses
    d = program.launch([b, b], (100,), ((0, 0),))  # not in place: `b` is read through two arguments
    e = program.launch([c], (50,), ((0, 0),))  # in place: the result is smaller
    f = program.launch([e], (400,), ((0, 0),))  # not in place: the result is larger
    program.launch([d, f], y)
    plan = program.plan()
    offset = {v: v.defining_op.offset for v in (a, b, c, d, e, f)}
    assert plan.largest.in_place == 2
    assert offset[a] == offset[b]
    assert offset[c] == offset[e]
    assert offset[b] != offset[c]
    assert offset[b] != offset[d]
    assert offset[e] != offset[f]
    check(program, plan, {})


def test_views_keep_memory_alive() -> None:
    program = Program((100,), output=(10, 10))
    a = program.launch(program.args[:1], (100,))
    view = program.builder(host.View(a, shape=(10, 10)))
    b = program.launch(program.args[:1], (100,))
    program.launch([view, b], program.args[1])
    program.plan()
    assert a.defining_op.offset != b.defining_op.offset


def test_a_training_step_of_many_layers_needs_little_more_than_is_alive() -> None:
    """Each layer keeps three values until its backward pass, between large ones that live shortly. Placed by
    size alone, values that are kept would lie above these.
    """
    program = Program((16,), output=(1,))
    x, y = program.args
    kept = []
    for _ in range(40):
        packed = program.launch([x], (1728,))
        hidden = program.launch([x, packed], (1152,))
        wide = program.launch([hidden], (1152,))
        packed = program.launch([x], (1728,))
        kept.append((hidden, x))
        x = program.launch([wide, packed], (288,))
    for hidden, narrow in reversed(kept):
        packed = program.launch([narrow], (1728,))
        dh = program.launch([x, packed, hidden], (1152,))
        wide = program.launch([hidden], (1152,))
        dw = program.launch([wide, x], (1728,))
        packed = program.launch([dw], (1728,))
        x = program.launch([dh, packed, narrow], (288,))
    program.launch([x], y)
    plan = program.plan()
    check(program, plan, {})
    assert plan.largest.arena_bytes <= 1.005 * plan.largest.live_bytes


def test_buffers_that_are_alive_together_take_memory_in_proportion() -> None:
    program = Program((1,))
    kept = [program.launch([program.args[0]], (k % 50 + 1,)) for k in range(1500)]
    program.launch(kept, program.args[-1])
    program.builder.insert(func.Return(()))
    tracemalloc.start()
    plan = plan_memory(program.module)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.largest.arena_bytes == plan.largest.live_bytes == plan.largest.unplanned_bytes
    assert peak < 4 << 20  # a list of pairs takes 18 MB for its pointers


def test_weights_are_placed_once() -> None:
    program = Program((4,), output=(4,))
    data = np.arange(100, dtype=np.int8)
    values = [
        Constant(data, "a"),
        Constant(data, "b"),
        Constant(np.ones(4, np.float32)),
        Constant(np.array(data)),
    ]
    constants = [program.builder(host.Constant(value=v)) for v in values]
    program.launch(constants, program.args[1])
    plan = program.plan()
    assert [c.defining_op.offset for c in constants] == [0, 0, 128, 0]
    assert [offset for offset, _ in plan.weights] == [0, 128]
    assert plan.weights_size == 192
    assert constants[0].type is BufferType(i8, (100,))


def test_offsets_follow_from_the_program() -> None:
    """Repeated compilations give the same code, although a loop's states of equal size could be ordered by
    their addresses in memory.
    """

    def totals(x: Any) -> Any:
        def step(states: Any, row: Any) -> Any:
            first = tw.numpy.tanh(states[0] @ np.ones((8, 8), np.float32) + row)
            second = states[1] + first.sum(0)
            return (first, second), second

        return tw.scan(step, (tw.numpy.zeros((8, 8)), tw.numpy.zeros((8, 8))), x)

    codes, kept = set(), []
    for count in range(12):
        library = tw.compile(totals, (np.zeros((5, 8, 8), np.float32),), target="cpu:x86-64-v3", cache=False)
        codes.add(library.ir("llvm"))
        # allocations give the next compilation other addresses
        kept.append([object() for _ in range(1000 * count)])
    assert len(codes) == 1
