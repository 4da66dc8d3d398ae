"""Elementwise readers of reshaped contractions become their epilogues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import graph as g
from tilewright.ir.builder import Builder
from tilewright.ir.core import Value
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import symbol

from .test_fusion import arrays, build, check_passes, weight

BATCH = symbol("batch", 1, 8)


def grouped(b: Builder, x: Value, outputs: int) -> Value:
    """A 3 x 3 convolution in three groups, channels last, with a bias."""
    channels = int(x.type.shape[-1])
    options: dict[str, Any] = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1)}
    kernel, bias = weight(b, outputs, channels // 3, 3, 3), weight(b, outputs)
    return b(g.Conv(x, kernel, bias, **options, groups=3, layout="channels_last"))


def activated(b: Builder, x: Value) -> Value:
    return b(g.Tanh(grouped(b, x, 24)))


def with_residual(b: Builder, x: Value) -> Value:
    return b(g.Tanh(b(g.Add(grouped(b, x, 12), x))))


def read_twice(b: Builder, x: Value) -> Value:
    y = grouped(b, x, 12)
    return b(g.Concat([b(g.Tanh(y)), b(g.Softmax(y, axis=-1))], axis=0))


def reduced(b: Builder, x: Value) -> Value:
    return b(g.ReduceMean(grouped(b, x, 12), axes=(1, 2)))


def moved(b: Builder, x: Value) -> Value:
    """The reader is at another point than what it reads."""
    return b(g.Tanh(b(g.Transpose(grouped(b, x, 12), permutation=(0, 2, 1, 3)))))


@pytest.mark.parametrize("batch", [2, BATCH], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("body", "members"),
    [(activated, 2), (with_residual, 2), (read_twice, 2), (reduced, 1), (moved, 1)],
)
def test_epilogues_of_grouped_convolutions(
    body: Callable[[Builder, Value], Value], members: int, batch: Any
) -> None:
    sizes = {} if isinstance(batch, int) else {"batch": 3}
    groups = check_passes(build({"x": (batch, 6, 5, 12)}, body), **sizes)
    assert [len(group.body) - 1 for group in groups if group.kind == "contraction"] == [members]
    module = build({"x": (batch, 6, 5, 12)}, body)
    inputs = arrays(module, **sizes)
    (wanted,) = Interpreter(module).run("main", inputs)
    np.testing.assert_allclose(tw.compile(module, cache=False)(*inputs), wanted, rtol=1e-4, atol=1e-5)
