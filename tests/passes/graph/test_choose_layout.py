"""Channels-last networks have no transposes between layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dialects import graph as g
from tilewright.passes.graph.choose_layout import choose_layout

from .graphs import BATCH, build, literal, operators, run, weight

IMAGE = {"x": (BATCH, 3, 12, 11)}


def conv(b: Any, x: Any, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Any:
    channels = x.type.shape[1]
    p = kernel // 2
    return b(
        g.Conv(
            x,
            weight(b, out, channels // groups, kernel, kernel, seed=out),
            weight(b, out),
            strides=(stride, stride),
            padding=((p, p), (p, p)),
            dilations=(1, 1),
            groups=groups,
        )
    )


def layouts(module: Any) -> set[str]:
    return {op.layout for op in module.walk() if "layout" in op.attributes}


def transposes(module: Any) -> int:
    return operators(module)["Transpose"]


def test_residual_network() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b(g.Relu(conv(b, x, 8, 5, 2)))
        y = b(g.MaxPool(y, kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1))))
        z = conv(b, b(g.Relu(conv(b, y, 8))), 8)
        y = b(g.Relu(b(g.Add(z, y))))
        y = b(g.Mul(y, weight(b, 8, 1, 1)))
        pooled = b(g.ReduceMean(y, axes=(2, 3), keepdims=True))
        return b(g.Matmul(b(g.Reshape(pooled, shape=(BATCH, 8))), weight(b, 8, 5)))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert layouts(module) == {"channels_last"}
    assert transposes(module) == 1  # The transpose of the image.


def test_squeeze_and_excitation_and_depthwise() -> None:
    def body(b: Any, x: Any) -> Any:
        y = conv(b, conv(b, x, 8), 8, groups=8)
        s = b(g.AdaptiveAvgPool(y, size=(1, 1)))
        s = b(g.HardSigmoid(conv(b, b(g.Relu(conv(b, s, 2, 1))), 8, 1)))
        y = b(g.HardSwish(b(g.Mul(y, s))))
        return b(g.ReduceSum(conv(b, y, 4), axes=(-1, -2)))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert transposes(module) == 1


def test_dense_blocks_pads_and_slices() -> None:
    def body(b: Any, x: Any) -> Any:
        y = conv(b, x, 4)
        y = b(g.Concat([y, conv(b, y, 3), y], axis=1))
        y = b(g.Pad(y, low=(0, 1, 2, 0), high=(0, 0, 0, 1), value=1.5))
        y = b(g.Slice(y, starts=(0, 2, 0, 1), stops=(BATCH, 10, 12, 11), steps=(1, 1, 2, 1)))
        y = b(g.Softmax(y, axis=1))
        y = b(g.AvgPool(y, kernel=(2, 2), strides=(2, 2), padding=((0, 0), (0, 0))))
        return b(g.Argmax(conv(b, y, 4), axis=1))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert transposes(module) == 1


def test_upsampling_by_gathers() -> None:
    def body(b: Any, x: Any) -> Any:
        y = conv(b, x, 4)
        for axis, n in ((2, 12), (3, 11)):
            y = b(g.Gather(y, literal(b, np.repeat(np.arange(n), 2)), axis=axis))
        return b(g.ReduceMax(conv(b, y, 2), axes=(1,)))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert transposes(module) == 1


def test_group_norm_between_convolutions() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b(g.GroupNorm(conv(b, x, 8), weight(b, 8, seed=1), weight(b, 8, seed=2), groups=4))
        return b(g.ReduceMean(conv(b, b(g.Silu(y)), 4), axes=(2, 3)))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert transposes(module) == 1


def test_layer_norm_over_channels() -> None:
    def body(b: Any, x: Any) -> Any:
        y = conv(b, x, 6)
        n = b(g.LayerNorm(b(g.Transpose(y, permutation=(0, 2, 3, 1))), weight(b, 6), weight(b, 6)))
        n = b(g.Mul(b(g.Matmul(n, weight(b, 6, 6))), weight(b, 6)))
        y = b(g.Add(y, b(g.Transpose(n, permutation=(0, 3, 1, 2)))))
        return b(g.ReduceMean(conv(b, y, 4), axes=(2, 3)))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert transposes(module) == 1


def test_patches() -> None:
    """The start of a vision transformer, convolution, flatten and transpose, keeps one transpose."""

    def body(b: Any, x: Any) -> Any:
        y = b(
            g.Conv(x, weight(b, 8, 3, 4, 4), None, strides=(4, 4), padding=((0, 0), (0, 0)), dilations=(1, 1))
        )
        return b(g.Transpose(b(g.Reshape(y, shape=(BATCH, 8, 6))), permutation=(0, 2, 1)))

    module = build(IMAGE, body)
    assert run(module, choose_layout) == {"Transpose": 1, "Conv": 1, "Reshape": 1}


def test_sound_in_one_dimension() -> None:
    def body(b: Any, x: Any) -> Any:
        options = {"strides": (1,), "padding": ((1, 1),), "dilations": (1,)}
        y = b(g.Gelu(b(g.Conv(x, weight(b, 8, 3, 3), weight(b, 8), **options))))
        y = b(g.Gelu(b(g.Conv(y, weight(b, 8, 8, 3), weight(b, 8), **options))))
        return b(g.Transpose(y, permutation=(0, 2, 1)))

    module = build({"x": (BATCH, 3, 12)}, body)
    run(module, choose_layout)
    assert transposes(module) == 1


def test_an_image_as_result_is_turned_back() -> None:
    def body(b: Any, x: Any) -> Any:
        y = conv(b, x, 4)
        up = {"strides": (2, 2), "padding": ((0, 0), (0, 0)), "output_padding": (0, 0), "dilations": (1, 1)}
        return b(g.Tanh(b(g.ConvTranspose(y, weight(b, 4, 3, 2, 2), None, **up))))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert transposes(module) == 2


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (12, 11), (), (BATCH, 1, 12, 1)])
def test_operands_that_broadcast(shape: tuple[Any, ...]) -> None:
    module = build(
        {**IMAGE, "y": shape}, lambda b, x, y: b(g.ReduceMax(b(g.Sub(y, conv(b, x, 4))), axes=(1, 2, 3)))
    )
    run(module, choose_layout)
    assert layouts(module) == {"channels_last"}


def test_networks_without_convolutions_are_left_alone() -> None:
    module = build({"x": (BATCH, 3, 4)}, lambda b, x: b(g.Exp(b(g.Transpose(x, permutation=(0, 2, 1))))))
    assert choose_layout(module) == 0


def test_one_spatial_dimension_and_a_foreign_operand() -> None:
    """With one spatial dimension the transposes to and from channels-last are the same permutation; the pass
    still ends.
    """

    def body(b: Any, x: Any) -> Any:
        w = weight(b, 7, 5, 3)
        y = b(g.Conv(x, w, None, strides=(1,), padding=((1, 1),), dilations=(1,)))
        return [
            y,
            b(g.Max(b(g.Transpose(x, permutation=(0, 2, 1))), b(g.Mul(x, x)))),
            b(g.Add(y, weight(b, 7, 5))),
        ]

    module = build({"x": (2, 5, 5)}, body)
    run(module, choose_layout)
    assert layouts(module) == {"channels_last"}


def test_gradient_of_a_weight() -> None:
    """The gradient of a convolution's weight reads the layer's tensors as they lie."""

    def body(b: Any, x: Any) -> Any:
        y = b(g.Relu(conv(b, x, 8)))
        dy = b(g.Relu(conv(b, y, 6)))
        window = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1)}
        return b(g.ConvWeightGradient(y, dy, kernel=(3, 3), **window))

    module = build(IMAGE, body)
    run(module, choose_layout)
    assert layouts(module) == {"channels_last"}
    assert transposes(module) == 1  # The transpose of the image.
