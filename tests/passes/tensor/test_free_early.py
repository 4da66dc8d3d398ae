"""Operations that free memory run early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw

tnp = tw.numpy
N = 256
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, N)).astype(np.float32)
WEIGHTS = [RNG.normal(size=(N, N)).astype(np.float32) / N for _ in range(4)]
BYTES = WEIGHTS[0].nbytes


def network(update: Callable[[list[Any], list[Any]], list[Any]]) -> Callable[[Any], Any]:
    """A step of a chain of products: `update` returns the new weights for weights and gradients."""
    states = [tw.State(f"w{k}", w.shape, "float32", w) for k, w in enumerate(WEIGHTS)]

    def loss(weights: list[Any], x: Any) -> Any:
        for w in weights:
            x = tnp.tanh(x @ w)
        return (x * x).mean()

    def step(x: Any) -> Any:
        weights = [s.value for s in states]
        value, gradients = tw.value_and_grad(loss)(weights, x)
        for s, new in zip(states, update(weights, gradients), strict=True):
            s.value = new
        return value

    return step


def descent(weights: list[Any], gradients: list[Any]) -> list[Any]:
    return [w - 0.5 * g for w, g in zip(weights, gradients, strict=True)]


def clipped(weights: list[Any], gradients: list[Any]) -> list[Any]:
    norm = tnp.sqrt(sum((g * g).sum() for g in gradients))
    return [w - 0.5 * g / (norm + 1) for w, g in zip(weights, gradients, strict=True)]


def expected(update: Callable[[list[Any], list[Any]], list[Any]], steps: int) -> list[Any]:
    """The weights after some steps, with gradients by hand in float64."""
    weights = [w.astype(np.float64) for w in WEIGHTS]
    for _ in range(steps):
        values = [X.astype(np.float64)]
        for w in weights:
            values.append(np.tanh(values[-1] @ w))
        dy = 2 * values[-1] / values[-1].size
        gradients = []
        for w, before, after in zip(weights[::-1], values[-2::-1], values[:0:-1], strict=True):
            dh = dy * (1 - after**2)
            gradients.insert(0, before.T @ dh)
            dy = dh @ w.T
        if update is clipped:
            norm = np.sqrt(sum((g * g).sum() for g in gradients))
            gradients = [g / (norm + 1) for g in gradients]
        weights = [w - 0.5 * g for w, g in zip(weights, gradients, strict=True)]
    return weights


def compiled(update: Callable[[list[Any], list[Any]], list[Any]]) -> Any:
    library = tw.compile(network(update), (X,), cache=False)
    for _ in range(3):
        library(X)
    for k, w in enumerate(expected(update, 3)):
        np.testing.assert_allclose(library.state[f"w{k}"], w, rtol=1e-4, atol=1e-6)
    assert "copied" not in library.metadata["memory"]
    return library


def test_an_update_runs_as_soon_as_its_gradient_is_known() -> None:
    """Two matrices are alive at a time, a gradient and a packed weight, instead of all four gradients."""
    memory = compiled(descent).metadata["memory"]
    assert memory["live_bytes"] < 2.5 * BYTES
    assert memory["arena_bytes"] < 2.5 * BYTES


def test_updates_by_the_norm_of_all_gradients_wait_for_it() -> None:
    """Each update needs the last gradient, so all are alive; the order must not break that."""
    assert compiled(clipped).metadata["memory"]["live_bytes"] > 4 * BYTES
