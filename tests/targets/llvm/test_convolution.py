"""Compiled convolutions of every configuration agree with PyTorch, and have the expected schedules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw

pytestmark = pytest.mark.every_isa

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense 3x3": (lambda: nn.Conv2d(20, 37, 3, padding=1), (2, 20, 9, 13)),
    "dense, small image": (lambda: nn.Conv2d(70, 130, 3, padding=1), (1, 70, 4, 5)),
    "dense, stride, dilation": (
        lambda: nn.Conv2d(5, 19, 3, (2, 3), padding=(2, 1), dilation=(2, 1)),
        (2, 5, 17, 16),
    ),
    "first layer": (lambda: nn.Conv2d(3, 16, 7, 2, padding=3), (1, 3, 33, 31)),
    "same padding of an even kernel": (lambda: nn.Conv2d(4, 6, 4, padding="same"), (1, 4, 10, 11)),
    "asymmetric padding": (
        lambda: nn.Sequential(nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(4, 9, 3)),
        (2, 4, 8, 9),
    ),
    "1x1": (lambda: nn.Conv2d(33, 65, 1), (2, 33, 7, 7)),
    "1x1, stride": (lambda: nn.Conv2d(16, 40, 1, 2), (1, 16, 15, 14)),
    "patches": (lambda: nn.Conv2d(3, 24, 4, 4), (2, 3, 16, 20)),
    "grouped": (lambda: nn.Conv2d(24, 36, 3, padding=1, groups=4), (2, 24, 8, 9)),
    "grouped, stride": (lambda: nn.Conv2d(12, 12, 5, 2, padding=2, groups=3), (1, 12, 11, 12)),
    "depthwise 3x3": (lambda: nn.Conv2d(35, 35, 3, padding=1, groups=35), (2, 35, 7, 14)),
    "depthwise 3x3, stride": (lambda: nn.Conv2d(48, 48, 3, 2, padding=1, groups=48), (1, 48, 15, 16)),
    "depthwise 7x7": (lambda: nn.Conv2d(50, 50, 7, padding=3, groups=50), (1, 50, 6, 16)),
    "depthwise 5x5, stride, prime width": (
        lambda: nn.Conv2d(9, 9, 5, 2, padding=2, groups=9),
        (1, 9, 22, 22),
    ),
    "depthwise, dilation": (lambda: nn.Conv2d(20, 20, 3, padding=2, dilation=2, groups=20), (1, 20, 12, 12)),
    "depthwise, multiplier": (lambda: nn.Conv2d(8, 24, 3, padding=1, groups=8), (1, 8, 6, 8)),
    "1-D": (lambda: nn.Conv1d(10, 22, 5, padding=2), (2, 10, 40)),
    "1-D, 1x1": (lambda: nn.Conv1d(18, 30, 1), (1, 18, 25)),
    "1-D depthwise, causal": (
        lambda: nn.Sequential(nn.ZeroPad1d((4, 0)), nn.Conv1d(16, 16, 5, groups=16)),
        (1, 16, 24),
    ),
    "3-D": (lambda: nn.Conv3d(5, 12, 3, (1, 2, 1), padding=1), (2, 5, 5, 6, 7)),
    "3-D depthwise": (lambda: nn.Conv3d(17, 17, 3, padding=1, groups=17), (1, 17, 4, 5, 8)),
    "transposed 2x2": (lambda: nn.ConvTranspose2d(12, 7, 2, 2), (2, 12, 5, 6)),
    "transposed 3x3, output padding": (
        lambda: nn.ConvTranspose2d(6, 9, 3, 2, 1, output_padding=1),
        (1, 6, 5, 7),
    ),
    "transposed 4x4": (lambda: nn.ConvTranspose2d(8, 8, 4, 2, 1), (1, 8, 6, 6)),
    "transposed, unequal strides": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 5), (1, 3), (1, 2), (0, 1)),
        (2, 4, 5, 4),
    ),
    "transposed, grouped": (lambda: nn.ConvTranspose2d(8, 12, 3, 2, 1, groups=4), (1, 8, 5, 5)),
    "transposed, dilated": (lambda: nn.ConvTranspose2d(4, 5, 3, 2, dilation=2), (1, 4, 5, 5)),
    "transposed, stride above kernel": (
        lambda: nn.ConvTranspose2d(4, 5, 2, 3, output_padding=1),
        (1, 4, 4, 5),
    ),
    "transposed 1-D": (lambda: nn.ConvTranspose1d(6, 10, 16, 8, 4), (1, 6, 9)),
    "transposed 3-D": (lambda: nn.ConvTranspose3d(4, 3, 2, 2), (1, 4, 3, 2, 3)),
    "max pool": (lambda: nn.MaxPool2d(3, 1, 1), (1, 20, 8, 8)),
    "average pool": (lambda: nn.AvgPool2d(3, 1, 1), (1, 20, 8, 6)),
}


class _Between(nn.Module):
    """A layer with operators before and after it, so that its input is channels-last and it has an
    epilogue.
    """

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = layer
        self.before = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[len(shape)](shape[1], shape[1], 1)

    def forward(self, x: Any) -> Any:
        return torch.clamp(self.layer(self.before(x)), -0.4, 0.5)


@pytest.mark.parametrize("between", [False, True], ids=["alone", "between"])
@pytest.mark.parametrize("case", CASES)
def test_against_torch(case: str, between: bool) -> None:
    make, shape = CASES[case]
    torch.manual_seed(0)
    layer = (_Between(make(), shape) if between else make()).eval()
    x = torch.randn(shape)
    with torch.no_grad():
        wanted = layer(x).numpy()
    found = tw.compile(layer, (x,), cache=False)(x.numpy())
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


def test_windows_side_by_side_share_what_they_read() -> None:
    """A depthwise convolution has accumulators for several pixels in the loop over its taps."""
    layer = _Between(nn.Conv2d(32, 32, 7, padding=3, groups=32), (1, 32, 8, 16)).eval()
    text = tw.compile(layer, (torch.randn(1, 32, 8, 16),), cache=False).ir("loop")
    assert 'combiners = ["sum", "sum", "sum", "sum", "sum", "sum", "sum", "sum"]' in text


def test_a_column_read_left_operand_is_a_tile() -> None:
    """A 1x1 convolution of a channels-first image becomes a contraction tile, which reads its left operand by
    columns.
    """
    layer = nn.Conv2d(16, 32, 1).eval()
    assert "simd.brgemm" in tw.compile(layer, (torch.randn(1, 16, 6, 6),), cache=False).ir("loop")


@pytest.mark.parametrize(("size", "rows_lead"), [(24, True), (2, False)])
def test_what_leads_is_read_once(size: int, rows_lead: bool) -> None:
    """For a large image, each thread computes some rows and all columns. For a small image, whose weights are
    larger, it computes some columns.
    """
    layer = nn.Sequential(nn.Conv2d(128, 512, 1), nn.ReLU(), nn.Conv2d(512, 128, 1)).eval()
    text = tw.compile(layer, (torch.randn(1, 128, size, size),), cache=False).ir("loop")
    tiles = [line for line in text.splitlines() if "simd.brgemm" in line and "b_offset" in line]
    assert tiles
    for line in tiles:
        assert ("%" in line.split("b_offset = ")[1].split(",")[0]) == rows_lead, line


@pytest.mark.parametrize(("size", "channels", "out"), [(14, 96, 64), (7, 64, 160), (7, 64, 320)])
def test_few_tiles_are_an_even_number(size: int, channels: int, out: int) -> None:
    """The number of tiles is even, so that two threads have equal work. 196 rows would otherwise be three
    tiles, and 160 and 320 columns three and five panels of 64.
    """
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, out, 1)).eval()
    x = torch.randn(1, channels, size, size)
    text = tw.compile(layer, (x,), target="cpu:x86-64-v4+cores=2", cache=False).ir("loop")
    last = [line for line in text.splitlines() if 'kind = "parallel"' in line and "conv2" in line][-1]
    # The largest index; an odd one means an even number of tiles.
    assert int(last.split("0..")[1].split()[0]) % 2 == 1, last
    with torch.no_grad():
        wanted = layer(x).numpy()
    np.testing.assert_allclose(tw.compile(layer, (x,), cache=False)(x.numpy()), wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_a_sum_with_an_earlier_image_takes_its_place(precision: str | None) -> None:
    """At a residual connection, the last convolution writes its sum into the memory of the earlier image that
    it adds, if that is not used any more.
    """

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(32, 32, 1) for _ in range(4)])

        def forward(self, x: Any) -> Any:
            first, second, third, last = self.layers
            y = torch.relu(first(x))
            return last(torch.relu(third(torch.relu(second(y))) + y))

    torch.manual_seed(0)
    block, x = Block().eval(), torch.randn(1, 32, 12, 12)
    library = tw.compile(block, (x,), cache=False, precision=precision)
    assert library.metadata["memory"]["in_place"] == 1
    with torch.no_grad():
        wanted = block(x).numpy()
    tolerance = 1e-5 if precision is None else 2e-2
    np.testing.assert_allclose(library(x.numpy()), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("epilogue", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("channels,blocks", [(200, 1), (700, 3)])
def test_long_windows_are_taken_row_by_row(channels: int, blocks: int, epilogue: bool) -> None:
    """Long windows are computed in blocks of rows. A panel of weights that does not fit in the second-level
    cache (512 KiB here) would otherwise be read once for each piece of a row.
    """
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 70, 3, padding=1, bias=False)
    model = nn.Sequential(conv, nn.ReLU()) if epilogue else conv
    x = torch.randn(1, channels, 20, 24)
    library = tw.compile(model.eval(), (x,), target="cpu:x86-64-v3", threads=2, disable="winograd")
    found = re.findall(r"r0\w*_o in 0\.\.(\d+) ", library.ir("loop"))
    assert found == ([str(blocks - 1)] if blocks > 1 else [])
    with torch.no_grad():
        torch.testing.assert_close(library(x), model(x), rtol=1e-4, atol=1e-5)
