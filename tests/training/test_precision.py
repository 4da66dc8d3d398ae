"""Training in 16 bits: parameters stay float32, and with float16 the loss is scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .rules import Momentum, batch, in_torch, perceptron, squares, torch_losses


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_losses_are_near_those_of_float32(precision: str) -> None:
    step = tw.train_step(perceptron(), squares, Momentum(), batch(), precision=precision)
    batches = [batch()] * 30
    losses = np.array([float(step(*b)) for b in batches])
    expected = np.array(torch_losses(in_torch(perceptron()), batches))
    np.testing.assert_allclose(losses, expected, rtol=0.03)
    assert abs(losses - expected).max() > 1e-6
    assert losses[-1] < losses[0] / 2
    for name in step.parameter_names:
        assert step.state_dict()[name].dtype == np.float32


def test_a_loss_that_overflows_halves_the_scale_and_changes_nothing() -> None:
    step = tw.train_step(perceptron(), squares, Momentum(), batch(), precision="f16")
    x, y = batch()
    first = step.state_dict()
    assert first["training.loss_scale"] == 2.0**16
    large = y * np.float32(3e4)
    assert np.isfinite(step(x, large))
    after = step.state_dict()
    assert after["training.loss_scale"] == 2.0**15
    np.testing.assert_array_equal(after["first.weight"], first["first.weight"])
    assert step.steps == 0
    for _ in range(16):
        step(x, large)
    assert step.steps > 0


def test_small_gradients_are_not_lost() -> None:
    """Without the scale, gradients of this size are zero in float16."""

    def small(outputs: Any, target: Any) -> Any:
        return squares(outputs, target) * 1e-6

    step = tw.train_step(perceptron(), small, Momentum(), batch(), precision="f16")
    exact = tw.train_step(perceptron(), small, Momentum(), batch())
    for s in (step, exact):
        s(*batch())
    wanted = exact.state_dict()["optimizer.momentum.first.weight"]
    found = step.state_dict()["optimizer.momentum.first.weight"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.01 * abs(wanted).max())
