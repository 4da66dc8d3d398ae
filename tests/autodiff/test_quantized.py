"""Gradients through products with quantized and with chosen matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.frontends.nn.functional as tf
from tests.autodiff.against_torch import check_gradients, random
from tilewright.dialects import graph as g
from tilewright.frontends.trace.operands import apply, as_tensor
from tilewright.ir.types import bf16, f32, i8

INDEX = np.array([2, 0, 2, 1, 0])


@pytest.mark.parametrize("order", [1, 2])
def test_grouped_products(order: int) -> None:
    """A matrix that no row chose has a gradient of zero."""
    check_gradients(
        lambda x, w, i: tf.grouped_matmul(x, w, i),
        lambda x, w, i: torch.einsum("sk,skn->sn", x, w[i]),
        random(5, 6),
        random(4, 6, 3, seed=1),
        INDEX,
        count=2,
        order=order,
    )


@pytest.mark.parametrize(("rows", "count"), [(40, 4), (41, 5), (7, 7), (64, 16)])
@pytest.mark.parametrize("skewed", [False, True])
def test_grouped_products_of_many_rows(rows: int, count: int, skewed: bool) -> None:
    """Their gradient is a sum over blocks of rows of one matrix. Skewed: one matrix has nearly all rows."""
    index = np.random.default_rng(rows).integers(0, count, rows)
    if skewed:
        index[3:] = 1
    check_gradients(
        lambda x, w, i: tf.grouped_matmul(x, w, i),
        lambda x, w, i: torch.einsum("sk,skn->sn", x, w[i]),
        random(rows, 6),
        random(count, 6, 3, seed=1),
        index,
        count=2,
    )


def test_the_work_of_a_gradient_does_not_grow_with_the_number_of_matrices() -> None:
    rows, k, n = 512, 32, 48

    def work(count: int) -> int:
        x, w = random(rows, k).astype(np.float32), random(count, k, n).astype(np.float32)
        grad = tw.grad(lambda w, x, i: (tf.grouped_matmul(x, w, i) ** 2).sum())
        library = tw.compile(grad, (w, x, np.arange(rows) % count))
        return sum(kernel["flops"] for kernel in library.metadata["kernels"])

    product = 2 * rows * k * n
    assert work(4) >= 2 * product  # forward and backward
    assert work(32) <= 3.5 * product


def test_indices_outside_are_clamped() -> None:
    index = np.array([-1, 7, 1, -9, 0])
    check_gradients(
        lambda x, w, i: product(g.GroupedMatMul, x, w, i),
        lambda x, w, i: torch.einsum("sk,skn->sn", x, w[torch.where(i < 0, i + 4, i).clamp(0, 3)]),
        random(5, 6),
        random(4, 6, 3, seed=1),
        index,
        count=2,
    )


def product(cls: Any, *operands: Any, **attributes: Any) -> Any:
    return apply(cls, *(None if x is None else as_tensor(x) for x in operands), **attributes)


def dequantized(q: Any, scales: Any) -> Any:
    return (q.double().reshape(*scales.shape, -1) * scales[..., None]).reshape(q.shape)


def test_scales_of_integers() -> None:
    """Dequantization has a gradient with respect to the scale, here one for each column."""
    q = np.random.default_rng(3).integers(0, 256, (5, 6)).astype(np.uint8)
    weights, scale = random(5, 6).astype(np.float32), np.ones(6, np.float32)
    zero = np.array(7, np.uint8)
    gradient = tw.grad(lambda s: (product(g.Dequantize, q, s, zero) * weights).sum())(scale)
    expected = (weights * (q.astype(np.float32) - 7)).sum(0)
    np.testing.assert_allclose(np.asarray(gradient), expected, rtol=1e-5)


@pytest.mark.parametrize("chosen", [False, True])
def test_quantized_products(chosen: bool) -> None:
    """Gradients of rows and scales; products in float32."""
    q = np.random.default_rng(3).integers(-8, 8, (4, 3, 32) if chosen else (3, 32)).astype(np.int8)
    index = (INDEX,) if chosen else ()

    def reference(x: Any, scales: Any, q: Any, *index: Any) -> Any:
        w = dequantized(q, scales)
        return torch.einsum("sk,snk->sn", x, w[index[0]]) if index else x @ w.T

    check_gradients(
        lambda x, s, q, *i: product(g.QuantizedMatMul, x, q, s, *(i or (None,)), factors=f32),
        reference,
        random(5, 32),
        random(*q.shape[:-1], 2, seed=1),
        q,
        *index,
        count=2,
    )


@pytest.mark.parametrize("factors", [i8, bf16])
def test_rounded_factors_pass_gradients_through(factors: Any) -> None:
    """LoRA over frozen quantized weights: rounding the input does not stop its gradient."""
    q = np.random.default_rng(3).integers(-8, 8, (3, 32)).astype(np.int8)
    scales, x = random(3, 2, seed=1).astype(np.float32), random(2, 4, 32).astype(np.float32)
    loss = lambda x: product(g.QuantizedMatMul, x, q, scales, None, factors=factors).sum()  # noqa: E731
    wanted = np.broadcast_to(
        dequantized(torch.from_numpy(q), torch.from_numpy(scales)).sum(0).numpy(), x.shape
    )
    for found in (tw.grad(loss)(x), tw.compile(tw.grad(loss), (x,))(x)):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5)
