"""Bytes that a kernel moves: a tensor counts with the elements that are read, each once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw

ROWS, COLUMNS = 96, 64
X = np.ones((ROWS, COLUMNS), np.float32)
ROW = COLUMNS * 4


def moved(function: Callable[..., tw.Tensor], *inputs: np.ndarray, **options: object) -> list[object]:
    library = tw.compile(function, inputs, **options)  # type: ignore[arg-type]
    return [kernel["bytes"] for kernel in library.metadata["kernels"]]


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda x: x[5] * 2, 1 + 1),
        (lambda x: x[::2] * 2, ROWS // 2 + ROWS // 2),
        (lambda x: x[1:] + x[:-1], ROWS + ROWS - 1),  # the rows that are read twice count once
        (lambda x: x[3] + x, ROWS + ROWS),
    ],
)
def test_parts_of_a_tensor(function: Callable[..., tw.Tensor], rows: int) -> None:
    assert moved(function, X) == [rows * ROW]


def test_a_part_of_a_dynamic_tensor_has_the_size_of_the_part() -> None:
    assert moved(lambda x: x[0] * 2, X, dims={"x": {0: "rows<=200"}}) == [2 * ROW]


def test_a_window_that_reads_elements_again_counts_them_once() -> None:
    image, weight = np.ones((1, 8, 20, 20), np.float32), np.ones((8, 1, 3, 3), np.float32)
    total = sum(map(int, map(str, moved(lambda x: tw.nn.functional.conv(x, weight, groups=8), image))))
    assert 4 * (8 * 20 * 20 + 8 * 18 * 18) <= total <= 5 * 4 * (8 * 20 * 20 + 8 * 18 * 18)
