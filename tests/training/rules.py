"""Models, losses and update rules that the tests of training share."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

F = tw.nn.functional


class Momentum:
    """Stochastic gradient descent with momentum, as ``torch.optim.SGD``."""

    def __init__(self, rate: float = 0.1, momentum: float = 0.9) -> None:
        self.rate, self.momentum = rate, momentum

    def init(self, parameters: Any) -> Any:
        return {"momentum": {n: tw.numpy.zeros(p.shape, p.dtype) for n, p in parameters.items()}}

    def update(self, parameters: Any, gradients: Any, state: Any) -> Any:
        kept = {n: self.momentum * m + gradients[n] for n, m in state["momentum"].items()}
        return {n: p - self.rate * kept[n] for n, p in parameters.items()}, {"momentum": kept}


class Perceptron(tw.nn.Module):
    """(n, 8) to (n, 3) by one hidden layer."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.first, self.second = tw.nn.Linear(8, hidden), tw.nn.Linear(hidden, 3)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        return self.second(F.relu(self.first(x)))


def squares(outputs: Any, target: Any) -> Any:
    """The mean squared error; the function is one of any framework."""
    return ((outputs - target) ** 2).mean()


def perceptron(seed: int = 0, hidden: int = 16) -> Perceptron:
    tw.nn.seed(seed)
    return Perceptron(hidden)


def batch(seed: int = 0, n: int = 12) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 8)).astype(np.float32), rng.normal(size=(n, 3)).astype(np.float32)


def in_torch(module: Perceptron) -> Any:
    """A perceptron of PyTorch with the same weights."""
    import torch

    model = torch.nn.Sequential(
        torch.nn.Linear(8, module.first.weight.shape[0]),
        torch.nn.ReLU(),
        torch.nn.Linear(module.first.weight.shape[0], 3),
    )
    names = {"0": "first", "2": "second"}
    values = {n: module.state_dict()[n.replace(n[0], names[n[0]], 1)] for n in model.state_dict()}
    model.load_state_dict({n: torch.tensor(v) for n, v in values.items()})
    return model


def torch_losses(
    model: Any,
    batches: Any,
    rate: float = 0.1,
    clip: float | None = None,
    loss: Any = squares,
) -> list[float]:
    """The losses of PyTorch's training with `Momentum`'s rule, one for each batch."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        value = loss(model(torch.tensor(x)), torch.tensor(y))
        value.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(value.item())
    return losses
