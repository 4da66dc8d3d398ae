"""A small model with known lines, for the tests of timelines and of the page."""

from __future__ import annotations

from tilewright import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.gelu(self.up(self.norm(x)))  # the line of UP
        return x + self.down(h)  # the line of DOWN


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(64), Block(64)])
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)
