"""`tensorize` takes the numbers of a register tile, and refuses those that code cannot have."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects.simd import Tile
from tilewright.runtime.kernels import KernelDescription

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((96, 128)).astype(np.float32)
X = RNG.standard_normal((40, 96)).astype(np.float32)


def model(x: tw.Tensor) -> tw.Tensor:
    return tw.numpy.maximum(x @ tw.Tensor(WEIGHT), 0)


def compiled(target: str = "cpu:x86-64-v4", **choices: int) -> KernelDescription:
    """Return the product's kernel with these choices."""
    schedules = [tw.pin("matmul*", **choices)] if choices else []
    library = tw.compile(model, (X,), target=target, schedules=schedules)
    (kernel,) = (k for k in library.kernels.values() if k.kind == "contraction")
    return kernel


def test_numbers_are_in_the_trace_and_in_the_program() -> None:
    kernel = compiled()
    assert f"tile={tuple(Tile())}" in kernel.schedule
    library = tw.compile(
        model,
        (X,),
        target="cpu:x86-64-v4",
        schedules=[tw.pin("matmul*", tile_rows=4, unroll=1, ahead=96, tile_columns=32, share=0)],
    )
    (chosen,) = (k for k in library.kernels.values() if k.kind == "contraction")
    assert "tile=(4, 32, 1, 96, 0)" in chosen.schedule
    assert re.search(r"simd\.brgemm.*tile = \[4, 32, 1, 96, 0\]", library.ir("loop"))


def test_knobs_of_a_matrix_unit() -> None:
    """Its register tile is a fixed one; the prefetch of the next panel is not."""
    library = tw.compile(model, (X,), target="cpu:x86-64-v4+avx512bf16+amx-tile+amx-bf16", precision="bf16")
    (kernel,) = (k for k in library.kernels.values() if k.kind == "contraction")
    names = {c.name for c in kernel.choices}
    assert "share" in names
    assert not names & {"tile_rows", "tile_columns", "unroll", "ahead"}


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ((14, 0), "a tile of 14 rows of 4 vectors does not fit in 32 vector registers"),
        ((0, 48), "tile has 48 columns, which must be a multiple of 16 that divides the 64"),
        ((0, 8), "tile has 8 columns, which must be a multiple of 16"),
        ((-1,), "tile must be up to five numbers from 0 on (rows, columns, unroll, ahead, share), got (-1,)"),
        ((1, 2, 3, 4, 5, 6), "tile must be up to five numbers"),
    ],
)
def test_tiles_that_do_not_fit(tile: tuple[int, ...], message: str) -> None:
    nr = next(step[1][5] for step in compiled().trace if step[0] == "tensorize")

    @tw.schedule_kernel("matmul*")
    def own(s: tw.Schedule) -> None:
        block = s.blocks()[0].sym_name
        rows, columns, terms = s.loops(block)
        s.tensorize(block, rows, columns, (), terms, nr, True, tile=tile)

    with pytest.raises(tw.CompileError, match=re.escape(message)):
        tw.compile(model, (X,), target="cpu:x86-64-v4", schedules=[own])
