"""The rule of chains: attention is one kernel, whatever its masks, heads and lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.targets.gpu.simulated import SMALL, Program, checked, count

import tilewright as tw
from tilewright.dialects import loop, simt
from tilewright.ir.target_info import Gpu
from tilewright.schedule.kernel_schedule import pin

tnp = tw.numpy
attention = tw.nn.functional.attention
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.normal(size=shape).astype(np.float32)


def heads(q: tuple[int, ...], keys: int, values: int, groups: int) -> tuple[Any, Any, Any]:
    """Queries of shape `q`, keys, and values of `values` elements, for `groups` heads."""
    return drawn(*q), drawn(q[0], groups, keys, q[3]), drawn(q[0], groups, keys, values)


def causal(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v, causal=True)


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return attention(q, k, v, mask)


MASK = DRAW.uniform(size=(2, 1, 5, 19)) > 0.4
MASK[1, 0, 3] = False  # a query that attends to no key

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "all keys": (attention, heads((1, 1, 9, 20), 21, 24, 1)),
    "causal": (causal, heads((1, 2, 18, 8), 18, 8, 2)),
    "boolean mask": (masked, (*heads((2, 2, 5, 8), 19, 8, 2), MASK)),
    "added mask": (masked, (*heads((2, 2, 5, 8), 19, 8, 2), drawn(2, 2, 5, 19))),
    "grouped queries": (causal, heads((2, 4, 19, 16), 19, 16, 2)),
    "grouped queries in two tiles": (attention, heads((1, 4, 40, 8), 5, 8, 2)),
    "a query of grouped heads": (attention, heads((1, 4, 1, 16), 33, 16, 2)),
    "tiles of grouped queries": (causal, heads((2, 6, 15, 8), 15, 8, 2)),
    "soft cap": (lambda q, k, v: attention(q, k, v, softcap=5.0, scale=0.3), heads((1, 1, 4, 8), 20, 12, 1)),
    "sinks": (
        lambda q, k, v, sinks: attention(q, k, v, causal=True, sinks=sinks),
        (*heads((1, 2, 4, 8), 4, 8, 2), drawn(2)),
    ),
    "epilogue": (
        lambda q, k, v, x: tnp.maximum(attention(q, k, v), 0) + x,
        (*heads((1, 2, 5, 8), 18, 8, 2), drawn(1, 2, 5, 8)),
    ),
}


SMALL_TILES = [pin("attention*", columns=16)]
INTERPRETED = ("all keys", "a query of grouped heads", "soft cap", "sinks", "epilogue")
"""Programs that the interpreter runs; `test_rules_simulated` runs all of them."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    program = Program(function, inputs, schedules=SMALL_TILES)
    assert [info.kind for info in program.lowered.kernels.values()] == ["chain"]
    if name in INTERPRETED:
        program.check(*inputs, rtol=1e-4)


def test_scores_stay_in_the_block() -> None:
    (kernel,) = Program(causal, heads((1, 1, 700, 64), 700, 64, 1)).kernels
    largest = max(op.buffer.size for op in kernel.walk() if isinstance(op, loop.Alloc))
    assert largest <= 64 * 66
    assert count(kernel, simt.AllReduce) == 2  # maxima and sums


@pytest.mark.parametrize("size", [128, 256])
def test_large_heads_in_little_memory(size: int) -> None:
    gpu = Gpu(max_threads=256, shared_bytes=32 * 1024, multiprocessors=2)
    program = Program(causal, heads((1, 1, 5, size), 5, size, 1), gpu=gpu)
    assert [info.kind for info in program.lowered.kernels.values()] == ["chain"]


def test_few_threads() -> None:
    inputs = heads((1, 1, 5, 8), 9, 8, 1)
    program = Program(attention, inputs, gpu=Gpu(max_threads=128, multiprocessors=2), schedules=SMALL_TILES)
    assert [info.kind for info in program.lowered.kernels.values()] == ["chain"]
    program.check(*inputs, rtol=1e-4)


def test_larger_heads_are_separate_kernels() -> None:
    program = Program(causal, heads((1, 1, 20, 272), 20, 272, 1), gpu=SMALL)
    assert "chain" not in [info.kind for info in program.lowered.kernels.values()]


def test_lengths_at_run_time() -> None:
    inputs = heads((1, 1, 9, 8), 9, 8, 1)
    choices = pin("attention*", rows=16, columns=16)
    program = Program(causal, inputs, dims={name: {2: "n"} for name in "qkv"}, schedules=[choices])
    for n in (1, 17):
        program.check(*heads((1, 1, n, 8), n, 8, 1), rtol=1e-4)


def test_numbers_of_16_bits() -> None:
    inputs = [x.astype(ml_dtypes.bfloat16) for x in heads((1, 1, 5, 8), 18, 8, 1)]
    program = Program(attention, inputs)
    assert [info.kind for info in program.lowered.kernels.values()].count("chain") == 1
    program.check(*inputs, rtol=3e-2)


def test_knobs() -> None:
    inputs = heads((1, 1, 18, 8), 18, 8, 1)
    for rows in (16, 32):
        choices = pin("attention*", rows=rows, columns=32)
        checked(causal, *inputs, schedules=[choices], rtol=1e-4)
