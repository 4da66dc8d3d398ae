"""Cheap values are computed again for late readers if their operands are in memory there anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch")

LAYERS, ROWS, WIDTH = 16, 1024, 256
BYTES = ROWS * WIDTH * 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
WEIGHTS = [RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 16 for _ in range(LAYERS)]


def gradients(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    def loss(weights: list[Any], x: Any) -> Any:
        for w in weights:
            x = activation(x @ w)
        return (x * x).mean()

    return lambda x, *weights: tw.grad(loss)(list(weights), x)


def compiled(activation: Callable[[Any], Any], in_torch: Callable[[Any], Any]) -> int:
    """The memory alive at one time, in activations of one layer; the gradients are those of torch."""
    library = tw.compile(gradients(activation), (X, *WEIGHTS), cache=False)
    weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in WEIGHTS]
    x = torch.tensor(X, dtype=torch.float64)
    for w in weights:
        x = in_torch(x @ w)
    (x * x).mean().backward()
    for found, w in zip(library(X, *WEIGHTS), weights, strict=True):
        expected = w.grad.numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    live: int = library.metadata["memory"]["live_bytes"]
    return round(live / BYTES)


def test_an_activation_is_not_kept_beside_its_operand() -> None:
    """GELU's gradient reads its operand, so the operand is kept, once for each layer."""
    gelu = torch.nn.functional.gelu
    assert LAYERS <= compiled(tw.nn.functional.gelu, gelu) < 1.6 * LAYERS


def test_a_value_whose_operand_is_not_needed_is_kept_itself() -> None:
    """The gradient of tanh reads its result; its operand would be kept for the result alone."""
    assert LAYERS <= compiled(tw.numpy.tanh, torch.tanh) < 1.6 * LAYERS


def test_an_expensive_value_is_not_computed_again() -> None:
    """Each element takes several exponentials, more than its time from memory."""

    def activation(x: Any) -> Any:
        return tw.numpy.sin(tw.numpy.exp(tw.numpy.tanh(x)))

    def in_torch(x: Any) -> Any:
        return torch.sin(torch.exp(torch.tanh(x)))

    assert compiled(activation, in_torch) >= LAYERS


def test_the_sum_in_front_of_a_relu_is_not_kept_beside_its_result() -> None:
    """ReLU's gradient reads its result, which the next convolution's gradient needs anyway."""

    def loss(weights: list[Any], x: Any) -> Any:
        for w in weights:
            y = tw.nn.functional.conv(x, w.reshape(WIDTH, WIDTH, 1, 1))
            x = tw.nn.functional.relu(x + y / (y * y).mean((0, 2, 3), keepdims=True))
        return (x * x).mean()

    def gradients(x: Any, *weights: Any) -> Any:
        return tw.grad(loss)(list(weights), x)

    library = tw.compile(gradients, (X.reshape(1, WIDTH, 32, 32), *WEIGHTS), cache=False)
    assert library.metadata["memory"]["live_bytes"] < 2.5 * LAYERS * BYTES


def test_a_value_gives_way_to_an_operand_of_its_size() -> None:
    """A deviation from the mean is read by the variance and late by its gradient: both read x instead."""

    def loss(weights: list[Any], x: Any) -> Any:
        for w in weights:
            x = x @ w
            deviation = x - x.mean(0)
            x = deviation / (deviation * deviation).mean(0) ** 0.5
        return (x * x * x).mean()

    def gradients(x: Any, *weights: Any) -> Any:
        return tw.grad(loss)(list(weights), x)

    library = tw.compile(gradients, (X, *WEIGHTS), cache=False)
    assert library.metadata["memory"]["unplanned_bytes"] < 8 * LAYERS * BYTES
    for found, expected in zip(library(X, *WEIGHTS), gradients(X, *WEIGHTS), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4 * np.abs(found).max())


def test_pooling_keeps_places_and_not_what_it_pools() -> None:
    """Where the largest elements are is known in the forward pass; the mask of a ReLU is computed again."""

    def loss(scale: Any, image: Any, weights: list[Any]) -> Any:
        x = tw.nn.functional.relu(image * scale)
        x = tw.nn.functional.max_pool(x, 4).reshape(ROWS // 16, WIDTH)
        for w in weights:
            x = tw.numpy.tanh(x @ w)
        return (x * x).mean()

    def gradients(scale: Any, image: Any, *weights: Any) -> Any:
        return tw.grad(loss)(scale, image, list(weights))

    image, scale = X.reshape(1, 4, 256, 256), np.ones((4, 1, 1), np.float32)
    library = tw.compile(gradients, (scale, image, *WEIGHTS), cache=False)
    assert library.metadata["memory"]["live_bytes"] < 1.9 * BYTES
