"""Dropout and batch normalization in training mode, at once and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import nn


class Model(nn.Module):
    """A network whose dropout runs twice in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 8)
        self.drop, self.other = nn.Dropout(0.4), nn.Dropout(0.4)

    def forward(self, x: Any) -> Any:
        return self.other(self.drop(self.last(self.drop(self.first(x)))))


def test_dropout_by_key_is_the_same_at_once_and_compiled() -> None:
    nn.seed(0)
    model, x = Model(), np.ones((4, 6), np.float32)

    def loss(key: Any, x: Any) -> Any:
        with tw.random.using(key):
            return (model(x) ** 2).mean()

    def step(key: Any, x: Any) -> Any:
        return tw.value_and_grad(lambda m, x: loss(key, x))(model, x)

    compiled = tw.jit(step)
    for seed in (1, 2):
        (value, gradients), (expected, wanted) = (
            compiled(tw.random.key(seed), x),
            step(tw.random.key(seed), x),
        )
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        for name, gradient in wanted.items():
            np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)
    assert len(compiled.compiled) == 1
    assert float(loss(tw.random.key(1), x)) != float(loss(tw.random.key(2), x))
    assert float(loss(tw.random.key(1), x)) == float(loss(tw.random.key(1), x))


def test_each_module_and_each_call_draws_other_numbers() -> None:
    ones = np.ones((50,), np.float32)
    model = Model()
    with tw.random.using(tw.random.key(0)):
        masks = [np.asarray(m(ones)) for m in (model.drop, model.drop, model.other)]
    assert not any(np.array_equal(masks[a], masks[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert set(np.unique(masks)) == {np.float32(0), np.float32(1 / 0.6)}
    with tw.random.using(tw.random.key(0)):
        np.testing.assert_array_equal(model.drop(ones), masks[0])
        with tw.random.using(tw.random.key(1)):
            assert not np.array_equal(model.drop(ones), masks[1])
        np.testing.assert_array_equal(model.drop(ones), masks[1])


def test_a_key_from_outside_is_refused() -> None:
    drop = nn.Dropout()
    with (
        tw.random.using(tw.random.key(0)),
        pytest.raises(tw.TraceError, match="each call would draw the same numbers"),
    ):
        tw.jit(lambda x: drop(x))(np.ones(4, np.float32))
    with pytest.raises(ValueError, match="not 1"):
        nn.functional.dropout(np.ones(4, np.float32), 1.0, tw.random.key(0))


def test_products_with_a_jacobian_keep_the_mask() -> None:
    drop, x = nn.Dropout(0.5), np.ones(64, np.float32)
    y, pull = tw.vjp(drop, x)
    for _ in range(2):
        np.testing.assert_array_equal(pull(np.ones(64, np.float32))[0], y)


def pair() -> tuple[nn.BatchNorm2d, torch.nn.BatchNorm2d]:
    ours, theirs = nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    torch.nn.init.uniform_(theirs.weight, 0.5, 1.5)
    torch.nn.init.uniform_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_statistics_of_a_compiled_step_are_collected() -> None:
    ours, theirs = pair()
    before = np.asarray(ours.running_mean)
    x = torch.randn(4, 3, 5, 5)

    def step(x: Any) -> Any:
        def loss(model: Any, x: Any) -> Any:
            return (model(x) ** 3).mean()

        with nn.buffer_updates() as buffers:
            value, gradients = tw.value_and_grad(loss, (0, 1))(ours, x)
        return value, gradients, buffers

    there = x.clone().requires_grad_()
    expected = (theirs(there) ** 3).mean()
    expected.backward()
    assert there.grad is not None
    library = tw.jit(step, dims={"x": {0: "n<=8"}})
    for run in (step, library):
        value, (parameters, gradient), buffers = run(x.numpy())
        np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
        np.testing.assert_allclose(gradient, there.grad, rtol=1e-3, atol=1e-6)
        for name, p in theirs.named_parameters():
            assert p.grad is not None
            np.testing.assert_allclose(parameters[name], p.grad, rtol=1e-4, atol=1e-5)
        assert sorted(buffers) == ["running_mean", "running_var"]
        np.testing.assert_allclose(buffers["running_mean"], theirs.running_mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(buffers["running_var"], theirs.running_var, rtol=1e-5)
        np.testing.assert_array_equal(ours.running_mean, before)
    other = np.random.default_rng(0).standard_normal((7, 3, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(
        library(other)[2]["running_var"], np.asarray(step(other)[2]["running_var"]), rtol=1e-5
    )


def test_two_calls_in_a_step_continue_with_the_new_statistics() -> None:
    ours, theirs = pair()
    x, y = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)

    def f(x: Any, y: Any) -> Any:
        with nn.buffer_updates() as buffers:
            ours(x), ours(y)
        return buffers

    theirs(x), theirs(y)
    for run in (f, tw.jit(f)):
        np.testing.assert_allclose(run(x.numpy(), y.numpy())["running_var"], theirs.running_var, rtol=1e-5)


def test_gradients_at_once_set_the_statistics_once() -> None:
    ours, theirs = pair()
    x = torch.randn(4, 3, 5, 5)
    tw.grad(lambda m: m(x.numpy()).sum())(ours)
    theirs(x)
    np.testing.assert_allclose(ours.running_mean, theirs.running_mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.running_var, theirs.running_var, rtol=1e-5)


def test_statistics_in_a_loop_are_refused() -> None:
    ours, _ = pair()

    def f(x: Any) -> Any:
        with nn.buffer_updates():
            return tw.scan(lambda c, row: (c, ours(row)), 0, x)

    rows = np.random.default_rng(0).standard_normal((2, 4, 3, 5, 5)).astype(np.float32)
    with pytest.raises(tw.CompileError, match="'running_mean' is changed inside a branch or a loop"):
        tw.jit(f)(rows)

    def inside(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            with nn.buffer_updates() as buffers:
                y = ours(row)
            return carry, (y, buffers["running_mean"])

        return tw.scan(step, 0, x)[1]

    _, means = tw.jit(inside)(rows)
    np.testing.assert_allclose(means, 0.1 * rows.mean((1, 3, 4)), rtol=1e-4, atol=1e-6)
