"""Products whose register tiles compute the epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.dialects import loop, simd
from tilewright.ir.parser import parse_op
from tilewright.targets.llvm import kernel as printing
from tilewright.targets.llvm.brgemm.epilogue import epilogue_of


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each product that is printed computes its epilogue."""
    found: list[bool] = []
    original = printing.fused_epilogue

    def noted(*args: Any) -> Any:
        result = original(*args)
        found.append(result is not None)
        return result

    monkeypatch.setattr(printing, "fused_epilogue", noted)
    return found


class Layer(torch.nn.Module):
    """A linear layer, a sum with an input, and an activation."""

    def __init__(self, columns: int, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.activation = torch.nn.Linear(24, columns), activation

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x) + residual)


@pytest.mark.parametrize("activation", [torch.nn.functional.relu6, torch.exp], ids=["relu6", "exp"])
@pytest.mark.parametrize("rows, columns", [(13, 37), (70, 48)])
@pytest.mark.parametrize("cpu", ["", "x86-64-v3"])
def test_layers(
    fused: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    activation: Callable[[torch.Tensor], torch.Tensor],
    rows: int,
    columns: int,
    cpu: str,
) -> None:
    if cpu:
        monkeypatch.setenv("TILEWRIGHT_CPU", cpu)
    layer = Layer(columns, activation).eval()
    x, residual = torch.randn(rows, 24), torch.randn(rows, columns)
    library = tw.compile(layer, (x, residual), cache=False)
    y = library(x.numpy(), residual.numpy())
    np.testing.assert_allclose(np.asarray(y), layer(x, residual).detach().numpy(), rtol=1e-5, atol=1e-5)
    if columns == 48:  # Other columns need masks.
        assert fused == [activation is not torch.exp]


def test_images(fused: list[bool]) -> None:
    """Lines and rows of an image, a residual that is overwritten, and columns that fill no vector."""
    torch.manual_seed(0)
    conv = torch.nn.Conv2d

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.wide, self.narrow = conv(3, 24, 3, stride=2), conv(24, 96, 1), conv(96, 24, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            return torch.relu(self.narrow(torch.nn.functional.relu6(self.wide(y))) + y)

    model, x = Block().eval(), torch.randn(2, 3, 19, 23)
    y = tw.compile(model, (x,), cache=False)(x.numpy())
    np.testing.assert_allclose(np.asarray(y), model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert any(fused)


KERNEL = """
loop.kernel @k {{tw.buffer_aliases = [{aliases}]}} (%a: !tw.buffer<"f32", "8, 16", "global">,
    %b: !tw.buffer<"f32", "1, 16, 16", "global">, %r: !tw.buffer<"f32", "8, 16", "global">,
    %out0: !tw.buffer<"f32", "8, 16", "global">) {{
  %c = loop.alloc {{buffer = !tw.buffer<"f32", "8, 16", "local">}} : !tw.buffer<"f32", "8, 16", "local">
  simd.brgemm %a, %b, %c {{m = 8, n = 16, k = 16, nr = 16, a_m = 16, b_panel = 256, b_k = 16, c_m = 16}}
  loop.for i in 0..7 {{
    loop.for j in 0..15 {{kind = "vectorize"}} {{
      %x = loop.load %c {{indices = [{sum}]}} : f32
      %y = loop.load %r {{indices = [{read}]}} : f32
      %z = scalar.add %x, %y : f32
      loop.store %z, %out0 {{indices = [i, j]}}
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    "aliases, sums, read, is_fused",
    [
        ("", "i, j", "i, j", True),
        ("[0, 2]", "i, j", "i, j", True),  # The residual is overwritten where it has been read,
        ("[0, 2]", "i, j", "7 - i, j", False),  # or where it is still to be read.
        ("", "i, j", "7 - i, j", True),
        ("[0, 0]", "i, j", "i, j", False),  # The rows of A are still to be read by other panels.
        ("", "7 - i, j", "i, j", False),  # Another element of the product.
        ("", "i, j", "i, 15 - j", False),
    ],
)
def test_memory_that_operands_share(aliases: str, sums: str, read: str, is_fused: bool) -> None:
    kernel = parse_op(KERNEL.format(aliases=aliases, sum=sums, read=read))
    op = next(x for x in kernel.walk() if isinstance(x, simd.BatchReduceGemm))
    assert isinstance(op.next, loop.For)
    assert (epilogue_of(op, op.next, lambda e: e) is not None) == is_fused
