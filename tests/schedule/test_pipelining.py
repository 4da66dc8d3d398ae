"""Copies to shared memory that run ahead, and the padding of tiles against bank conflicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tests.targets.gpu.simulated import SMALL, Program
from tilewright.analysis.dependence import distance
from tilewright.dialects import loop, simt
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.matrix_atom import MMA_SYNC
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType, bf16, f32
from tilewright.schedule import Schedule, ScheduleError
from tilewright.schedule.banks import padded_shape

BF16 = ml_dtypes.bfloat16
ASYNC = replace(SMALL, atoms=tuple(MMA_SYNC.values()), async_copies=True)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(BF16)


def product(stages: int, terms: int = 70) -> Program:
    return Program(
        lambda x, y: tnp.matmul(x, y),
        (normal(16, terms), normal(terms, 8)),
        gpu=ASYNC,
        schedules=[tw.pin("matmul", stages=stages, parts_of_step=1)],
    )


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_do_not_change_results(stages: int) -> None:
    program = product(stages)
    program.check(normal(16, 70, seed=1), normal(70, 8, seed=2), rtol=1e-2, atol=1e-2)
    (kernel,) = program.kernels
    tiles = [op.buffer for op in kernel.walk() if isinstance(op, loop.Alloc) and op.buffer.space == "shared"]
    waits = [op.pending for op in kernel.walk() if isinstance(op, simt.WaitCopies)]
    commits = sum(isinstance(op, simt.CommitCopies) for op in kernel.walk())
    barriers = sum(isinstance(op, simt.Barrier) for op in kernel.walk())
    if stages == 1:
        assert (waits, commits, barriers) == ([], 0, 2)
    else:
        # One barrier a step: the tile that is overwritten is another one than that in use.
        assert (waits, commits, barriers) == ([stages - 2], stages, 1)
        assert [t.shape[0] for t in tiles] == [stages, stages]


def test_fewer_steps_than_stages() -> None:
    product(4, terms=20).check(normal(16, 20, seed=1), normal(20, 8, seed=2), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("terms", [2, 16, 90])
def test_the_simulator_finds_no_early_use(terms: int) -> None:
    x, y = normal(33, terms), normal(terms, 24, seed=1)
    library = tw.compile(
        lambda x, y: x @ y,
        (x, y),
        target="cuda:sm_80",
        schedules=[tw.pin("matmul", stages=3)],
    )
    assert "tw_copy_commit();" in library.ir("cuda")
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    found = np.asarray(library.simulated(checked=True)(x, y)).astype(np.float64)
    np.testing.assert_allclose(found, wanted, atol=1e-2 * np.abs(wanted).max())


def test_pipeline_checks_its_arguments() -> None:
    kernel = loop.Kernel(sym_name="k", num_outputs=0)
    f = loop.For(iv=symbol("i", 0, 3))
    kernel.body.append(f)
    info = product(1).options.info
    s = Schedule(kernel, info)
    for stages in (1, 9):
        with pytest.raises(ScheduleError, match="from 2 to 8"):
            s.pipeline("i", stages)
    with pytest.raises(ScheduleError, match="no asynchronous copies"):
        Schedule(kernel, replace(info, gpu=SMALL)).pipeline("i", 2)
    s.pipeline("i", 2)
    assert notes.STAGES.get(f) == 2
    f.kind = loop.LoopKind.UNROLL
    with pytest.raises(ScheduleError, match="already 'unroll'"):
        s.pipeline("i", 2)


@pytest.mark.parametrize(("ahead", "meet"), [(1, False), (2, False), (3, True)])
def test_slots_of_other_steps_are_told_apart(ahead: int, meet: bool) -> None:
    kernel = loop.Kernel(sym_name="k", num_outputs=0)
    tile = kernel.body.add_arg(BufferType(f32, (3, 8)))
    k, i, j = symbol("k", 0, 20), symbol("i", 0, 7), symbol("j", 0, 7)
    outer = loop.For(iv=k)
    kernel.body.append(outer)
    loops = []
    for iv, step in ((i, k + ahead), (j, k)):
        f = Builder(outer.body).insert(loop.For(iv=iv, kind=loop.LoopKind.THREAD_X))
        body = Builder(f.body)
        value = body(loop.Load(tile, (), None, indices=(step % 3, 7 - iv)))
        body.insert(loop.Store(value, tile, (), indices=(step % 3, iv)))
        loops.append(f)
    (store, load) = loops[0].body.last, loops[1].body.first
    assert store is not None and load is not None
    found: Any = distance(store, load, [(loops[0], loops[1])], [outer])  # type: ignore[arg-type]
    assert (found is not None) == meet


def tile_accesses(width: int, shape: tuple[int, int]) -> tuple[loop.Kernel, loop.Alloc]:
    """A block that fills a tile row by row, `width` elements at once, and reads words of 8 rows at once."""
    kernel = loop.Kernel(sym_name="k", num_outputs=0)
    body = Builder(kernel.body)
    alloc = body.insert(loop.Alloc(buffer=BufferType(bf16, shape, "shared")))
    source = kernel.body.add_arg(BufferType(bf16, shape))
    t, v, u = symbol("t", 0, 31), symbol("v", 0, width - 1), symbol("u", 0, 31)
    per_row = shape[1] // width
    fill = body.insert(loop.For(iv=t, kind=loop.LoopKind.THREAD_X))
    lanes = Builder(fill.body).insert(loop.For(iv=v, kind=loop.LoopKind.VECTORIZE))
    place = (t // per_row, t % per_row * width + v)
    value = Builder(lanes.body)(loop.Load(source, (), None, indices=place))
    Builder(lanes.body).insert(loop.Store(value, alloc.result, (), indices=place))
    use = body.insert(loop.For(iv=u, kind=loop.LoopKind.THREAD_X))
    again = Builder(use.body).insert(loop.For(iv=symbol("r", 0, 7)))
    pair = symbol("p", 0, 1)
    words = Builder(again.body).insert(loop.For(iv=pair, kind=loop.LoopKind.VECTORIZE))
    Builder(words.body)(loop.Load(alloc.result, (), None, indices=(u // 4 % shape[0], u % 4 * 2 + pair)))
    return kernel, alloc


def test_rows_are_padded_by_whole_vectors() -> None:
    _, alloc = tile_accesses(8, (8, 32))
    accesses = [op for op in alloc.result.users if isinstance(op, (loop.Load, loop.Store))]
    # Rows of 64 bytes: threads of rows 0, 2, 4 and 6 meet in a bank; rows of 80 bytes lie in all banks.
    assert padded_shape(alloc.buffer, accesses, loop.LoopKind.THREAD_X) == (8, 40)


def test_rows_without_conflicts_stay_as_they_are() -> None:
    _, alloc = tile_accesses(8, (8, 40))
    accesses = [op for op in alloc.result.users if isinstance(op, (loop.Load, loop.Store))]
    assert padded_shape(alloc.buffer, accesses, loop.LoopKind.THREAD_X) == (8, 40)
