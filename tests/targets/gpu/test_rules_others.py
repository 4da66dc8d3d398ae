"""The rules of scatters, running combinations, recurrences and sorting, and the slower forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.analysis.test_recurrence import rows as along_rows
from tests.analysis.test_recurrence import selective
from tests.targets.gpu.simulated import Program, blocks, checked, count, spaces, threads

import tilewright as tw
from tilewright.dialects import loop, simt
from tilewright.ir.target_info import Gpu

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows that meet": (lambda x, i: x.at[i].add(1.5), (drawn(9, 40), np.array([1, 1, 4]))),
    "the last one wins": (lambda x, i, y: x.at[i].set(y), (drawn(9, 4), np.array([1, 1, 4]), drawn(3, 4))),
    "single elements": (lambda x, i: (x * 2).at[i].add(1.5), (drawn(90), np.array([1, 1, 4]))),
    "columns": (lambda x, i: x.at[:, i].set(0.5), (drawn(40, 9), np.array([8, 0]))),
    "a slice": (lambda x, y: x.at[2:5].set(y), (drawn(9, 40), drawn(3, 40))),
    "no points": (lambda x, i: x.at[i].add(1.5), (drawn(9, 40), np.zeros(0, np.int64))),
    "cumulative sum": (lambda x: tnp.cumsum(x, 1), (drawn(9, 40),)),
    "of columns": (lambda x: tnp.cumsum(x, 0), (drawn(9, 40),)),
    "of one line": (lambda x: tnp.cumsum(x), (drawn(333),)),
    "cumulative product": (lambda x: tnp.cumprod(x, 1), (1 + 0.01 * drawn(2, 160),)),
    "backwards": (lambda x: tnp.flip(tnp.cumsum(tnp.flip(x, 1), 1), 1), (drawn(2, 200),)),
    "sorted": (lambda x: tnp.sort(x, -1), (drawn(3, 20),)),
    "sorted columns": (lambda x: tnp.argsort(x, 0), (drawn(20, 3),)),
    "recurrence": (selective, (drawn(2, 5, 70), drawn(9, 2, 70), drawn(9, 2, 70), drawn(9, 2, 5))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    checked(function, *inputs, rtol=1e-4)


def test_a_scatter_changes_a_copy() -> None:
    program = checked(lambda x, i: x.at[i].add(1.5), drawn(9, 40), np.array([1, 1, 4]))
    names = [kernel.sym_name for kernel in program.kernels]
    assert "copy" in names
    scatter = program.kernels[-1]
    assert (blocks(scatter), threads(scatter)) == (2, 32)  # a thread for each column


def test_tokens_are_written_into_pages_by_a_thread_for_each_element_of_a_token() -> None:
    heads, width, size = 3, 20, 16
    x, y = drawn(4, heads, width, size), drawn(2, 5, heads, width)
    page, slot = np.array([[1] * 5, [3] * 5]), np.arange(10).reshape(2, 5)
    program = checked(lambda x, y, page, slot: x.at[page, :, :, slot].set(y), x, y, page, slot)
    scatter = program.kernels[-1]
    assert blocks(scatter) * threads(scatter) >= heads * width


def test_an_operand_that_dies_is_not_copied() -> None:
    program = checked(lambda x, i: (x * 2.0).at[i].add(1.5), drawn(9, 40), np.array([1, 1, 4]))
    assert "copy" not in [kernel.sym_name for kernel in program.kernels]


def test_scattered_rows_of_unknown_number() -> None:
    program = Program(
        lambda x, i: x.at[i].add(1.5),
        (drawn(9, 40), np.array([1, 1, 4])),
        dims={"x": {0: "n"}, "i": {0: "0<=k<=50"}},
    )
    program.check(drawn(9, 40), np.array([1, 1, 4]))
    program.check(drawn(3, 40), np.array([2]))
    program.check(drawn(3, 40), np.zeros(0, np.int64))


def test_long_cumulative_sums_are_split() -> None:
    program = checked(lambda x: tnp.cumsum(x), drawn(5000), rtol=1e-4)
    assert max(blocks(k) * threads(k) for k in program.kernels[:1]) >= 5000 // 32


def test_cumulative_sums_of_unknown_length() -> None:
    program = Program(lambda x: tnp.cumsum(x, 1), (drawn(2, 300),), dims={"x": {0: "b<=8", 1: "n"}})
    for shape in ((2, 300), (1, 1), (8, 32), (3, 33)):
        program.check(drawn(*shape), rtol=1e-4, atol=1e-4)


def test_steps_of_few_long_columns_are_shared_by_blocks() -> None:
    """A column's values are reduced, and read by other threads, in each step."""
    program = checked(along_rows, drawn(64, 40), drawn(2, 64))
    kernel = program.kernels[-1]
    assert (blocks(kernel), threads(kernel)) == (64, 64)
    assert "shared" in spaces(kernel)
    assert count(kernel, simt.Barrier) >= 2


def test_short_columns_stay_in_registers() -> None:
    program = checked(selective, drawn(2, 16, 70), drawn(3, 2, 70), drawn(3, 2, 70), drawn(3, 2, 16))
    kernel = program.kernels[-1]
    assert set(spaces(kernel)) == {"local"}
    assert count(kernel, simt.Barrier) == 0


def wide(x: Any) -> Any:
    """Members that exchange values of other columns, so that rows lie in shared memory."""
    a = tnp.exp(x - tnp.max(x, -1, keepdims=True))
    b = a + tnp.flip(a, -1)
    c = b * tnp.sum(b, -1, keepdims=True)
    return c + tnp.flip(b * c, -1) / tnp.sum(c, -1, keepdims=True)


def test_rows_that_do_not_fit_into_shared_memory() -> None:
    """The values of a row lie in memory of the thread that computes it."""
    gpu = Gpu(max_threads=1024, shared_bytes=1024, multiprocessors=2)
    x = drawn(3, 200)
    program = Program(wide, (x,), gpu=gpu)
    program.check(x, rtol=1e-4)
    assert max(map(shared_bytes, program.kernels)) <= 1024


def shared_bytes(kernel: loop.Kernel) -> int:
    allocs = [op.buffer for op in kernel.walk() if isinstance(op, loop.Alloc)]
    return sum(b.size * b.dtype.itemsize for b in allocs if b.space == "shared")
