"""Cases of the operators that say how to differentiate what they enclose."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.dialects.graph.scan import Yield
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Region, Value

from .harness import Case, F

SIZES = ({"n": 5}, {"n": 1}, {"n": 8})


def _after(b: Builder, d: Any, x: Value, y: Value) -> Any:
    return b(graph.Mul(b(graph.After(x, [b(graph.Sin(y))])), y))


def _checkpoint(b: Builder, d: Any, x: Value, y: Value) -> Any:
    block = Block([])
    inside = Builder(block)
    product = inside(graph.Mul(inside(graph.Sin(x)), y))
    inside.insert(Yield([inside(graph.Tanh(product)), product]))
    return list(b.insert(graph.Checkpoint(regions=[Region([block])])).results)


def _custom_gradient(b: Builder, d: Any, x: Value, y: Value) -> Any:
    """The rule is the derivative, so that differences confirm it."""
    block = Block([x.type])
    inside = Builder(block)
    inside.insert(Yield([inside(graph.Mul(block.args[0], v)) for v in (y, x)]))
    op = graph.CustomGradient([x, y], [b(graph.Mul(x, y))], regions=[Region([block])])
    return b.insert(op).results[0]


def _once(b: Builder, d: Any, x: Value) -> Any:
    true = b(graph.ReduceAll(b(graph.Eq(x, x)), axes=(0, 1)))
    return b(graph.OnceDifferentiable(x, true, message="not twice"))


VECTORS = (F("n", 3), F("n", 3))

CASES = [
    Case("After", VECTORS, _after, lambda d, x, y: x * y, SIZES),
    Case(
        "Checkpoint",
        VECTORS,
        _checkpoint,
        lambda d, x, y: (np.tanh(np.sin(x) * y), np.sin(x) * y),
        SIZES,
    ),
    Case("OnceDifferentiable", VECTORS[:1], _once, lambda d, x: x, SIZES),
    Case("CustomGradient", VECTORS, _custom_gradient, lambda d, x, y: x * y, SIZES),
]
