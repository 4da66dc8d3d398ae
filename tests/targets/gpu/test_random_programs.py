"""Random block programs with barriers in loops and under conditions, for sizes that include 0."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.ir.target_info import TargetInfo
from tilewright.targets.gpu.dialects.opencl import OPENCL as LANGUAGE
from tilewright.targets.gpu.portable import OPENCL
from tilewright.targets.gpu.printer import module_text, print_kernel

from .programs import DEVICES, device, interpreted
from .random_programs import random_program

SIZES = ((0, 0), (1, 0), (0, 2), (2, 1), (3, 2))


@pytest.mark.parametrize("language", DEVICES)
@pytest.mark.parametrize("seed", range(3))
def test_results(language: str, seed: int) -> None:
    there = device(language)
    kernel, arrays = random_program(seed)
    printed = print_kernel(kernel, there.dialect, there.info)
    text = module_text([printed], there.dialect)
    for n, m in SIZES:
        found = [a.copy() for a in arrays]
        there.run(text, printed, found, {"n": n, "m": m})
        with np.errstate(over="ignore"):
            wanted = interpreted(kernel, arrays, {"n": n, "m": m})
        np.testing.assert_array_equal(found[-1], wanted[-1], err_msg=f"n={n}, m={m}")


def test_no_condition_stands_around_a_barrier_in_opencl() -> None:
    """PoCL 3.1 leaves out statements near barriers that not all paths of the control flow reach."""
    info, found = TargetInfo(name="opencl", gpu=OPENCL), 0
    for seed in range(60):
        around: list[str] = []
        for line in print_kernel(random_program(seed)[0], LANGUAGE, info).text.splitlines():
            closes, opens = line.count("}"), line.count("{")
            if closes > opens:
                around.pop()
            elif opens > closes:
                around.append(line.strip())
            elif "barrier(" in line:
                found += 1
                for head in around[1:]:
                    assert head == "do {" or re.search(r"for \(int \w+ = 0; \w+ < \d+; ", head), head
    assert found > 500
