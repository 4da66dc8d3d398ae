"""A small network for the tests of `tilewright compare`, and graph passes that make its kernels wrong."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.dialects import graph as g
from tilewright.ir.rewrite import apply_patterns, pattern


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.act = torch.nn.GELU()
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        h = self.act(self.up(x))  # the line of GELU
        return x + self.down(h)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Logarithm(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        y = torch.log(x)  # the line of LOG
        return torch.relu(y) + x


def make() -> tuple[torch.nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Network().eval(), (torch.randn(3, 16),)


def risky() -> tuple[torch.nn.Module, tuple[Any, ...]]:
    return Logarithm(), (torch.ones(4),)


@pattern(g.Gelu)
def second_gelu(op: Any, rewriter: Any) -> bool:
    """SiLU in place of the GELU of the second block."""
    if "blocks.1" not in op.location.name:
        return False
    rewriter.replace(op, rewriter.builder(g.Silu(op.x)))
    return True


@pattern(g.Gelu)
def fused_gelu(op: Any, rewriter: Any) -> bool:
    """The same mistake, only where the operand has no other use: where one kernel computes both."""
    return len(op.x.uses) == 1 and second_gelu.function(op, rewriter)


def wrong_gelu(module: Any) -> None:
    """Make one kernel wrong."""
    apply_patterns(module, [second_gelu], fold=False)


def wrong_fused_gelu(module: Any) -> None:
    """Make one kernel wrong that computes two layers."""
    apply_patterns(module, [fused_gelu], fold=False)
