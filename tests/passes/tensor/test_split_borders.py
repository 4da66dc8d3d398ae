"""Borders of constants around results: the kernels that compute the interior write it into its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.dialects import graph as g
from tilewright.dialects import tensor
from tilewright.dialects.places import ConcatBox, place_of
from tilewright.ir.builder import Builder
from tilewright.ir.core import Value
from tilewright.ir.interpreter import Interpreter

from .test_fusion import arrays, build, check_passes, weight


def conv(b: Builder, x: Value, channels: int, window: int = 3, pad: int = 1) -> Value:
    w = weight(b, channels, int(x.type.shape[1]), window, window)
    pads = ((pad, pad), (pad, pad))
    return b(g.Conv(x, w, None, strides=(1, 1), padding=pads, dilations=(1, 1)))


def activated(b: Builder, x: Value) -> Value:
    return conv(b, b(g.Relu(conv(b, x, 32))), 16)


def plain(b: Builder, x: Value) -> Value:
    return conv(b, conv(b, x, 32), 16)


def asymmetric(b: Builder, x: Value) -> Value:
    y = b(g.Pad(b(g.Relu(conv(b, x, 32))), None, low=(0, 0, 2, 0), high=(0, 0, 0, 3), value=1.5))
    return conv(b, y, 16, pad=0)


def joined(b: Builder, x: Value) -> Value:
    parts = [b(g.Relu(conv(b, x, 32))), conv(b, x, 16)]
    return conv(b, b(g.Concat(parts, axis=1)), 16)


def pointwise(b: Builder, x: Value) -> Value:
    return conv(b, b(g.Relu(conv(b, x, 32, window=1, pad=0))), 16)


def shared(b: Builder, x: Value) -> list[Value]:
    y = conv(b, x, 32)
    return [conv(b, y, 16), b(g.ReduceMax(y, axes=(2, 3)))]


CASES: dict[str, tuple[Callable[[Builder, Value], Any], int]] = {
    "epilogue": (activated, 1),
    "only repeated": (plain, 1),
    "other borders": (asymmetric, 1),
    "padded concatenation": (joined, 2),
    "product without a window": (pointwise, 0),
    "another reader": (shared, 0),
}


def boxes(groups: list[tensor.Group]) -> int:
    """How many products write into a place between borders."""
    return sum(
        isinstance(place_of(r), ConcatBox)
        for group in groups
        if group.kind == tensor.GroupKind.CONTRACTION
        for r in group.results
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_products_write_between_borders(case: str, batch: int) -> None:
    """The interpreter agrees after every pass, and so does the artifact."""
    body, wanted_boxes = CASES[case]
    module = build({"x": (batch, 16, 28, 24)}, body)
    inputs = arrays(module)
    wanted = Interpreter(module).run("main", inputs)
    found = tw.compile(module.clone(), cache=False)(*inputs)
    for y, z in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-3)
    assert boxes(check_passes(module)) == wanted_boxes


def test_small_images_are_copied() -> None:
    assert boxes(check_passes(build({"x": (1, 16, 8, 8)}, activated))) == 0


RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def reshaped_concatenation(m: Any, a: Any, b: Any, c: Any) -> Any:
    y = m.maximum(m.concatenate([m.matmul(a, b), c], axis=-1), 0)
    return m.pad(m.reshape(y, (384, 80)), ((0, 16), (0, 0)))


def unit_axis(m: Any, x: Any) -> Any:
    y = (x - m.mean(x, axis=-1, keepdims=True)) / m.sqrt(m.mean(x * x, axis=-1, keepdims=True) + 1)
    return m.pad(m.reshape(y, (3, 1, 120, 64)) * 2 + 1, ((0, 0), (0, 0), (1, 1), (1, 1)))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (reshaped_concatenation, (random(3, 128, 32), random(3, 32, 64), random(3, 128, 16))),
        (unit_axis, (random(3, 120, 64),)),
    ],
    ids=["a concatenation behind a reshape", "a dimension of 1"],
)
def test_borders_around_reshaped_values(function: Callable[..., Any], inputs: tuple[np.ndarray, ...]) -> None:
    library = tw.compile(lambda *x: function(tnp, *x), inputs, cache=False)
    np.testing.assert_allclose(library(*inputs), function(np, *inputs), rtol=1e-4, atol=1e-4)
