"""Gradients of softmax and normalizations against torch.autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.frontends.nn.functional as tf
from tests.autodiff.against_torch import check_gradients, random


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(axis: int) -> None:
    check_gradients(
        lambda x: tf.softmax(x, axis),
        lambda x: F.softmax(x, axis),
        random(2, 5, 7),
        compiled=("float32", "float64"),
    )


@pytest.mark.parametrize("axis", [-1, 0])
def test_log_softmax(axis: int) -> None:
    check_gradients(lambda x: tf.log_softmax(x, axis), lambda x: F.log_softmax(x, axis), random(4, 7))


NORMS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "layer": (
        lambda x, w, b: tf.layer_norm(x, w, b),
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        (random(3, 4, 9), random(9, seed=1), random(9, seed=2)),
    ),
    "layer without parameters": (tf.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:]), (random(3, 9),)),
    "layer over two axes": (
        lambda x, w: tf.layer_norm(x, w, None, (-2, -1)),
        lambda x, w: F.layer_norm(x, x.shape[-2:], w),
        (random(3, 4, 5), random(4, 5, seed=1)),
    ),
    "layer with a bias only": (
        lambda x, b: tf.layer_norm(x, None, b),
        lambda x, b: F.layer_norm(x, x.shape[-1:], None, b),
        (random(3, 9), random(9, seed=1)),
    ),
    "rms": (
        lambda x, w: tf.rms_norm(x, w),
        lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
        (random(3, 4, 9), random(9, seed=1)),
    ),
    "rms without a scale": (tf.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-6), (random(3, 9),)),
    "group": (
        lambda x, w, b: tf.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (random(3, 6, 4, 5), random(6, seed=1), random(6, seed=2)),
    ),
    "group without parameters": (
        lambda x: tf.group_norm(x, 3),
        lambda x: F.group_norm(x, 3),
        (random(2, 6, 5),),
    ),
    "batch": (
        lambda x, w, b, m, v: tf.batch_norm(x, m, v * v + 0.5, w, b),
        lambda x, w, b, m, v: (
            (x - m.reshape(-1, 1, 1))
            * torch.rsqrt(v * v + 0.5 + 1e-5).reshape(-1, 1, 1)
            * w.reshape(-1, 1, 1)
            + b.reshape(-1, 1, 1)
        ),
        (random(3, 4, 5, 2), *(random(4, seed=k) for k in range(1, 5))),
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalizations(name: str) -> None:
    function, reference, args = NORMS[name]
    check_gradients(function, reference, *args)


@pytest.mark.parametrize("name", ["layer", "rms", "group", "batch"])
def test_second_order(name: str) -> None:
    function, reference, args = NORMS[name]
    check_gradients(function, reference, *args, order=2)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_second_order_of_softmax(name: str) -> None:
    check_gradients(
        lambda x: getattr(tf, name)(x, -1), lambda x: getattr(F, name)(x, -1), random(3, 6), order=2
    )


def test_dynamic_sizes() -> None:
    """Means over sizes that only the run knows."""
    check_gradients(
        lambda x: tf.softmax(tf.layer_norm(x) * 2.0, -1) * x,
        lambda x: F.softmax(F.layer_norm(x, x.shape[-1:]) * 2.0, -1) * x,
        random(4, 7),
        dims={"args_0": {0: "rows", 1: "columns"}},
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_of_half_precision_are_float32(dtype: str) -> None:
    """Sums over 4096 elements of 16 bits are exact to the rounding of operands and result."""
    kind = getattr(torch, dtype)
    x = torch.from_numpy(random(2, 4096)).to(kind)
    w = torch.from_numpy(random(4096, seed=1)).to(kind)
    found = tw.compile(tw.grad(lambda x, w: (tf.layer_norm(x, w) * tf.softmax(x)).sum(), (0, 1)), (x, w))(
        x, w
    )
    wide = [v.double().requires_grad_() for v in (x, w)]
    loss = (F.layer_norm(wide[0], (4096,), wide[1]) * F.softmax(wide[0], -1)).sum()
    for got, want in zip(found, torch.autograd.grad(loss, wide), strict=True):
        assert (got.double() - want).abs().max() <= 2e-2 * want.abs().max()
