"""Every value that a knob of the rules for GPUs offers fits the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.targets.gpu.simulated import Program

import tilewright as tw
from tilewright.ir.target_info import Gpu
from tilewright.schedule.kernel_schedule import pin

F = tw.nn.functional
DRAW = np.random.default_rng(0)
FEW_THREADS = Gpu(max_threads=256, shared_bytes=48 * 1024, multiprocessors=2)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda x: F.softmax(x, -1), (drawn(3, 70),)),
    "sums of rows": (lambda x: x.sum(-1), (drawn(5, 300),)),
    "sums across rows": (lambda x: x.sum(0), (drawn(300, 5),)),
    "product of few columns": (lambda x, y: x @ y, (drawn(40, 9), drawn(9, 12))),
    "product of one row": (lambda x, y: x @ y.T, (drawn(1, 90), drawn(24, 90))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_knobs_fit(name: str) -> None:
    function, inputs = PROGRAMS[name]
    program = Program(function, inputs, gpu=FEW_THREADS)
    asked = [(k, c) for k, made in program.lowered.kernels.items() for c in made.choices]
    assert asked
    for kernel, choice in asked:
        for value in {choice.domain[0], choice.domain[-1]}:
            other = Program(
                function, inputs, gpu=FEW_THREADS, schedules=[pin(kernel, **{choice.name: value})]
            )
            other.check(*inputs)
