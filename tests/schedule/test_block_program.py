"""Block programs: kernels scheduled for a GPU, run by the interpreter one thread after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedule.kernels import kernel_from
from tilewright.dialects import loop, simt
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Frame
from tilewright.ir.target_info import Gpu, TargetInfo, ThreadAxis
from tilewright.schedule import Schedule, ScheduleError, finalize

GPU = TargetInfo(
    name="toy-gpu",
    vector_bits=0,
    gpu=Gpu(),
    cache_line=0,
    thread_axes=(ThreadAxis("block.x"), ThreadAxis("block.y"), ThreadAxis("thread.x", 256)),
)
ROWS, COLUMNS = 6, 100


def softmax() -> loop.Kernel:
    """b0 = max, b1 = exp(x - b0), b2 = sum, b3 = b1 / b2."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        shape = (ROWS, COLUMNS)
        top = t.reduce("max", (ROWS,), (COLUMNS,), lambda i, r: x[i, r])
        e = t.compute(shape, lambda i, j: (x[i, j] - top[i]).apply("exp"))
        total = t.reduce("sum", (ROWS,), (COLUMNS,), lambda i, r: e[i, r])
        return [t.compute(shape, lambda i, j: e[i, j] / total[i])]

    return kernel_from([(ROWS, COLUMNS)], body)


def by_warps(s: Schedule, rows: int, lanes: int) -> None:
    """Let `rows` rows be computed by one block, each by `lanes` threads."""
    finals = []
    for name in ("b0", "b2"):
        row, column = s.loops(name)
        finals.append(s.rfactor(s.split(column, lanes, guarded=True)[1]))
        s.fission(row)
    names = [b.sym_name for b in s.blocks()]
    outer = [s.split(s.loops(name)[0], rows, guarded=True)[0] for name in names]
    for other in outer[1:]:
        s.fuse_loops(outer[0], other)
    s.compact()
    s.bind(outer[0], "block.x")
    for name in names:
        row, *columns = s.loops(name)[1:]
        if name in finals:
            s.all_reduce(name)
            s.bind(row, "thread.x")
            continue
        if len(columns) == 1 and not name.endswith("_init"):
            columns = list(s.split(columns[0], lanes, guarded=True))
        s.reorder(row, *reversed(columns))
        s.bind(s.fuse(row, columns[-1]), "thread.x")


@pytest.mark.parametrize(("rows", "lanes"), [(1, 32), (2, 32), (4, 64), (1, 128)])
def test_softmax_by_warps(rows: int, lanes: int) -> None:
    s = Schedule(softmax(), GPU)
    by_warps(s, rows, lanes)
    kernel = finalize(s)
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    y = np.zeros_like(x)
    Frame(Module(), {}, {}).run_block(kernel.body, [x, y])
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    ops = list(kernel.walk())
    spaces = [op.buffer.space for op in ops if isinstance(op, loop.Alloc)]
    assert spaces == ["register"] * 5  # each thread has its part of the exponentials, and the row's values
    assert sum(isinstance(op, simt.AllReduce) for op in ops) == 2
    assert not any(isinstance(op, simt.Barrier) for op in ops)


def neighbours() -> loop.Kernel:
    """b0 = 2 x, b1 = b0 reversed."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        y = t.compute((64,), lambda i: x[i] * 2.0)
        return [t.compute((64,), lambda i: y[63 - i])]

    return kernel_from([(64,)], body)


def test_values_of_other_threads_go_through_shared_memory() -> None:
    s = Schedule(neighbours(), GPU)
    for name in ("b0", "b1"):
        s.bind(s.loops(name)[0], "thread.x")
    kernel = finalize(s)
    kinds = [type(op).__name__ for op in kernel.body.ops]
    assert kinds == ["Alloc", "For", "Barrier", "For"]
    (alloc,) = (op for op in kernel.body.ops if isinstance(op, loop.Alloc))
    assert alloc.buffer.space == "shared"


def test_memory_of_a_block_is_limited() -> None:
    def body(t: TensorBuilder, x: Any) -> list[Any]:
        y = t.compute((5000,), lambda i: x[i] * 2.0)
        return [t.compute((5000,), lambda i: y[4999 - i])]

    s = Schedule(kernel_from([(5000,)], body), GPU)
    with pytest.raises(ScheduleError, match="20000 bytes of shared memory"):
        finalize(s)


def test_partial_results_must_be_all_of_a_row() -> None:
    s = Schedule(softmax(), GPU)
    column = s.loops("b0")[1]
    final = s.rfactor(s.split(column, 24, guarded=True)[1])
    with pytest.raises(ScheduleError, match="power of two"):
        s.all_reduce(final)
    with pytest.raises(ScheduleError, match="not the final reduction"):
        s.all_reduce("b1")
