"""The knobs of schedule rules: all are documented, and other values give the same results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.targets
from tests.schedule.knobs import EXAMPLES, sampled, wrong_values
from tilewright.artifact.choices import Choice

RULES = Path(tilewright.targets.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "knobs.md"
ASKED = re.compile(r"""\b(?:choose|choose_part|choose_loop)\(\s*(?:s,\s*)?f?"(?:\{[\w.]+\}\.?)?(\w+)""")


def test_the_page_names_every_knob() -> None:
    """No knob is missing on the page, and the page names no other."""
    rules = [*RULES.glob("*/rules/*.py"), *RULES.glob("*/rules.py")]
    asked = {name for file in rules for name in ASKED.findall(file.read_text())}
    table = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {"rows", "share", "lanes", "threads"} <= asked
    assert {name for cell in table for name in re.findall(r"`(\w+)`", cell)} == asked


def test_a_sample_is_spread_over_the_domain() -> None:
    choice = Choice("rows", 24, 24, tuple(range(0, 97, 8)))
    assert sampled(choice, None) == [0, 8, 16, *range(32, 97, 8)]
    assert sampled(choice, 3) == [0, 48, 96]
    assert sampled(choice, 1) == [56]


@pytest.mark.every_isa
@pytest.mark.parametrize("name", EXAMPLES)
def test_other_values_give_the_same_results(name: str) -> None:
    """One value of each knob; ``python -m tests.schedule.knobs`` takes all."""
    assert list(wrong_values(name, 1)) == []


def test_blocks_of_sums_of_matrix_units_are_equal() -> None:
    """An incomplete block would make a step of the unit read beyond the rows of a panel."""

    def depths(terms: int) -> tuple[object, ...]:
        x = np.zeros((67, terms), np.float32)
        weight = tw.Tensor(np.ones((terms, 200), np.float32))
        target = "cpu:x86-64-v4+avx512bf16+amx-tile+amx-bf16"
        library = tw.compile(lambda x: x @ weight, (x,), target=target, precision="bf16")
        choices = [c for k in library.kernels.values() for c in k.choices if c.name == "depth"]
        return choices[0].domain if choices else ()

    assert depths(300) == ()
    assert depths(384) == (0, 64, 128, 192)
