"""The time of the IR's steps grows linearly: four times the operations take about four times as long."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest

from tests.ir.large_module import build, simplify
from tilewright.ir.core import Module
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op
from tilewright.ir.verifier import verify

STEPS: dict[str, tuple[Callable[[Module], Any], Callable[[Any], object]]] = {
    "build": (lambda m: sum(1 for _ in m.walk()), build),
    "simplify": (lambda m: m, simplify),
    "print": (lambda m: m, print_op),
    "print generic": (lambda m: m, lambda m: print_op(m, generic=True)),
    "parse": (print_op, parse),
    "parse generic": (lambda m: print_op(m, generic=True), parse),
    "verify": (lambda m: m, verify),
    "clone": (lambda m: m, Module.clone),
}


@pytest.mark.parametrize("step", STEPS)
def test_time_grows_with_the_size(step: str) -> None:
    prepare, work = STEPS[step]

    def best(count: int) -> float:
        seconds = []
        for _ in range(3):
            data = prepare(build(count))
            start = perf_counter()
            work(data)
            seconds.append(perf_counter() - start)
        return min(seconds)

    # The measurement is repeated because the machine may be busy. A quadratic step would take 16 times as
    # long in every try.
    ratios = []
    for _ in range(3):
        small, large = best(2000), best(8000)
        assert large < 5
        ratios.append(large / small)
        if ratios[-1] < 8:
            return
    pytest.fail(f"8000 operations take {min(ratios):.1f} times as long as 2000")
