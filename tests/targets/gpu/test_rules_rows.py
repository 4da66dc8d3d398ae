"""The rule of row groups and reductions: threads of a row, partial results, values in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.targets.gpu.simulated import Program, blocks, checked, count, spaces, target, threads

import tilewright as tw
from tilewright.analysis.loop_nest import enclosing_loops
from tilewright.dialects import loop, simt
from tilewright.ir.substitution import linear_in
from tilewright.ir.target_info import Gpu
from tilewright.schedule.kernel_schedule import pin
from tilewright.targets.gpu.dialects.opencl import OPENCL
from tilewright.targets.gpu.printer import print_kernel

tnp = tw.numpy
softmax = tw.nn.functional.softmax
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def layer_norm(x: Any) -> Any:
    centered = x - tnp.mean(x, -1, keepdims=True)
    return centered / tnp.sqrt(tnp.mean(centered * centered, -1, keepdims=True) + 1e-5)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (lambda x: softmax(x, -1), (drawn(9, 70),)),
    "long": (lambda x: softmax(x, -1), (drawn(2, 1500),)),
    "one row": (lambda x: softmax(x, -1), (drawn(1, 70),)),
    "one column": (lambda x: softmax(x, -1), (drawn(9, 1),)),
    "few columns": (lambda x: softmax(x, -1), (drawn(50, 3),)),
    "a vector": (lambda x: softmax(x, -1), (drawn(70),)),
    "another axis": (lambda x: softmax(x, 1), (drawn(3, 6, 5),)),
    "layer norm": (layer_norm, (drawn(9, 70),)),
    "two results": (lambda x: (layer_norm(x), tnp.max(x, -1)), (drawn(9, 64),)),
    "log of a sum": (lambda x: x - tnp.log(tnp.sum(tnp.exp(x), -1, keepdims=True)), (drawn(4, 3, 40),)),
    "argmax": (lambda x: tnp.argmax(x, -1), (drawn(9, 70),)),
    "argmin of columns": (lambda x: tnp.argmin(x, 0), (drawn(70, 9),)),
    "sum": (lambda x: tnp.sum(x, -1), (drawn(9, 70),)),
    "sum of columns": (lambda x: tnp.sum(x, 0), (drawn(70, 9),)),
    "sum of all": (lambda x: tnp.sum(x), (drawn(70, 9),)),
    "sum of a scalar": (lambda x: tnp.sum(x), (drawn(),)),
    "mean of images": (lambda x: tnp.mean(x, (1, 2)), (drawn(3, 6, 5, 7),)),
    "mean of planes": (lambda x: tnp.mean(x, (0, 2, 3)), (drawn(3, 6, 5, 7),)),
    "mean and its root": (lambda x: tnp.sqrt(tnp.mean(x * x, (1, 2))), (drawn(3, 6, 5, 7),)),
    "columns in vectors": (lambda x: tnp.sum(x, 0), (drawn(5, 576),)),
    "columns and their roots": (lambda x: tnp.sqrt(tnp.sum(x * x, 1)), (drawn(3, 5, 192),)),
    "all": (lambda x: tnp.all(x > -0.9, -1), (drawn(9, 70),)),
    "product": (lambda x: tnp.prod(x, -1), (drawn(5, 40),)),
    "integers": (lambda x: tnp.sum(x, -1), (DRAW.integers(-9, 9, (6, 50)),)),
    "sum of nothing": (lambda x: tnp.sum(x, -1), (drawn(5, 0),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    checked(function, *inputs)


@pytest.mark.parametrize("columns", [70, 256])
def test_a_warp_computes_short_rows_without_barriers(columns: int) -> None:
    program = checked(lambda x: softmax(x, -1), drawn(9, columns))
    (kernel,) = program.kernels
    assert threads(kernel) == 64  # two rows
    assert blocks(kernel) == 5
    assert set(spaces(kernel)) == {"register"}
    assert [op.count for op in kernel.walk() if isinstance(op, simt.AllReduce)] == [32, 32]
    assert count(kernel, simt.Barrier) == 0


def test_a_block_computes_long_rows() -> None:
    program = Program(lambda x: softmax(x, -1), (drawn(16, 5000),))
    (kernel,) = program.kernels
    assert threads(kernel) == 1024
    assert blocks(kernel) == 16
    assert set(spaces(kernel)) == {"register"}


def test_neighbouring_elements_of_rows() -> None:
    program = checked(layer_norm, drawn(9, 256))
    (kernel,) = program.kernels
    found = [op.extent for op in kernel.walk() if isinstance(op, loop.For) and op.kind == "vectorize"]
    assert found and set(found) == {4}
    assert set(spaces(kernel)) == {"register"}
    assert count(kernel, simt.Barrier) == 0


@pytest.mark.parametrize("shape", [(9, 70), (1, 1), (3, 33)])
def test_unknown_sizes(shape: tuple[int, int]) -> None:
    """Rows of unknown length with a bound lie in shared memory."""
    program = Program(lambda x: softmax(x, -1), (drawn(9, 70),), dims={"x": {0: "n", 1: "m<=100"}})
    program.check(drawn(*shape))


def test_rows_without_a_bound() -> None:
    program = Program(layer_norm, (drawn(9, 70),), dims={"x": {0: "n", 1: "m"}})
    for shape in ((3, 70), (1, 520), (2, 1)):
        program.check(drawn(*shape))


def test_unknown_reductions() -> None:
    program = Program(
        lambda x: (tnp.sum(x, 0), tnp.max(x, 1), tnp.sum(x)), (drawn(9, 70),), dims={"x": {0: "n", 1: "m"}}
    )
    for shape in ((9, 70), (1, 300), (2, 1), (20, 2)):
        program.check(drawn(*shape))


def test_long_rows_share_memory_with_no_one() -> None:
    """Values of neighbours are exchanged in shared memory."""

    def blurred(x: Any) -> Any:
        e = tnp.exp(x - tnp.max(x, -1, keepdims=True))
        return e / tnp.sum(e, -1, keepdims=True) + tnp.flip(e, -1)

    program = checked(blurred, drawn(5, 70))
    if len(program.kernels) == 1:
        assert "shared" in spaces(program.kernels[0])
        assert count(program.kernels[0], simt.Barrier) >= 1


@pytest.mark.parametrize(("columns", "elements"), [(608, 4), (606, 2), (601, 1)])
def test_neighbouring_threads_read_neighbouring_columns(columns: int, elements: int) -> None:
    """Each thread reads as many at once as divide the columns; its first element is then aligned."""
    program = checked(lambda x: tnp.sum(x, 0), drawn(20, columns))
    (kernel,) = program.kernels
    (load,) = (op for op in kernel.walk() if isinstance(op, loop.Load) and op.buffer in kernel.body.args)
    (thread,) = (f for f in kernel.walk() if isinstance(f, loop.For) and f.kind == "thread.x")
    parts = linear_in(load.indices[1], thread.iv)
    assert parts is not None and parts[0] == elements
    vectors = [f for f in enclosing_loops(load) if f.kind == "vectorize"]
    assert [f.extent for f in vectors] == ([elements] if elements > 1 else [])
    stores = [op for op in kernel.walk() if isinstance(op, loop.Store) and op.buffer in kernel.body.args]
    assert [enclosing_loops(op)[-1].kind for op in stores] == ["vectorize" if elements > 1 else "thread.x"]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_rows_and_their_values_in_registers_have_vectors_of_the_narrow_elements(dtype: Any) -> None:
    """Elements in memory decide, not those in registers, which are wider."""
    x = drawn(6, 256).astype(dtype)
    program = Program(lambda x: softmax(x, -1), (x,))
    program.check(x, rtol=1e-2)
    (kernel,) = program.kernels
    loads = [op for op in kernel.walk() if isinstance(op, loop.Load) and op.buffer in kernel.body.args]
    assert {enclosing_loops(op)[-1].extent for op in loads} == {16 // x.itemsize}


def test_few_columns_have_several_threads_each() -> None:
    program = checked(lambda x: tnp.sum(x, 0), drawn(300, 9))
    (kernel,) = program.kernels
    assert threads(kernel) == 256
    assert spaces(kernel) == ["shared"]


@pytest.mark.parametrize("knobs", [{"lanes": 8, "rows": 4}, {"lanes": 128, "rows": 1}, {"elements": 1}])
def test_knobs(knobs: dict[str, int]) -> None:
    x = drawn(9, 64)
    program = Program(lambda x: softmax(x, -1), (x,), schedules=[pin("softmax", **knobs)])
    program.check(x)


def test_warps_of_64() -> None:
    program = checked(lambda x: softmax(x, -1), drawn(9, 256), gpu=Gpu(warp=64, multiprocessors=2))
    (kernel,) = program.kernels
    assert [op.count for op in kernel.walk() if isinstance(op, simt.AllReduce)] == [64, 64]


@pytest.mark.parametrize("n", [1, 3])
def test_rows_of_several_unknown_axes(n: int) -> None:
    """Neighbouring axes of unknown sizes that no access traverses as one; the first result is an output and
    read again.
    """

    def model(x: Any, y: Any) -> tuple[Any, Any]:
        z = x[:, None, :, None] * y[None, :, None, :]
        return z, z / tnp.sqrt(tnp.mean(z * z, -1, keepdims=True) + 0.1)

    program = Program(
        model, (drawn(2, 3), drawn(3, 3)), dims={"x": {1: "n<=30"}, "y": {0: "n<=30", 1: "n<=30"}}
    )
    program.check(drawn(2, n), drawn(n, n))


def test_shared_memory_has_room_for_what_threads_combine() -> None:
    """The limit holds for the row's values and for partial results together."""

    def function(x: Any) -> Any:
        y = softmax(x, -1)
        return y[:, ::-1] + y

    x = drawn(3, 600)
    for limit in range(2000, 6000, 500):
        gpu = Gpu(max_threads=256, shared_bytes=limit, multiprocessors=2, shuffles=False)
        program = checked(function, x, gpu=gpu)
        for kernel in program.kernels:
            assert print_kernel(kernel, OPENCL, target(gpu)).shared_bytes <= limit
    assert "shared" in spaces(program.kernels[0])
