"""A network with all kinds of layers that are quantized, and its calibration data."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn

Array = np.ndarray[Any, Any]


def images(count: int = 4, channels: int = 3) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, channels, 8, 8)).astype(np.float32) for _ in range(count)]


class Mixed(nn.Module):
    """Convolutions, one of them depthwise, with a sum, a concatenation and poolings between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.depthwise, self.shortcut = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.joined, self.scores = nn.Conv2d(16, 8, 1), nn.Linear(8, 5)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        functional = nn.functional
        x = functional.max_pool(functional.relu(self.first(x)), 2)
        y = functional.relu(self.depthwise(self.second(x)) + self.shortcut(x))
        y = functional.avg_pool(functional.relu(self.joined(tw.numpy.concatenate([x, y], 1))), 2)
        return self.scores(y.mean((2, 3)))


def made(kind: type[nn.Module]) -> nn.Module:
    nn.seed(0)
    return kind()


__all__ = ["Mixed", "images", "made"]
