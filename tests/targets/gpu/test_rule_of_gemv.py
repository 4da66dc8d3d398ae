"""The rule of products with few rows: vectors, batches and a few rows times a matrix of either layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.targets.gpu.simulated import checked, count, spaces

import tilewright as tw
from tilewright.dialects import simt
from tilewright.schedule.kernel_schedule import pin

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def transposed(x: Any, w: Any) -> Any:
    """The product with a matrix whose rows are the columns of the result."""
    return x @ tnp.swapaxes(w, -1, -2)


def epilogue(x: Any, w: Any, y: Any) -> Any:
    return tnp.maximum(x @ w, 0) + y


def epilogue_of_transposed(x: Any, w: Any, y: Any) -> Any:
    return tnp.maximum(transposed(x, w), 0) + y


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "columns": (epilogue, (drawn(1, 40), drawn(40, 36), drawn(1, 36))),
    "columns of a vector": (lambda x, w: x @ w, (drawn(100), drawn(100, 20))),
    "columns of a batch of one": (lambda x, w: x @ w, (drawn(1, 1, 40), drawn(40, 36))),
    "odd columns": (epilogue, (drawn(1, 37), drawn(37, 51), drawn(51))),
    "three rows and columns": (epilogue, (drawn(3, 40), drawn(40, 36), drawn(3, 36))),
    "four odd rows and columns": (epilogue, (drawn(4, 33), drawn(33, 35), drawn(4, 35))),
    "batches of columns": (lambda x, w: x @ w, (drawn(3, 1, 24), drawn(3, 24, 40))),
    "a batch of one": (lambda x, w: x @ w, (drawn(1, 1, 24), drawn(24, 41))),
    "dots": (epilogue_of_transposed, (drawn(1, 72), drawn(20, 72), drawn(1, 20))),
    "odd dots": (epilogue_of_transposed, (drawn(1, 77), drawn(9, 77), drawn(9))),
    "long dots": (transposed, (drawn(1, 1000), drawn(5, 1000))),
    "dots of three rows": (epilogue_of_transposed, (drawn(3, 72), drawn(20, 72), drawn(3, 20))),
    "batches of dots": (transposed, (drawn(2, 3, 1, 20), drawn(2, 3, 11, 20))),
    "a column": (lambda x, w: x @ w, (drawn(30, 50), drawn(50, 1))),
    "grouped heads": (transposed, (drawn(2, 3, 2, 16), drawn(2, 1, 21, 16))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    program = checked(function, *inputs)
    assert [info.kind for info in program.lowered.kernels.values()] == ["contraction"]
    assert not any(info.slower for info in program.lowered.kernels.values())


def test_threads_of_a_warp_add_up_dots() -> None:
    (kernel,) = checked(transposed, drawn(1, 640), drawn(64, 640)).kernels
    assert set(spaces(kernel)) == {"register"}
    assert [op.count for op in kernel.walk() if isinstance(op, simt.AllReduce)] == [32]
    assert count(kernel, simt.Barrier) == 0


def test_parts_of_columns_wait_once() -> None:
    (kernel,) = checked(lambda x, w: x @ w, drawn(1, 640), drawn(640, 64)).kernels
    assert count(kernel, simt.Barrier) == 1


@pytest.mark.parametrize("rows", [1, 2])
def test_numbers_of_16_bits(rows: int) -> None:
    x, w = drawn(rows, 64).astype(ml_dtypes.bfloat16), drawn(64, 32).astype(ml_dtypes.bfloat16)
    checked(lambda x, w: x @ w, x, w, rtol=2e-2)


def test_knobs() -> None:
    inputs = drawn(2, 64), drawn(64, 48)
    for choices in ({"elements": 1}, {"lanes": 8, "parts": 4}, {"elements": 2, "parts": 16}):
        checked(lambda x, w: x @ w, *inputs, schedules=[pin("matmul*", **choices)])


def test_few_rows_of_unknown_number() -> None:
    """They take tiles where a thread cannot keep a row count that is not known."""
    dims = {"x": {0: "rows<=4"}}
    program = checked(lambda x, w: x @ w, drawn(3, 40), drawn(40, 64), dims=dims)
    program.check(drawn(1, 40), drawn(40, 64))


def test_columns_of_dynamic_number() -> None:
    program = checked(epilogue, drawn(1, 40), drawn(40, 36), drawn(36), dims={"w": {1: "n"}, "y": {0: "n"}})
    program.check(drawn(1, 40), drawn(40, 7), drawn(7))


def test_rows_of_dynamic_number() -> None:
    program = checked(epilogue, drawn(2, 40), drawn(40, 36), drawn(36), dims={"x": {0: "n<=4"}})
    (kernel,) = program.lowered.kernels.values()
    assert kernel.kind == "contraction" and not kernel.slower
    program.check(drawn(4, 40), drawn(40, 36), drawn(36))
