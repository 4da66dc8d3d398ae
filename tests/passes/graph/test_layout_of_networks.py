"""Whole networks of convolutions have transposes at their edges only, whatever operators are between the
layers. A shuffle of channels is a transpose itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw


def _unit(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), nn.ReLU()
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.pool = _unit(3, 8), _unit(8, 16), nn.MaxPool2d(2)
        self.up, self.last, self.head = nn.ConvTranspose2d(16, 8, 2, 2), _unit(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        return self.head(self.last(torch.cat([a, self.up(self.down(self.pool(a)))], 1)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.expand, self.deep = (
            _unit(3, 8, stride=2),
            _unit(8, 16, 1),
            _unit(16, 16, 5, groups=16),
        )
        self.reduce, self.restore, self.project = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), _unit(16, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.deep(self.expand(x))
        s = torch.sigmoid(self.restore(nn.functional.silu(self.reduce(y.mean((2, 3), keepdim=True)))))
        return (x + self.project(y * s)).mean((2, 3))


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = _unit(3, 16), _unit(8, 8, groups=8), _unit(16, 16, 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        left, right = x.chunk(2, 1)
        y = torch.cat([left, self.a(right)], 1)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.b(y).mean((2, 3))


class Audio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 8, 9, 4, 4),
            nn.ReLU(),
            nn.Conv1d(8, 16, 5, 2, 2),
            nn.GELU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 16, 3),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x).mean(2)


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(8, 8, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x).mean((2, 3, 4))


@pytest.mark.parametrize(
    ("make", "shape", "edges"),
    [
        (UNet, (1, 3, 16, 16), 2),
        (SqueezeExcite, (1, 3, 16, 16), 1),
        (Shuffle, (1, 3, 12, 12), 2),
        (Audio, (1, 1, 64), 1),
        (Volume, (1, 1, 8, 8, 8), 1),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_transposes_stand_at_the_edges(make: Any, shape: tuple[int, ...], edges: int) -> None:
    torch.manual_seed(0)
    network = make().eval()
    x = torch.randn(shape)
    library = tw.compile(network, (x,), cache=False)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(library(x.numpy())), network(x), rtol=1e-4, atol=1e-5)
    assert library.ir("graph").count("graph.transpose") <= edges
