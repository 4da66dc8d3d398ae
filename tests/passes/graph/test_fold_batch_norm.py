"""Scales and shifts are folded into the weights of the operator before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dialects import graph as g
from tilewright.passes.graph.fold_batch_norm import fold_batch_norm
from tilewright.passes.graph.fold_constants import fold_constants

from .graphs import BATCH, SEQ, build, literal, run, weight

IMAGE = {"x": (BATCH, 4, 6, 7)}


def conv(b: Any, x: Any, bias: bool = False, groups: int = 1, out: int = 6) -> Any:
    w = weight(b, out, 4 // groups, 3, 3)
    options = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": groups}
    return b(g.Conv(x, w, weight(b, out) if bias else None, **options))


def batch_norm(b: Any, x: Any, channels: int = 6, axis: int = 1) -> Any:
    rows = [weight(b, channels, seed=k) for k in range(3)]
    return b(g.BatchNorm(x, *rows, weight(b, channels, seed=3, positive=True), axis=axis, epsilon=1e-3))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_behind_a_convolution(bias: bool, groups: int) -> None:
    module = build(IMAGE, lambda b, x: batch_norm(b, conv(b, x, bias, groups)))
    assert run(module, fold_batch_norm) == {"Conv": 1}


def test_depthwise() -> None:
    module = build(IMAGE, lambda b, x: batch_norm(b, conv(b, x, groups=4, out=4), 4))
    assert run(module, fold_batch_norm) == {"Conv": 1}


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(groups: int) -> None:
    def body(b: Any, x: Any) -> Any:
        options = {
            "strides": (2, 2),
            "padding": ((0, 0), (0, 0)),
            "output_padding": (0, 0),
            "dilations": (1, 1),
        }
        y = b(g.ConvTranspose(x, weight(b, 4, 6 // groups, 2, 2), None, groups=groups, **options))
        return batch_norm(b, y)

    assert run(build(IMAGE, body), fold_batch_norm) == {"ConvTranspose": 1}


def test_batch_norm_alone_is_a_scale_and_a_shift() -> None:
    module = build(IMAGE, lambda b, x: batch_norm(b, b(g.Relu(x)), 4))
    assert run(module, fold_batch_norm) == {"Relu": 1, "Mul": 1, "Add": 1}


def test_a_convolution_that_others_read_keeps_its_weight() -> None:
    def body(b: Any, x: Any) -> Any:
        y = conv(b, x)
        return [batch_norm(b, y), y]

    assert run(build(IMAGE, body), fold_batch_norm) == {"Conv": 1, "Mul": 1, "Add": 1}


def test_constants_per_channel_and_numbers() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b(g.Add(conv(b, x), literal(b, 0.5)))
        y = b(g.Mul(y, b(g.Reshape(weight(b, 6), shape=(6, 1, 1)))))
        return b(g.Add(b(g.Reshape(weight(b, 6, seed=2), shape=(1, 6, 1, 1))), y))

    assert run(build(IMAGE, body), fold_constants, fold_batch_norm) == {"Conv": 1}


def test_constants_per_pixel_stay() -> None:
    module = build(IMAGE, lambda b, x: b(g.Add(conv(b, x), weight(b, 6, 7))))
    assert run(module, fold_batch_norm) == {"Conv": 1, "Add": 1}


def test_scaled_matmul() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b(g.Add(b(g.Matmul(x, weight(b, 5, 4))), weight(b, 4)))
        return b(g.Mul(y, literal(b, np.float32(0.35))))

    assert run(build({"x": (BATCH, SEQ, 5)}, body), fold_batch_norm) == {"Matmul": 1, "Add": 1}


def test_unknown_scale_stays() -> None:
    module = build({**IMAGE, "s": (1,)}, lambda b, x, s: b(g.Mul(conv(b, x), s)))
    assert run(module, fold_batch_norm) == {"Conv": 1, "Mul": 1}
