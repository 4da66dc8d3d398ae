"""Gradients of gathers, scatters, products with zeros, running extremes and poolings where they are not
smooth, and second order, against PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.dialects import graph
from tilewright.frontends.trace.operands import apply, apply_several, as_tensor

G: Any = graph
xp = tw.numpy
rng = np.random.default_rng(0)
X = rng.standard_normal((4, 5))
TIES = rng.integers(-1, 2, (4, 5)).astype(np.float64)
Z = rng.standard_normal((2, 3, 8, 7))
PLACES = np.array([[3, 0, 0, -1, 3], [1, 1, 1, 1, 1]])
U = rng.standard_normal((2, 5))


def _scatter(combiner: str | None) -> Callable[..., Any]:
    def ours(x: Any, u: Any) -> Any:
        return apply(G.ScatterElements, x, as_tensor(PLACES), u, axis=0, combiner=combiner)

    return ours


def _reduced(name: str) -> Callable[..., Any]:
    def theirs(x: Any, u: Any) -> Any:
        return x.scatter_reduce(0, torch.from_numpy(PLACES % 4), u, name, include_self=True)

    return theirs


def _last_written(x: Any, u: Any) -> Any:
    """`scatter` where the last of equal places counts; PyTorch leaves its gradient open there."""
    y = list(x.unbind(0))
    for r in range(2):
        for c in range(5):
            place = PLACES[r, c] % 4
            hit = torch.arange(5) == c
            y[place] = torch.where(hit, u[r], y[place])
    return torch.stack(y)


def _pool(cls: Any, **attributes: Any) -> Callable[..., Any]:
    return lambda x: apply(cls, x, **attributes)


F = torch.nn.functional
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "scatter": (_scatter(None), _last_written, (X, U)),
    "scatter sum": (_scatter("sum"), _reduced("sum"), (X, U)),
    "scatter prod": (_scatter("prod"), _reduced("prod"), (X, U)),
    "scatter max": (_scatter("max"), _reduced("amax"), (X, U)),
    "scatter min with ties": (_scatter("min"), _reduced("amin"), (TIES, TIES[:2])),
    "scatter prod with zeros": (
        _scatter("prod"),
        # PyTorch refuses several zeros at one place.
        lambda x, u: torch.stack(
            [x[k] * torch.where(torch.from_numpy(k == PLACES % 4), u, 1.0).prod(0) for k in range(4)]
        ),
        (TIES, TIES[:2]),
    ),
    "prod with zeros": (lambda x: xp.prod(x, 1), lambda x: x.prod(1), (TIES,)),
    "cumprod with zeros": (lambda x: xp.cumprod(x, 1), lambda x: x.cumprod(1), (TIES,)),
    "cummax with ties": (
        lambda x: apply(G.Cummax, x, axis=1),
        lambda x: x.cummax(1)[0],
        (TIES,),
    ),
    "max with ties": (lambda x: xp.max(x, 1), lambda x: x.amax(1), (TIES,)),
    "sort": (lambda x: apply_several(G.Topk, x, k=5, axis=1)[0], lambda x: x.sort(1, True)[0], (X,)),
    "gather out of range": (
        lambda x: apply(G.Gather, x, as_tensor(np.array([9, -9, 2])), axis=0),
        lambda x: x[torch.tensor([3, 0, 2])],
        (X,),
    ),
    "max pool": (
        _pool(
            G.MaxPool,
            kernel=(3, 2),
            strides=(2, 1),
            padding=((1, 1), (0, 0)),
            dilations=(2, 1),
            ceil_mode=True,
        ),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (2, 1), ceil_mode=True),
        (Z,),
    ),
    "max pool with ties": (
        _pool(G.MaxPool, kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1))),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        (np.round(Z),),
    ),
    "average pool": (
        _pool(G.AvgPool, kernel=(3, 2), strides=(2, 1), padding=((1, 1), (1, 1)), ceil_mode=True),
        lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1, ceil_mode=True, count_include_pad=False),
        (Z,),
    ),
    "average pool with padding": (
        _pool(
            G.AvgPool,
            kernel=(3, 3),
            strides=(2, 2),
            padding=((1, 1), (1, 1)),
            ceil_mode=True,
            count_include_pad=True,
        ),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        (Z,),
    ),
    "average pool of parts": (
        _pool(G.AvgPool, kernel=(2, 3), strides=(3, 3), padding=((0, 0), (0, 0)), divisor=5),
        lambda x: F.avg_pool2d(x, (2, 3), 3, divisor_override=5),
        (Z,),
    ),
    "adaptive pool": (
        _pool(G.AdaptiveAvgPool, size=(3, 4)),
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        (Z,),
    ),
}
SMOOTH = sorted(n for n in CASES if "ties" not in n and "zeros" not in n)


def totals(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Scalars that are not linear in the results, for tensors and for PyTorch."""
    ours, theirs, _ = CASES[name]

    def of_ours(*x: Any) -> Any:
        y = ours(*x)
        return xp.sum(y * xp.cos(y))

    def of_theirs(*x: Any) -> Any:
        y = theirs(*x)
        return (y * y.cos()).sum()

    return of_ours, of_theirs


def same(found: Any, expected: Any, dtype: str) -> None:
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    for g, z in zip(found, expected, strict=True):
        y, z = np.asarray(g), z.numpy()
        assert y.dtype == dtype
        np.testing.assert_allclose(y, z, rtol=0, atol=tolerance * max(np.abs(z).max(), 1e-2))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_gradients_equal_those_of_torch(name: str, dtype: str) -> None:
    ours, theirs = totals(name)
    inputs = [x.astype(dtype) for x in CASES[name][2]]
    leaves = [torch.from_numpy(x.astype(np.float64)).requires_grad_() for x in inputs]
    expected = torch.autograd.grad(theirs(*leaves), leaves)
    gradient = tw.grad(ours, tuple(range(len(inputs))))
    same(gradient(*map(tw.Tensor, inputs)), expected, dtype)
    same(tw.jit(lambda *x: gradient(*x))(*inputs), expected, dtype)


@pytest.mark.parametrize("name", SMOOTH)
def test_second_order_equals_that_of_torch(name: str) -> None:
    ours, theirs = totals(name)
    inputs = CASES[name][2]
    places = tuple(range(len(inputs)))
    leaves = [torch.from_numpy(x).requires_grad_() for x in inputs]
    first = torch.autograd.grad(theirs(*leaves), leaves, create_graph=True)
    expected = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)

    def squares(*x: Any) -> Any:
        return sum(xp.sum(g * g) for g in tw.grad(ours, places)(*x))

    twice = tw.grad(squares, places)
    same(twice(*map(tw.Tensor, inputs)), expected, "float64")
    same(tw.jit(lambda *x: twice(*x))(*inputs), expected, "float64")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("zeros", [0, 1, 5])
def test_products_with_zeros_have_second_derivatives(zeros: int, axis: int) -> None:
    random = np.random.default_rng(zeros)
    x = random.normal(size=(3, 4, 2))
    x.reshape(-1)[random.permutation(24)[:zeros]] = 0
    weight = np.cos(np.arange(24.0)).reshape(x.shape)

    def slope(x: tw.Tensor) -> tw.Tensor:
        return (tw.grad(lambda x: (tnp.prod(x, axis) ** 2).sum())(x) * weight).sum()

    leaf = torch.tensor(x, requires_grad=True)
    (first,) = torch.autograd.grad((leaf.prod(axis) ** 2).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.tensor(weight)).sum(), leaf)
    np.testing.assert_allclose(tw.grad(slope)(x).numpy(), second.numpy(), rtol=1e-9, atol=1e-12)


def test_second_derivatives_of_scattered_products_end_at_two_zeros() -> None:
    indices = np.zeros((2, 3), np.int64)

    def product(x: tw.Tensor, updates: tw.Tensor) -> tw.Tensor:
        found = apply(
            graph.ScatterElements, x, as_tensor(indices), as_tensor(updates), axis=0, combiner="prod"
        )
        return (found**2).sum()

    def second(x: tw.Tensor, updates: tw.Tensor) -> tw.Tensor:
        return tw.grad(lambda x, u: (tw.grad(product)(x, u) ** 2).sum())(x, updates)

    x, updates = np.ones((2, 3)), np.ones((2, 3))
    updates[0, 1] = 0
    library = tw.compile(second, (x, updates))
    np.testing.assert_allclose(library(x, updates), second(tw.Tensor(x), tw.Tensor(updates)).numpy())
    updates[1, 1] = 0
    assert tw.grad(product)(x, updates).numpy()[0, 1] == 0
    for run in (library, second):
        with pytest.raises(tw.TilewrightError, match="two factors of one element are zero"):
            run(tw.Tensor(x), tw.Tensor(updates))
