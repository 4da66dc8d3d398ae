"""Nests that ``ldmatrix`` can do, found by the addresses of all threads."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dialects import loop
from tilewright.ir.builder import Builder
from tilewright.ir.matrix_atom import ATOMS, FragmentLayout
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import BufferType, DType, bf16, f64, i8
from tilewright.targets.gpu.matrix_access import MatrixLoad, matrix_loads

THREADS = 64
ATOM = ATOMS["m16n8k16_f32_bf16"]


def nest_of(
    layout: FragmentLayout, axes: str, row: int, parts: int = 1, dtype: DType = bf16, skew: Dim = 0
) -> loop.For:
    """A nest that loads `parts` fragments below each other from a tile whose rows are the first of two axes
    and have `row` elements; `skew` is added to the column.
    """
    kernel = loop.Kernel(sym_name="load", num_outputs=0)
    body = Builder(kernel.body)
    rows = layout.extent(axes[0])
    tile = body(loop.Alloc(buffer=BufferType(dtype, (rows * parts, row), "shared")))
    t, part = symbol("t", 0, THREADS - 1), symbol("part", 0, parts - 1)
    runs = list(reversed(layout.slot_runs))
    slots = [symbol(f"s{k}", 0, r.extent - 1) for k, r in enumerate(runs)]
    extents = (THREADS, parts, *(r.extent for r in runs))
    registers = body(loop.Alloc(buffer=BufferType(dtype, extents, "register")))
    place: dict[str, Dim] = {}
    for axis in axes:
        place[axis] = 0
        for r in layout.lane_runs:
            if r.axis == axis:
                place[axis] = place[axis] + t // (1 << r.place) % r.extent * (1 << r.bit)
        for r, s in zip(runs, slots, strict=True):
            if r.axis == axis:
                place[axis] = place[axis] + s * (1 << r.bit)
    nest = body.insert(loop.For(iv=t, kind=loop.LoopKind.THREAD_X))
    inner = nest
    for iv in (part, *slots):
        inner = Builder(inner.body).insert(loop.For(iv=iv, kind=loop.LoopKind.UNROLL))
    last = Builder(inner.body)
    indices = (part * rows + place[axes[0]], place[axes[1]] + skew)
    value = last(loop.Load(tile, (), None, indices=indices))
    last.insert(loop.Store(value, registers, (), indices=(t, part, *slots)))
    return nest


def run(loads: list[MatrixLoad], memory: np.ndarray, dtype: DType) -> np.ndarray:
    """The parts of all threads, as the instruction loads them: shape (threads, elements)."""
    in_word = 4 // dtype.itemsize
    total = loads[-1].first + loads[-1].count * in_word
    parts = np.full((THREADS, total), -1, memory.dtype)
    for load in loads:
        rows = np.array([int(evaluate(load.row, {"t": t})) for t in range(THREADS)])
        for t in range(THREADS):
            warp, lane = t // 32 * 32, t % 32
            for m in range(load.count):
                for e in range(in_word):
                    word = load.first + m * in_word + e
                    if load.transposed:
                        start = rows[warp + 8 * m + 2 * (lane % 4) + e]
                        parts[t, word] = memory[start + lane // 4]
                    else:
                        parts[t, word] = memory[rows[warp + 8 * m + lane // 4] + in_word * (lane % 4) + e]
    return parts


def wanted(nest: loop.For, memory: np.ndarray) -> np.ndarray:
    """The parts as the nest itself loads them."""
    loops = [op for op in nest.walk() if isinstance(op, loop.For)]
    (load,) = (op for op in nest.walk() if isinstance(op, loop.Load))
    grid = np.indices([f.extent for f in loops])
    names = {f.iv.name: values for f, values in zip(loops, grid, strict=True)}
    row, column = (np.broadcast_to(evaluate(e, names), grid[0].shape) for e in load.indices)
    return memory[row * load.buffer.type.shape[1] + column].reshape(THREADS, -1)


@pytest.mark.parametrize(
    ("layout", "axes", "dtype", "transposed"),
    [
        (ATOM.left, "mk", bf16, False),
        (ATOM.left, "km", bf16, True),
        (ATOM.right, "nk", bf16, False),
        (ATOM.right, "kn", bf16, True),
        (ATOMS["m16n8k32_i32_i8"].left, "mk", i8, False),
        (ATOMS["m16n8k32_i32_i8"].right, "nk", i8, False),
    ],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_rows_give_each_thread_what_the_nest_does(
    layout: FragmentLayout, axes: str, dtype: DType, transposed: bool, parts: int
) -> None:
    nest = nest_of(layout, axes, 48, parts, dtype)
    loads = matrix_loads(nest)
    assert loads and all(x.transposed == transposed for x in loads)
    memory = np.arange(48 * 200)
    np.testing.assert_array_equal(run(loads, memory, dtype), wanted(nest, memory))
    assert sum(x.count for x in loads) * 4 == parts * dtype.itemsize << len(layout.slots)


@pytest.mark.parametrize(
    ("axes", "row", "dtype", "skew"),
    [
        ("mk", 44, bf16, 0),  # rows that are no multiple of 16 bytes
        ("mk", 48, bf16, 4),  # fragments that do not begin at one
        ("km", 48, i8, 0),  # columns of bytes
        ("mk", 48, f64, 0),  # elements longer than a word
    ],
)
def test_other_nests_are_left_alone(axes: str, row: int, dtype: DType, skew: int) -> None:
    atom = {i8: "m16n8k32_i32_i8", f64: "m8n8k4_f64"}.get(dtype, ATOM.name)
    assert matrix_loads(nest_of(ATOMS[atom].left, axes, row, dtype=dtype, skew=skew)) == []


def test_steps_around_the_nest_move_all_rows() -> None:
    step = symbol("k", 0, 3)
    for skew, fits in ((16 * (step % 2), True), (step, False)):
        assert bool(matrix_loads(nest_of(ATOM.left, "mk", 64, skew=skew))) == fits
