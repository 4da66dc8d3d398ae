"""Gradients of convolutions against torch.autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from tests.autodiff.against_torch import check_gradients, random
from tilewright.dialects import graph as g
from tilewright.frontends.trace.operands import apply
from tilewright.frontends.trace.tensor import Tensor

CASES = {
    "plain": ((2, 3, 9), (4, 3, 3), {}),
    "strides": ((2, 3, 10, 9), (4, 3, 3, 2), {"strides": (2, 3)}),
    "asymmetric padding": ((2, 3, 7, 6), (4, 3, 3, 3), {"padding": ((1, 2), (0, 3))}),
    "dilation": ((1, 2, 12, 11), (3, 2, 3, 3), {"dilations": (2, 3), "strides": (2, 1)}),
    "groups": ((2, 4, 8, 8), (6, 2, 3, 3), {"groups": 2, "padding": ((1, 1), (1, 1))}),
    "depthwise": ((2, 4, 8, 8), (4, 1, 3, 3), {"groups": 4, "padding": ((1, 1), (1, 1)), "strides": (2, 2)}),
    "depth multiplier": ((2, 3, 7), (6, 1, 3), {"groups": 3}),
    "rank 3": ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"strides": (1, 2, 1), "padding": ((0, 1), (1, 1), (1, 0))}),
    "point": ((2, 5, 6, 6), (7, 5, 1, 1), {"strides": (2, 2)}),
    "negative padding": ((1, 2, 9), (3, 2, 3), {"padding": ((-1, 1),)}),
}


def attributes_of(rank: int, given: dict[str, Any]) -> dict[str, Any]:
    return {"strides": (1,) * rank, "padding": ((0, 0),) * rank, "dilations": (1,) * rank, **given}


def torch_conv(
    x: Any, w: Any, bias: Any = None, *, strides: Any, padding: Any, dilations: Any, groups: Any = 1
):
    x = F.pad(x, [p for pair in reversed(padding) for p in pair])
    conv = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    return conv(x, w, bias, stride=strides, dilation=dilations, groups=groups)


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    shape, kernel, given = CASES[name]
    attributes = attributes_of(len(shape) - 2, given)
    check_gradients(
        lambda x, w, b: apply(g.Conv, x, w, b, **attributes),
        lambda x, w, b: torch_conv(x, w, b, **attributes),
        random(*shape),
        random(*kernel, seed=1),
        random(kernel[0], seed=2),
    )


TRANSPOSED = {
    "plain": ((2, 3, 9), (3, 4, 3), {}),
    "strides": ((2, 3, 5, 4), (3, 2, 3, 2), {"strides": (2, 3), "output_padding": (1, 2)}),
    "padding": ((2, 3, 5, 4), (3, 2, 3, 3), {"strides": (2, 1), "padding": ((1, 1), (2, 2))}),
    "groups": ((2, 4, 5, 4), (4, 3, 3, 3), {"groups": 2, "strides": (2, 2)}),
    "dilation": ((1, 2, 6, 5), (2, 3, 3, 2), {"dilations": (3, 2), "output_padding": (2, 1)}),
    "rank 3": ((1, 2, 3, 4, 3), (2, 3, 2, 2, 2), {"strides": (2, 1, 2)}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions(name: str) -> None:
    shape, kernel, given = TRANSPOSED[name]
    rank = len(shape) - 2
    attributes = {"output_padding": (0,) * rank, **attributes_of(rank, given)}
    groups = attributes.get("groups", 1)

    def reference(x: Any, w: Any, b: Any) -> Any:
        conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        return conv(
            x,
            w,
            b,
            stride=attributes["strides"],
            padding=[low for low, _ in attributes["padding"]],
            output_padding=attributes["output_padding"],
            dilation=attributes["dilations"],
            groups=groups,
        )

    check_gradients(
        lambda x, w, b: apply(g.ConvTranspose, x, w, b, **attributes),
        reference,
        random(*shape),
        random(*kernel, seed=1),
        random(kernel[1] * groups, seed=2),
    )


@pytest.mark.parametrize("name", ["strides", "groups"])
def test_second_order(name: str) -> None:
    """The gradients of the input and of the weight are differentiated again."""
    shape, kernel, given = CASES[name]
    attributes = attributes_of(len(shape) - 2, given)

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = apply(g.Conv, x, w, None, **attributes)
        return y * y

    check_gradients(
        function,
        lambda x, w: torch_conv(x, w, **attributes).square(),
        random(*shape),
        random(*kernel, seed=1),
        order=2,
    )


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_dynamic_sizes(stride: int, layout: str) -> None:
    """A batch and a height that only the run knows; what a stride leaves over is not known either."""
    attributes = attributes_of(2, {"strides": (stride, stride), "padding": ((1, 1), (1, 0))})

    last = layout == "channels_last"

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = apply(g.Conv, x, w, None, layout=layout, **attributes)
        return y * y

    def reference(x: Any, w: Any) -> Any:
        return torch_conv(x.permute(0, 3, 1, 2) if last else x, w, **attributes).square()

    check_gradients(
        function,
        reference,
        random(2, 8, 9, 3) if last else random(2, 3, 8, 9),
        random(4, 3, 3, 3, seed=1),
        dims={"args_0": {0: "batch", 1 if last else 2: "height"}},
    )


def test_half_precision_accumulates_in_float32() -> None:
    x, w = random(2, 8, 6, 6), random(8, 8, 3, 3, seed=1)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return apply(g.Conv, x, w, None, **attributes_of(2, {})).sum()

    given = x.astype(np.float16), w.astype(np.float16)
    found = tw.compile(tw.grad(loss, argnums=(0, 1)), given)(*given)
    tensors = [torch.from_numpy(v.astype(np.float64)).requires_grad_() for v in given]
    wanted = torch.autograd.grad(F.conv2d(*tensors).sum(), tensors)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), want.numpy(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1), (5, 2)])
def test_gradients_of_strided_convolutions_multiply_no_zeros(kernel: int, padding: int) -> None:
    """The gradient of the input takes as many products as the convolution, but for those at the borders."""
    attributes = attributes_of(2, {"strides": (2, 2), "padding": ((padding, padding),) * 2})
    x, w = random(1, 32, 28, 28), random(32, 32, kernel, kernel, seed=1)

    def gradient(x: Tensor, w: Tensor) -> Tensor:
        return tw.grad(lambda x: tw.numpy.sum(tw.numpy.square(apply(g.Conv, x, w, None, **attributes))))(x)

    flops = {k.name: k.flops for k in tw.compile(gradient, (x, w)).profile(x, w, repeat=1)}
    products = sum(n for name, n in flops.items() if name.startswith("conv_transpose"))
    assert products <= 1.2 * 2 * 32 * 32 * (14 * kernel) ** 2
