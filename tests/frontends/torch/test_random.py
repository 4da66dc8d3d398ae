"""Random operators of exported programs: their distributions, and equal draws for equal seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

from .checks import Lambda  # noqa: E402

X = torch.zeros(200, 300)
DRAWS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "rand": (torch.rand_like, 0.5, 0.2887),
    "randn": (lambda x: torch.randn(200, 300), 0.0, 1.0),
    "randint": (lambda x: torch.randint_like(x, 3, 9), 5.5, 1.708),
    "normal": (lambda x: torch.normal(x + 2, torch.full_like(x, 3.0)), 2.0, 3.0),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.25), 0.25, 0.433),
    "dropout": (lambda x: torch.nn.functional.dropout(x + 1, 0.25, training=True), 1.0, 0.5774),
    "multinomial": (lambda x: torch.multinomial(x + 1, 20).float(), 149.5, 86.6),
}


@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name: str) -> None:
    draw, mean, deviation = DRAWS[name]
    library = tw.compile(Lambda(draw).eval(), (X,), cache=False)
    result = library(X, seed=1)
    tolerance = 8 * deviation / result.numel() ** 0.5
    assert abs(result.mean().item() - mean) < tolerance
    assert abs(result.std().item() - deviation) < 2 * tolerance
    assert torch.equal(library(X, seed=1), result)
    assert not torch.equal(library(X, seed=2), result)


def test_each_call_and_each_node_draws_anew() -> None:
    library = tw.compile(Lambda(lambda x: (torch.rand_like(x), torch.rand_like(x))).eval(), (X,), cache=False)
    first, second = library(X)
    assert not torch.equal(first, second)
    assert not torch.equal(library(X)[0], first)


def test_places_are_drawn_without_replacement() -> None:
    library = tw.compile(Lambda(lambda x: torch.multinomial(x + 1, 300)).eval(), (X,), cache=False)
    rows = library(X).sort(-1).values
    assert torch.equal(rows, torch.arange(300).expand(200, 300))
