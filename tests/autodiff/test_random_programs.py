"""Random differentiable programs have PyTorch's gradients, at once and compiled."""

from __future__ import annotations

import json

import pytest

from .random_programs import DATA, MAKERS, Program, check


@pytest.mark.parametrize("seed", range(8))
def test_gradients_equal_those_of_torch(seed: int) -> None:
    check(Program(seed))


def test_programs_have_all_kinds_of_steps() -> None:
    programs = [Program(seed) for seed in range(120)]
    assert {s.name for p in programs for s in p.steps} == set(MAKERS)
    assert 20 < sum(p.dynamic for p in programs) < 100


def test_no_recorded_program_is_wrong() -> None:
    found = json.loads(DATA.read_text()).values()
    assert sum(row["count"] for row in found) >= 2000
    assert not any(row["failed"] for row in found)
