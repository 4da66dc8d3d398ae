"""Modules that use `torch.utils.checkpoint`: a step computes their values again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import optim

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

WIDTH, ROWS, LAYERS = 8, 512, 8


class Layer(torch.nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.norm, self.dropout = torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(dropout)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return x + self.dropout(torch.tanh(self.last(torch.sin(self.norm(self.first(x)))))) * scale


class Deep(torch.nn.Module):
    """Layers that are called by `call(layer, x)`."""

    def __init__(self, call: Callable[..., Any], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(dropout) for _ in range(LAYERS)])
        self.call = call

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.call(layer, x)
        return x


def usual(layer: Any, x: Any) -> Any:
    return layer(x)


def without_reentry(layer: Any, x: Any) -> Any:
    return checkpoint(layer, x, use_reentrant=False, scale=1.0)


def with_reentry(layer: Any, x: Any) -> Any:
    return checkpoint(layer, x, use_reentrant=True)


def nested(layer: Any, x: Any) -> Any:
    return checkpoint(lambda x: checkpoint(layer, x, use_reentrant=False) * 1.0, x, use_reentrant=True)


def batch(dtype: Any = torch.float32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(ROWS, WIDTH, generator=generator, dtype=dtype) for _ in range(2))


def step_of(call: Callable[..., Any], dropout: float = 0.0, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    module = Deep(call, dropout).to(dtype)
    return module, tw.train_step(module, torch.nn.MSELoss(), optim.SGD(lr=0.1), batch(dtype))


def arena(step: Any) -> int:
    return int(step.library.metadata["memory"]["arena_bytes"])


@pytest.fixture(scope="module")
def plain() -> int:
    return arena(step_of(usual)[1])


@pytest.mark.parametrize("call", [without_reentry, with_reentry, nested])
def test_memory_falls_and_steps_are_those_of_torch(call: Callable[..., Any], plain: int) -> None:
    module, step = step_of(call)
    assert arena(step) < 0.6 * plain, (arena(step), plain)
    module.call = usual  # eager checkpoints would update running statistics twice
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module.train()(x), y)
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(float(step(x, y)), loss.item(), rtol=1e-5)
    expected = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in step.state_dict().items():
        if name in expected:
            np.testing.assert_allclose(value, expected[name].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_float64_gradients_are_those_of_autograd() -> None:
    module, step = step_of(without_reentry, dtype=torch.float64)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    module.call = usual
    torch.nn.functional.mse_loss(module.train()(batch(torch.float64)[0]), batch(torch.float64)[1]).backward()
    step(*batch(torch.float64))
    after = step.state_dict()
    for name, p in module.named_parameters():
        moved = (before[name].numpy() - after[name]) / 0.1
        np.testing.assert_allclose(moved, p.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_dropout_draws_the_same_numbers_again() -> None:
    losses = []
    for call in (usual, without_reentry):
        _, step = step_of(call, dropout=0.3)
        losses.append([float(step(*batch())) for _ in range(4)])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_sequences_in_segments(plain: int) -> None:
    class Segments(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))

        def forward(self, x: Any) -> Any:
            return checkpoint_sequential(self.layers, 4, x, use_reentrant=False)

    torch.manual_seed(0)
    step = tw.train_step(Segments(), torch.nn.MSELoss(), optim.SGD(lr=0.1), batch())
    assert arena(step) < 0.7 * plain
    _, other = step_of(usual)
    for _ in range(3):
        np.testing.assert_allclose(float(step(*batch())), float(other(*batch())), rtol=1e-5)


def test_inference_is_unchanged() -> None:
    module, step = step_of(without_reentry)
    x, _ = batch()
    step.sync()
    np.testing.assert_allclose(step.predict(x), module.eval()(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    library = tw.compile(module.eval(), (x,))
    np.testing.assert_allclose(library(x), module(x).detach().numpy(), rtol=1e-4, atol=1e-5)
