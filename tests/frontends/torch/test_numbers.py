"""Histograms, bit patterns, integers, incomplete gamma functions and sampled volumes, compared with eager
torch.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402

from .checks import check, random  # noqa: E402

WEIGHTS = random(4, 5, seed=1).abs()
EDGES = torch.tensor([-1.0, -0.3, 0.5, 2.0])


@pytest.mark.parametrize("density", [False, True])
def test_histogram(density: bool) -> None:
    x = random(4, 5)
    x[0, :4] = EDGES
    check(lambda x: torch.histogram(x, 6, density=density), x, others=[(torch.ones(4, 5),)])
    check(lambda x, w: torch.histogram(x, 4, range=(-1.0, 1.5), weight=w, density=density), x, WEIGHTS)
    check(lambda x, e, w: torch.histogram(x, e, weight=w, density=density), x, EDGES, WEIGHTS)


@pytest.mark.parametrize("weighted", [False, True])
def test_histogramdd(weighted: bool) -> None:
    weight = random(12, seed=1).abs() if weighted else None
    check(lambda x: torch.histogramdd(x, [2, 3], weight=weight, density=weighted), random(12, 2))
    check(lambda x: torch.histogramdd(x, [EDGES, EDGES], weight=weight), random(12, 2))


def test_bincount() -> None:
    x = torch.tensor([3, 1, 3, 0, 7])
    check(lambda x: torch.bincount(x), x, others=[(torch.tensor([0, 0, 0, 0, 0]),)])
    check(lambda x: torch.bincount(x, minlength=12), x)
    check(lambda x, w: torch.bincount(x, w), x, random(5))
    library = tw.compile(_Bincount(), (x,), cache=False)
    assert torch.equal(torch.as_tensor(library(x)), torch.bincount(x))
    with pytest.raises(TilewrightError, match="negative"):
        library(-x)


class _Bincount(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.bincount(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_frexp(dtype: Any) -> None:
    x = torch.tensor([1.0, -3.5, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 5e-324, 1e30, 0.5, 255.0])
    x = torch.cat([x, torch.tensor([5e-324, -1e-310, 1e300]).double()]).to(dtype)
    check(torch.frexp, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool])
def test_hash_tensor(dtype: Any) -> None:
    x = random(4, 5).to(dtype)
    check(torch.hash_tensor, x)
    check(lambda x: torch.hash_tensor(x, 1, keepdim=True), x)


def test_greatest_common_divisors() -> None:
    x, y = random(40, dtype=torch.int64) * 6, random(40, seed=1, dtype=torch.int64) * 4
    check(torch.gcd, x, y)
    check(torch.lcm, x, y)
    check(lambda x: torch.gcd(x, torch.tensor(12, dtype=torch.uint8)), x.abs().to(torch.uint8))
    fibonacci = (
        torch.tensor([7540113804746346429, 7540113804746346429]),
        torch.tensor([4660046610375530309, 0]),
    )
    check(torch.gcd, *fibonacci)


@pytest.mark.parametrize("function", [torch.special.gammainc, torch.special.gammaincc])
def test_incomplete_gamma_functions(function: Any) -> None:
    """The arguments cover all methods in float64: both series, the continued fraction and the uniform
    expansion.
    """
    a = torch.cat([torch.logspace(-3, 4, 40), torch.linspace(15, 40, 40)]).double()
    x = a[:, None] * torch.tensor([0.0, 0.01, 0.3, 0.41, 0.9, 1.0, 1.1, 2.0, 2.3, 9.0])
    # The last digits of torch's results vary by machine.
    check(function, a[:, None].expand(80, 10), x, rtol=1e-8, atol=0)
    odd = torch.tensor([0.0, 1.0, 2.0, math.inf, -1.0, math.nan, 3.0])
    check(function, odd[:, None].expand(7, 7), odd.expand(7, 7))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("corners", [False, True])
def test_sampled_volumes(mode: str, padding: str, corners: bool) -> None:
    volume, grid = random(2, 3, 4, 5, 6), random(2, 3, 2, 4, 3) * 1.3
    sample = torch.nn.functional.grid_sample
    check(lambda x, y: sample(x, y, mode=mode, padding_mode=padding, align_corners=corners), volume, grid)
