"""Random differentiable programs have PyTorch's gradients, at once and compiled."""

from __future__ import annotations

import pytest

from .random_programs import MAKERS, Program, check


@pytest.mark.parametrize("seed", range(8))
def test_gradients_equal_those_of_torch(seed: int) -> None:
    check(Program(seed))


def test_programs_have_all_kinds_of_steps() -> None:
    programs = [Program(seed) for seed in range(120)]
    assert {s.name for p in programs for s in p.steps} == set(MAKERS)
    assert 20 < sum(p.dynamic for p in programs) < 100
