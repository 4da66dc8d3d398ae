"""Sums of weights as integers are those of Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.frontends.trace import Tensor
from tilewright.llm.exact_sums import UNIT, ExactSums, fixed, part


def whole(exact: ExactSums, number: Any, at: int) -> int:
    """A number as an integer, in units of its last word."""
    return sum(int(word.numpy()[at]) << (k * exact.bits) for k, word in enumerate(number))


@pytest.mark.parametrize("most", [3, 400, 131072, 151936, 262208])
def test_words_are_the_integers(most: int) -> None:
    """Running sums, their parts and their order, also where all weights are 1: sums then fill their words."""
    exact, rng = ExactSums(most), np.random.default_rng(most)
    assert most * 2**exact.bits < 2**32 and 36 <= 3 * exact.bits <= 45
    weights = np.exp(-rng.exponential(9, (3, most))).astype(np.float32)
    weights[0, :2], weights[1], weights[2, ::2] = (0, 1), 1, 0
    uniform = rng.integers(0, 2**32, 3, dtype=np.uint32)
    uniform[1] = 2**32 - 1
    cut = exact.cut(Tensor(weights)).numpy()
    unit = 2.0 ** (3 * exact.bits)
    integers = np.floor(weights.astype(np.float64) * unit).astype(np.uint64)
    sums = integers.sum(axis=1).tolist()
    number = exact.number(Tensor(cut.sum(axis=2, dtype=np.uint32)))
    assert [whole(exact, number, row) for row in range(3)] == sums
    np.testing.assert_allclose(exact.rounded(number).numpy(), np.array(sums) / unit, rtol=1e-6)
    drawn = exact.part(number, Tensor(uniform))
    parts = [a * int(u) >> 32 for a, u in zip(sums, uniform, strict=True)]
    assert [whole(exact, drawn, row) for row in range(3)] == parts
    running = np.cumsum(cut, axis=2, dtype=np.uint32)
    goal = tuple(Tensor(word.numpy()[:, None]) for word in drawn)
    found = exact.less(goal, exact.number(Tensor(running))).numpy()
    wanted = np.cumsum(integers, axis=1, dtype=np.uint64) > np.array(parts, np.uint64)[:, None]
    np.testing.assert_array_equal(found, wanted)


def test_parts_of_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    totals = np.append(rng.integers(0, 2**31, 100, dtype=np.uint32), np.uint32(2**31 - 1))
    uniform = np.append(rng.integers(0, 2**32, 100, dtype=np.uint32), np.uint32(2**32 - 1))
    wanted = [int(a) * int(u) >> 32 for a, u in zip(totals, uniform, strict=True)]
    assert part(Tensor(totals), Tensor(uniform)).numpy().tolist() == wanted
    weights = np.array([0, 1, 0.3, 2 * UNIT], np.float32)
    assert fixed(Tensor(weights)).numpy().tolist() == np.floor(weights / UNIT).astype(int).tolist()
