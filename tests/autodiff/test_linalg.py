"""Gradients of factorizations equal those of torch.linalg, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.dialects import graph as g
from tilewright.errors import GradientError
from tilewright.frontends.trace.operands import apply_several, as_tensor

RNG = np.random.default_rng(0)


def op(cls: type, *operands: Any, **attributes: Any) -> tuple[Any, ...]:
    return apply_several(cls, *map(as_tensor, operands), **attributes)


def turned(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def weighted(*results: Any) -> Any:
    """A scalar that depends on every element in another way, and not on the signs of columns."""
    total: Any = 0.0
    for x in results:
        n = int(np.prod(x.shape))
        weights = np.cos(np.arange(float(n))).reshape(tuple(x.shape))
        total = total + (x * x * (torch.tensor(weights) if isinstance(x, torch.Tensor) else weights)).sum()
    return total


def positive(x: Any) -> Any:
    eye = np.eye(x.shape[-1]) * 3
    return x @ turned(x) + (torch.tensor(eye) if isinstance(x, torch.Tensor) else eye)


def qr(x: Any) -> tuple[Any, Any]:
    packed, tau = op(g.HouseholderQr, x)
    k = int(tau.shape[-1])
    eye = np.eye(int(x.shape[-2]))[:, :k]
    return op(g.Reflect, packed, tau, np.broadcast_to(eye, (*x.shape[:-2], *eye.shape)))[0], (
        op(g.Triangular, packed[..., :k, :], upper=True)[0]
    )


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "cholesky": (
        lambda x: weighted(*op(g.Cholesky, positive(x))),
        lambda x: weighted(torch.linalg.cholesky(positive(x))),
        [(2, 3, 3)],
    ),
    "triangular_solve": (
        lambda a, b: weighted(*op(g.TriangularSolve, a, b, upper=False)),
        lambda a, b: weighted(torch.linalg.solve_triangular(a.tril(), b, upper=False)),
        [(2, 3, 3), (2, 3, 2)],
    ),
    "triangular_solve_unit": (
        lambda a, b: weighted(*op(g.TriangularSolve, a, b, upper=True, unit_diagonal=True)),
        lambda a, b: weighted(torch.linalg.solve_triangular(a, b, upper=True, unitriangular=True)),
        [(2, 3, 3), (2, 3, 2)],
    ),
    **{
        f"lu_{shape[-2]}x{shape[-1]}": (
            lambda x: weighted(op(g.Lu, x)[0]),
            lambda x: weighted(torch.linalg.lu_factor(x)[0]),
            [shape],
        )
        for shape in ((2, 4, 4), (2, 5, 3), (2, 3, 5))
    },
    **{
        f"qr_{shape[-2]}x{shape[-1]}": (
            lambda x: weighted(*qr(x)),
            lambda x: weighted(*torch.linalg.qr(x)),
            [shape],
        )
        for shape in ((4, 3), (3, 3))
    },
    "eigh": (
        lambda x: weighted(*op(g.Eigh, (x + turned(x)) * 0.5)),
        lambda x: weighted(*torch.linalg.eigh((x + turned(x)) * 0.5)),
        [(2, 3, 3)],
    ),
    **{
        f"svd_{shape[-2]}x{shape[-1]}": (
            lambda x: weighted(*op(g.Svd, x)),
            lambda x: weighted(*torch.linalg.svd(x, full_matrices=False)),
            [shape],
        )
        for shape in ((2, 3, 3), (4, 3), (2, 4))
    },
    "singular_values": (
        lambda x: weighted(op(g.Svd, x, full=True)[1]),
        lambda x: weighted(torch.linalg.svdvals(x)),
        [(2, 4)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_torchs(name: str) -> None:
    ours, reference, shapes = CASES[name]
    args = [RNG.standard_normal(s) + (2 * np.eye(s[-1]) if s[-2] == s[-1] else 0) for s in shapes]
    leaves = [torch.tensor(a, requires_grad=True) for a in args]
    wanted = torch.autograd.grad(reference(*leaves), leaves)
    gradient = tw.grad(ours, argnums=tuple(range(len(args))))
    for x, y in zip(gradient(*args), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), y.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["cholesky", "lu_5x3", "svd_4x3"])
def test_compiled_and_second_order(name: str) -> None:
    ours, reference, (shape,) = CASES[name]
    x = RNG.standard_normal(shape)
    leaf = torch.tensor(x, requires_grad=True)
    (first,) = torch.autograd.grad(reference(leaf), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), leaf)

    def squares(x: Any) -> Any:
        dx = tw.grad(ours)(x)
        return (dx * dx).sum()

    both = tw.compile(lambda x: (tw.grad(ours)(x), tw.grad(squares)(x)), (x,))
    for found, wanted in zip(both(x), (first, second), strict=True):
        scale = float(wanted.detach().abs().max())
        np.testing.assert_allclose(np.asarray(found), wanted.detach().numpy(), atol=1e-9 * scale)


def test_a_dynamic_batch_of_matrices() -> None:
    def ours(x: Any) -> Any:
        (factor,) = op(g.Cholesky, positive(x))
        return (factor * factor * factor).sum()

    library = tw.compile(tw.grad(ours), (RNG.standard_normal((2, 3, 3)),), dims={"x": {0: "n"}})
    x = RNG.standard_normal((4, 3, 3))
    leaf = torch.tensor(x, requires_grad=True)
    (wanted,) = torch.autograd.grad((torch.linalg.cholesky(positive(leaf)) ** 3).sum(), leaf)
    np.testing.assert_allclose(np.asarray(library(x)), wanted.numpy(), rtol=1e-9, atol=1e-9)


def test_vectors_that_complete_a_basis_have_no_gradient() -> None:
    x = RNG.standard_normal((2, 4))
    with pytest.raises(GradientError, match="full_matrices=False.*test_linalg"):
        tw.grad(lambda x: weighted(op(g.Svd, x, full=True)[2]))(x)
