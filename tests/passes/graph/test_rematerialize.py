"""The backward pass computes results of attention again where that takes little work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

LAYERS, BATCH, HEADS, DEPTH = 4, 2, 4, 64
WIDTH = HEADS * DEPTH
RNG = np.random.default_rng(0)
WEIGHTS = [
    [RNG.normal(size=shape).astype(np.float32) / 16 for shape in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH))]
    for _ in range(LAYERS)
]


def loss(weights: Any, x: Any) -> Any:
    for first, last in weights:
        parts = (x @ first).reshape(*x.shape[:2], 3, HEADS, DEPTH).transpose(2, 0, 3, 1, 4)
        y = tw.nn.functional.attention(parts[0], parts[1], parts[2])
        x = x + y.transpose(0, 2, 1, 3).reshape(x.shape) @ last
    return (x * x).mean()


def compiled(length: int, **options: Any) -> Any:
    """The gradients by the weights, for sequences of a length."""
    return tw.compile(tw.grad(loss), (WEIGHTS, batch(length)), cache=False, **options)


def batch(length: int) -> Any:
    return np.random.default_rng(1).normal(size=(BATCH, length, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(("length", "again"), [(16, LAYERS), (32, 2), (128, 0)])
def test_as_many_results_as_are_little_work(length: int, again: int) -> None:
    """At 16 tokens all results take less than a hundredth of the work, at 32 two of them do."""
    library = compiled(length)
    assert library.ir("graph").count("graph.attention") == LAYERS + again
    plain = compiled(length, disable=["recompute-attention"])
    inputs = [w for pair in WEIGHTS for w in pair], batch(length)
    found, expected = (x(*inputs[0], inputs[1]) for x in (library, plain))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    live, before = (x.metadata["memory"]["live_bytes"] for x in (library, plain))
    assert live <= before - (again and again - 1) * batch(length).nbytes
