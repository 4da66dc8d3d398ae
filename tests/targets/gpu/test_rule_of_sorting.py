"""The rule of sorting: rows are sorted in shared memory; the best of longer rows are those of pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.targets.gpu.simulated import Program, checked, count

import tilewright as tw
from tilewright.dialects import simt
from tilewright.schedule.kernel_schedule import pin

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def with_special_values(*shape: int) -> Any:
    """Numbers with ties, infinities and NaN."""
    x = DRAW.integers(-9, 9, shape).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        x[DRAW.uniform(size=shape) < 0.1] = value
    return x


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "argsort": (lambda x: tnp.argsort(x, -1), (with_special_values(3, 70),)),
    "another axis": (lambda x: tnp.argsort(x, 0), (with_special_values(37, 3),)),
    "sort": (lambda x: tnp.sort(x, -1), (with_special_values(2, 64),)),
    "integers": (lambda x: tnp.argsort(x, -1), (DRAW.integers(-9, 9, (3, 40)),)),
    "bytes": (lambda x: tnp.argsort(x, -1), (DRAW.integers(0, 255, (2, 50)).astype(np.uint8),)),
    "booleans": (lambda x: tnp.argsort(x, -1), (DRAW.uniform(size=(2, 33)) > 0.5,)),
    "one element": (lambda x: tnp.argsort(x, -1), (with_special_values(4, 1),)),
    "a vector": (lambda x: tnp.argsort(x), (with_special_values(100),)),
}


PIECES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "best of pieces": (lambda x: tnp.topk(x, 5), (with_special_values(2, 4500),)),
    "least of an axis": (lambda x: tnp.topk(x, 3, 0, largest=False)[1], (with_special_values(4100, 2),)),
    "merged pieces": (lambda x: tnp.argsort(x, -1), (with_special_values(1, 8500),)),
    "merged bytes": (lambda x: tnp.argsort(x, -1), (DRAW.integers(0, 255, (1, 4097)).astype(np.uint8),)),
}
"""Rows that no block sorts alone; the interpreter takes long for them."""


@pytest.mark.parametrize("name", PIECES)
def test_longer_rows_are_sorted_in_pieces(name: str) -> None:
    function, inputs = PIECES[name]
    kernels = Program(function, inputs).lowered.kernels
    assert {info.kind for info in kernels.values()} == {"rows", "argsort"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    program = checked(function, *inputs)
    assert any(count(kernel, simt.Argsort) for kernel in program.kernels)


def test_knobs() -> None:
    inputs = (with_special_values(2, 100),)
    for threads in (32, 128):
        checked(PROGRAMS["argsort"][0], *inputs, schedules=[pin("argsort*", threads=threads)])


def test_length_at_run_time() -> None:
    program = checked(PROGRAMS["argsort"][0], with_special_values(2, 40), dims={"x": {1: "n<=100"}})
    assert any(count(kernel, simt.Argsort) for kernel in program.kernels)
    program.check(with_special_values(2, 7))
