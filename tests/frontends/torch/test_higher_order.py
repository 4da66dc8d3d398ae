"""Operators that take functions: branches, loops, and wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch._higher_order_ops import associative_scan, scan, while_loop  # noqa: E402
from torch._higher_order_ops import map as for_each  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.errors import UnsupportedOperatorError  # noqa: E402

from .checks import random  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def agree(function: Callable[..., Any], *examples: Any, dims: Any = "n<=64", target: str = "cpu") -> Any:
    """Compile for the first example and compare with eager torch on all of them."""
    model = Model(function).eval()
    library = tw.compile(model, examples[:1], dims=dims and {"x": {0: dims}}, target=target)
    for x in examples:
        with torch.no_grad():
            wanted = model(x)
        result = library(x)
        for a, b in zip(
            *(y if isinstance(y, (tuple, list)) else (y,) for y in (result, wanted)), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return library


X, Y, ONE = random(4, 3), random(7, 3), random(1, 3)


def test_branches() -> None:
    def function(m: Any, x: Any) -> Any:
        return torch.cond(
            x.sum() > 0, lambda a: (m.linear(a), a[0] + 1), lambda a: (a.cos(), m.linear(a).sum(0)), (x,)
        )

    agree(function, X, -X, Y, -Y, ONE)
    agree(function, X, -X, dims=None)


def test_branches_inside_branches() -> None:
    def upper(a: Any) -> Any:
        return torch.cond(a.mean() > 1, lambda b: b * 3, lambda b: b - 5, (a,))

    library = agree(lambda m, x: torch.cond(x.sum() > 0, upper, lambda a: a.cos(), (x,)), X, -X, X + 9, Y - 9)
    assert library.ir("graph").count("graph.if") == 2


def test_a_branch_by_a_size() -> None:
    agree(lambda m, x: torch.cond(x.shape[0] > 5, lambda a: a * 2, lambda a: a - 1, (x,)), X, Y, ONE)


def test_branches_of_complex_numbers() -> None:
    z = torch.complex(X, Y[:4])
    agree(
        lambda m, x: torch.cond(x.real.sum() > 0, lambda a: a * 1j, lambda a: a.conj() * 2, (x,)),
        z,
        -z,
        dims=None,
    )


def test_branches_of_different_shapes_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="a result of the branches has the shape"):
        agree(
            lambda m, x: torch.cond(x.sum() > 0, lambda a: a[:2] * 1, lambda a: a[:3] * 2, (x,)), X, dims=None
        )


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
def test_loops_until_a_condition_fails(target: str) -> None:
    agree(
        lambda m, x: while_loop(
            lambda i, a: (a.abs().sum() < 100) & (i < 9), lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), x)
        ),
        X, Y, X * 1000, ONE, target=target,
    )  # fmt: skip


def test_loops_that_count_in_numbers() -> None:
    agree(lambda m, x: while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5 + i), (0, x))[1], X, Y)
    agree(
        lambda m, x: while_loop(lambda i, a: i < a.shape[0], lambda i, a: (i + 1, a + i), (0, x))[1],
        X,
        Y,
        ONE,
    )


def test_scans() -> None:
    def step(carry: Any, row: Any) -> Any:
        return carry + row, carry * row

    agree(lambda m, x: scan(step, torch.zeros(3), x, dim=0), X, Y, ONE)
    agree(lambda m, x: scan(step, torch.zeros(3), x, dim=0, reverse=True), X, Y)
    agree(
        lambda m, x: scan(
            lambda c, v: (c + v.sum(), m.linear.weight[0].sum() * v), torch.zeros(()), x, dim=1
        ),
        X,
        Y,
    )


def test_associative_scans() -> None:
    agree(lambda m, x: associative_scan(lambda a, b: a * b + b, x, 0, combine_mode="generic"), X, dims=None)


def test_maps() -> None:
    agree(lambda m, x: for_each(lambda v: v.cumsum(0) * 2, x), X, Y)
    agree(lambda m, x: for_each(lambda v, w: (v * w, m.linear(v)), x, x[0] * 1), X, Y)


def test_loops_and_branches_inside_a_scan() -> None:
    def step(carry: Any, row: Any) -> Any:
        _, grown = while_loop(
            lambda k, d: (k < 3) & (d.sum() < 50), lambda k, d: (k + 1, d * 2), (torch.tensor(0), row)
        )
        return carry + grown, torch.cond(
            grown.sum() > 1, lambda q: q.exp().clamp(max=9), lambda q: q - 1, (grown,)
        )

    agree(lambda m, x: scan(step, torch.zeros(3), x, dim=0), X, Y)


def test_every_step_draws_anew() -> None:
    def step(carry: Any, row: Any) -> Any:
        return carry + 1, row + torch.rand(3)

    library = tw.compile(Model(lambda m, x: scan(step, torch.zeros(3), x, dim=0)[1]), (torch.zeros(4, 3),))
    drawn = library(torch.zeros(4, 3), seed=3)
    assert len({float(v) for v in drawn.reshape(-1)}) == 12


def test_parts_without_gradients() -> None:
    def function(m: Any, x: Any) -> Any:
        with torch.no_grad():
            y = m.linear(x)
        return y + 1

    agree(function, X, Y)
