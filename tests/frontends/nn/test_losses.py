"""Losses and their gradients equal PyTorch's, at once and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import nn

F, T = nn.functional, torch.nn.functional


def draw(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def chances(*shape: int, axis: int = 1, seed: int = 3) -> np.ndarray[Any, Any]:
    x = np.exp(draw(*shape, seed=seed))
    return np.asarray(x / x.sum(axis, keepdims=True))


X = draw(5, 4)
INDICES = np.array([0, 3, -100, 2, 1])
SOLE = np.array([1, 3, 0, 2, 1])
WEIGHT = np.array([0.5, 1.0, 2.0, 0.1])
PIXELS = np.random.default_rng(1).integers(0, 3, (2, 4, 2))
SIGMOIDS = 1 / (1 + np.exp(-X))
BINARY = (draw(5, 4, seed=2) > 0).astype(float)
PAIRS = np.array([1, -1, 1, -1, -1])
LOGS = np.log(chances(5, 4))
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "indices": ("cross_entropy", (X, SOLE), {}),
    "ignored": ("cross_entropy", (X, INDICES), {}),
    "other ignored": ("cross_entropy", (X, SOLE), {"ignore_index": 1}),
    "weights": ("cross_entropy", (X, INDICES), {"weight": WEIGHT}),
    "smoothing": ("cross_entropy", (X, INDICES), {"label_smoothing": 0.1}),
    "smoothing, weights": ("cross_entropy", (X, INDICES), {"label_smoothing": 0.1, "weight": WEIGHT}),
    "one row": ("cross_entropy", (X[0], np.array(2)), {"label_smoothing": 0.2}),
    "pixels": ("cross_entropy", (draw(2, 3, 4, 2), PIXELS), {"label_smoothing": 0.1}),
    "large logits": ("cross_entropy", (X * 1000, SOLE), {}),
    "probabilities": ("cross_entropy", (X, chances(5, 4)), {}),
    "probabilities, weights": (
        "cross_entropy",
        (draw(2, 3, 4), chances(2, 3, 4)),
        {"weight": WEIGHT[:3], "label_smoothing": 0.2},
    ),
    "nll": ("nll_loss", (LOGS, INDICES), {"weight": WEIGHT}),
    "nll pixels": ("nll_loss", (draw(2, 3, 4, 2), PIXELS), {}),
    "mse": ("mse_loss", (X, draw(5, 4, seed=1)), {}),
    "l1": ("l1_loss", (X, draw(5, 4, seed=1)), {}),
    "huber": ("huber_loss", (X, draw(5, 4, seed=1)), {"delta": 0.7}),
    "smooth l1": ("smooth_l1_loss", (X, draw(5, 4, seed=1)), {"beta": 0.7}),
    "smooth l1, 0": ("smooth_l1_loss", (X, draw(5, 4, seed=1)), {"beta": 0.0}),
    "bce": ("binary_cross_entropy", (SIGMOIDS, BINARY), {"weight": WEIGHT}),
    "bce logits": ("binary_cross_entropy_with_logits", (X * 30, BINARY), {}),
    "bce logits, weights": (
        "binary_cross_entropy_with_logits",
        (X, SIGMOIDS),
        {"weight": WEIGHT, "pos_weight": WEIGHT[::-1].copy()},
    ),
    "kl": ("kl_div", (LOGS, np.where(BINARY > 0, chances(5, 4), 0)), {}),
    "kl logs": ("kl_div", (LOGS, X), {"log_target": True}),
    "cosine": ("cosine_embedding_loss", (X, draw(5, 4, seed=1), PAIRS), {"margin": 0.2}),
}


def both(name: str, options: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def plain(value: Any) -> Any:
        return torch.tensor(value) if isinstance(value, np.ndarray) else value

    there = {n: plain(v) for n, v in options.items()}
    return lambda *a: getattr(F, name)(*a, **options), lambda *a: getattr(T, name)(*a, **there)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("case", CASES)
def test_like_torch(case: str) -> None:
    name, arrays, options = CASES[case]
    for reduction in ("mean", "sum", "none", *(("batchmean",) if name == "kl_div" else ())):
        ours, theirs = both(name, {**options, "reduction": reduction})
        x = torch.tensor(arrays[0], requires_grad=True)
        expected = theirs(x, *map(torch.tensor, arrays[1:]))
        np.testing.assert_allclose(ours(*arrays), expected.detach().numpy(), rtol=1e-10, atol=1e-12)
        (expected**2).sum().backward()
        assert x.grad is not None

        def loss(x: Any, *rest: Any, ours: Any = ours) -> Any:
            return (ours(x, *rest) ** 2).sum()

        found = tw.grad(loss)(*arrays)
        scale = float(x.grad.abs().max())
        np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-9, atol=1e-11 * scale)
    narrow = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]
    there = torch.tensor(narrow[0], requires_grad=True)
    same = {n: v.astype(np.float32) if isinstance(v, np.ndarray) else v for n, v in options.items()}
    ours, theirs = both(name, same)
    expected = theirs(there, *map(torch.tensor, narrow[1:]))
    expected.backward()
    assert there.grad is not None
    value, gradient = tw.jit(tw.value_and_grad(ours))(*narrow)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5, atol=1e-6)
    scale = float(there.grad.abs().max())
    np.testing.assert_allclose(gradient, there.grad.numpy(), rtol=1e-5, atol=1e-5 * scale)


def test_sizes_of_a_run() -> None:
    library = tw.compile(
        tw.value_and_grad(lambda x, y: F.cross_entropy(x, y)),
        [np.zeros((3, 4), np.float32), np.zeros(3, np.int64)],
        dims={"x": {0: "n<=9"}, "y": {0: "n"}},
    )
    for n in (2, 5):
        x = torch.randn(n, 4, requires_grad=True)
        y = torch.arange(n) % 4
        expected = T.cross_entropy(x, y)
        expected.backward()
        assert x.grad is not None
        value, gradient = library(x.detach().numpy(), y.numpy())
        np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
        np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_the_gradient_of_certain_predictions_is_a_number() -> None:
    for target in (0.0, 1.0):
        gradient = tw.grad(F.binary_cross_entropy)(np.array([0.0, 1.0]), np.array([target, target]))
        assert np.isfinite(gradient.numpy()).all()


def test_modules_and_errors() -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    np.testing.assert_array_equal(loss(X, SOLE), F.cross_entropy(X, SOLE, label_smoothing=0.1))
    np.testing.assert_array_equal(nn.MSELoss(reduction="sum")(X, X + 1), F.mse_loss(X, X + 1, "sum"))
    with pytest.raises(tw.CompileError, match="'mean', 'sum' or 'none', not 'max'"):
        F.mse_loss(X, X, "max")
    with pytest.raises(tw.ShapeError, match=r"class indices without the axis of the classes"):
        F.cross_entropy(X, SOLE[:, None])
    with pytest.raises(tw.ShapeError, match="floating-point predictions"):
        F.mse_loss(SOLE, SOLE)
    with pytest.raises(tw.ShapeError, match=r"\(5, 4\) do not fit targets of shape \(5,\)"):
        F.mse_loss(X, X[:, 0])
    with pytest.raises(tw.ShapeError, match="do not fit probabilities"):
        F.cross_entropy(X, X[:, :2])
    with pytest.raises(ValueError, match="label_smoothing is 2"):
        F.cross_entropy(X, SOLE, label_smoothing=2)
    with pytest.raises(ValueError, match="delta is 0"):
        F.huber_loss(X, X, delta=0)
