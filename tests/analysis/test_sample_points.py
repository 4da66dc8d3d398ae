"""Inequalities that fail at a point, against what is provable."""

from __future__ import annotations

import random
import time

import pytest

from tilewright.analysis.sample_points import fails_somewhere
from tilewright.ir.symbolic import Dim, prove_le, smin, symbol

N, H = symbol("n", 1, None), symbol("h", 0, 40, 8)
F = symbol("f", 0, 4 * N * (H + 1) - 1)


@pytest.mark.parametrize(
    ("small", "large", "fails"),
    [
        (0, N, False),
        (N, 3, True),
        (F // 4, N * (H + 1) - 1, False),
        (F // 4, H, True),
        (H, 32, True),
        (smin(H, 32), 32, False),
        (2, 1, True),
    ],
)
def test_inequalities(small: Dim, large: Dim, fails: bool) -> None:
    assert fails_somewhere(small, large) == fails


@pytest.mark.parametrize("seed", range(200))
def test_nothing_that_is_proved_fails(seed: int) -> None:
    r = random.Random(seed)
    terms: list[Dim] = [N, H, F, F // 4, F % 4, F // (H + 1), F % (H + 1), smin(N, 5), 1, 7]

    def some() -> Dim:
        total: Dim = 0
        for t in r.sample(terms, 3):
            total = total + r.choice([-2, -1, 1, 2, 3]) * t
        return total

    small, large = some(), some()
    assert not (fails_somewhere(small, large) and prove_le(small, large))


def test_a_search_that_cannot_succeed_is_not_begun() -> None:
    """An address of a transposed convolution with three sizes that a run knows: seconds without this."""
    w = symbol("w", 1, None)
    h, n = symbol("h", 1, None), symbol("n", 1, None)
    f = symbol("fused", 0, 4 * (w // 66 + 1) * (h + 1) * n - 1)
    image, part = f // 4 // (w // 66 + 1), f // 4 % (w // 66 + 1)
    end = 24 * image * (w + 1) + 12 * (f // 2 % 2) * (w + 1) + 792 * part + 12 * smin(66, w - 66 * part + 1)
    begin = time.process_time()
    assert fails_somewhere(end, 24 * h * w + 24 * h + 24 * w + 30)
    assert time.process_time() - begin < 0.5
