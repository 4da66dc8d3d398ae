"""Convolutions by transformed tiles agree with sums in double precision, are one kernel, and are chosen where
they are faster.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.dialects.graph.winograd import transformed_kernels
from tilewright.ir.types import bf16
from tilewright.runtime.model import CompiledModel
from tilewright.targets.registry import resolve

TOLERANCE = 2e-6
"""The largest error, relative to the largest result. Direct sums in float32 have some 5e-7 here."""

ROUNDING = 2.3e-3
"""The error of sums of products of factors that are rounded to bf16, relative to the result's norm. Direct
sums without a border read a channels-first image in place, in innermost sums of three terms, which are not
rounded.
"""


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Any) -> Any:
        y = torch.relu(x * 2)
        return torch.relu(self.second(torch.relu(self.first(y))) + y)


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.convolution(x)).mean((2, 3))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "even sizes": (lambda: nn.Conv2d(64, 64, 3, padding=1), (1, 64, 28, 28), 1),
    "odd sizes, batch": (lambda: nn.Conv2d(64, 96, 3, padding=1, bias=False), (3, 64, 13, 17), 1),
    "no border": (lambda: nn.Conv2d(48, 80, 3), (2, 48, 19, 22), 1),
    "wide border": (lambda: nn.Conv2d(64, 64, 3, padding=(2, 3)), (1, 64, 15, 12), 1),
    "border on two sides": (
        lambda: nn.Sequential(nn.ZeroPad2d((1, 0, 0, 1)), nn.Conv2d(64, 64, 3)),
        (1, 64, 16, 21),
        1,
    ),
    "channels that fill no vector": (lambda: nn.Conv2d(70, 90, 3, padding=1), (1, 70, 26, 26), 1),
    "activation": (lambda: nn.Sequential(nn.Conv2d(64, 72, 3, padding=1), nn.SiLU()), (2, 64, 20, 20), 1),
    "residual": (lambda: Residual(64), (1, 64, 24, 24), 2),
    "mean": (Mean, (1, 64, 24, 24), 1),
    "pooling": (lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.MaxPool2d(2)), (1, 64, 24, 24), 1),
    "up and down": (
        lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, padding=1), nn.AvgPool2d(2)),
        (1, 64, 12, 12),
        1,
    ),
}


def by_tiles(library: CompiledModel) -> list[str]:
    """The kernels of a library that compute transformed tiles."""
    return [name for name, kernel in library.kernels.items() if kernel.kind == "tiles"]


def launches(library: CompiledModel) -> int:
    """How often a run of a library computes a convolution by tiles."""
    return sum(kernel.launches for kernel in library.kernels.values() if kernel.kind == "tiles")


@pytest.mark.every_isa
@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    make, shape, count = CASES[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(shape)
    library = tw.compile(model, (x,), cache=False, threads=2)
    assert launches(library) == count and not library.report.slower
    with torch.no_grad():
        wanted = model.double()(x.double()).numpy()
    assert abs(library(x.numpy()) - wanted).max() <= TOLERANCE * abs(wanted).max()


@pytest.mark.every_isa
@pytest.mark.parametrize("name", CASES)
def test_results_of_bf16(name: str) -> None:
    """Factors of tiles are rounded after the transforms, so that errors stay below twice those of direct
    sums, which round both factors, too. A matrix unit multiplies faster than tiles are transformed.
    """
    make, shape, count = CASES[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(shape)
    direct = tw.compile(model, (x,), precision="bf16", disable="winograd", cache=False, threads=2)
    library = tw.compile(model, (x,), precision="bf16", cache=False, threads=2)
    unit = resolve("cpu").info.matrix_unit(bf16)
    assert launches(library) == (count if unit is None else 0) and not library.report.slower
    with torch.no_grad():
        wanted = model.double()(x.double()).numpy()

    def error(y: Any) -> float:
        return float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted))

    assert error(library(x.numpy())) <= 2 * max(error(direct(x.numpy())), ROUNDING)


class Pair(nn.Module):
    """Two convolutions and the mean of each channel of the result; `bend` follows both."""

    def __init__(self, channels: int, between: int, bend: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, between, 3, padding=1, bias=False)
        self.second, self.bend = nn.Conv2d(between, channels, 3, padding=(0, 2)), bend

    def forward(self, x: Any) -> Any:
        return self.bend(self.second(self.bend(self.first(x)))).mean((2, 3))


@pytest.mark.every_isa
@pytest.mark.parametrize(("channels", "between", "size"), [(64, 96, (12, 20)), (70, 64, (13, 9))])
def test_kernels_that_train(channels: int, between: int, size: tuple[int, int]) -> None:
    """Kernels are transformed in every step, also rotated ones for the gradients of inputs. The gradients,
    read from an update with the learning rate 1, are those of float64. A smooth function bends, since a ReLU
    near zero turns with the last digit.
    """
    torch.manual_seed(0)
    model, x, labels = Pair(channels, between, torch.tanh), torch.randn(4, channels, *size), torch.arange(4)
    exact = copy.deepcopy(model).double()
    nn.functional.cross_entropy(exact(x.double()), labels).backward()
    before = copy.deepcopy(model.state_dict())
    rule = tw.optim.SGD(lr=1.0)
    step = tw.train_step(model, nn.CrossEntropyLoss(), rule, (x, labels), cache=False, threads=2)
    assert launches(step.library) == 3 + 2 and not step.library.report.slower  # a step, and a prediction
    step(x, labels)
    step.sync()
    for name, parameter in exact.named_parameters():
        found = (before[name] - model.state_dict()[name]).double()
        assert (found - parameter.grad).abs().max() <= 5e-6 * parameter.grad.abs().max(), name


@pytest.mark.parametrize(
    ("padding", "extra", "count"), [(1, 0, 1), (0, 0, 1), ((2, 1), 0, 1), (3, 0, 0)], ids=str
)
def test_transposed_convolutions(padding: Any, extra: int, count: int) -> None:
    """They are convolutions with rotated kernels; a padding of more than two would crop the image."""
    torch.manual_seed(0)
    model = nn.ConvTranspose2d(64, 80, 3, padding=padding, output_padding=extra).eval()
    x = torch.randn(2, 64, 17, 20)
    library = tw.compile(model, (x,), cache=False, threads=2)
    assert launches(library) == count
    with torch.no_grad():
        wanted = model.double()(x.double()).numpy()
    assert abs(library(x.numpy()) - wanted).max() <= TOLERANCE * abs(wanted).max()


def test_images_between_layers_have_16_bits() -> None:
    """Transforms read what the layer before rounded."""
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 64, 28, 28)
    library = tw.compile(model, (x,), target="cpu:x86-64-v4", precision="bf16", cache=False)
    images = re.findall(r'host.alloc {buffer = !tw.buffer<"(\w+)"', library.ir("loop"))
    assert launches(library) == 3 and images.count("bf16") == 2


@pytest.mark.parametrize(
    "target",
    ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4+cores=64", "wasm32", "aarch64-linux"],
)
def test_every_target_has_the_kernel(target: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()).eval(), torch.randn(1, 64, 28, 28)
    library = tw.compile(model, (x,), target=target, cache=False)
    assert by_tiles(library) and not library.report.slower


@pytest.mark.parametrize(
    ("convolution", "shape"),
    [
        (lambda: nn.Conv2d(64, 64, 3, stride=2, padding=1), (1, 64, 28, 28)),
        (lambda: nn.Conv2d(64, 64, 3, dilation=2), (1, 64, 28, 28)),
        (lambda: nn.Conv2d(64, 64, 3, groups=2), (1, 64, 28, 28)),
        (lambda: nn.Conv2d(64, 64, 5), (1, 64, 28, 28)),
        (lambda: nn.Conv2d(3, 64, 3), (1, 3, 28, 28)),
        (lambda: nn.Conv1d(64, 64, 3), (1, 64, 280)),
    ],
    ids=["stride", "dilation", "groups", "5x5", "few channels", "1-D"],
)
def test_other_convolutions_stay(convolution: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    assert by_tiles(tw.compile(convolution().eval(), (torch.randn(shape),), cache=False)) == []


@pytest.mark.parametrize("options", [{"disable": "winograd"}, {"precision": "f16"}, {"opt": "O1"}], ids=str)
def test_switched_off(options: dict[str, Any]) -> None:
    model, x = nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(1, 64, 28, 28)
    assert by_tiles(tw.compile(model, (x,), cache=False, **options)) == []


@pytest.mark.parametrize(("batch", "chosen"), [(1, False), (16, True)])
def test_kernels_from_memory_are_not_worth_it(batch: int, chosen: bool) -> None:
    """Transformed kernels are 16/9 times as large: few pixels that wait for them are better summed as they
    are.
    """
    model, x = nn.Conv2d(512, 512, 3, padding=1).eval(), torch.randn(batch, 512, 7, 7)
    library = tw.compile(model, (x,), target="cpu:x86-64-v4+cores=2", cache=False)
    assert bool(by_tiles(library)) == chosen


def test_few_blocks_are_divided_by_columns() -> None:
    """On 16 cores, 49 tiles of a small image are fewer blocks than cores."""
    model, x = nn.Conv2d(256, 256, 3, padding=1).eval(), torch.randn(1, 256, 14, 14)
    library = tw.compile(model, (x,), target="cpu:x86-64-v4+cores=16", cache=False)
    (name,) = by_tiles(library)
    choices = {c.name: c.value for c in library.kernels[name].choices}
    assert -(-49 // choices["rows"]) * -(-256 // choices["columns"]) >= 16


def test_a_residual_is_overwritten_by_the_sum() -> None:
    model, x = Residual(64).eval(), torch.randn(1, 64, 24, 24)
    assert tw.compile(model, (x,), cache=False).metadata["memory"]["in_place"] == 1


def test_transformed_kernels_are_those_of_the_paper() -> None:
    """A kernel of a single one: its transform is the outer product of columns of G."""
    w = np.zeros((1, 1, 3, 3))
    w[0, 0, 0, 1] = 1
    expected = np.outer([1, 0.5, 0.5, 0], [0, 0.5, -0.5, 0])
    np.testing.assert_array_equal(transformed_kernels(w).reshape(4, 4), expected)
