"""Operators that draw random numbers, with a key from the node's attribute ``seed``, or else from the seed of
the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import DType, TensorType, boolean, f32, f64, i32, i64
from ...random import Key, Random
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic

if TYPE_CHECKING:
    from ..node import Node


def _random(n: Node) -> Random:
    return Random(n.emit, n.emit_all)


def _key(n: Node) -> Key:
    """Return the key of a node's random numbers.

    With the attribute ``seed`` it is the same in every run. Otherwise it comes from the run's seed and
    differs between nodes. In a loop it differs between iterations. The run's seed is an input of the module,
    after the model's own inputs.
    """
    importer, random = n.importer, _random(n)
    seed = n.attr("seed")
    if seed is not None:
        key = random.key(int(np.float32(seed).view(np.uint32)))
    else:
        if importer.seed is None:
            importer.seed = importer.function.block.add_arg(TensorType(i64, ()), "seed")
        importer.draws += 1
        key = random.fold_in(random.key(importer.seed), importer.draws)
    for step in importer.steps:
        if step is None:
            raise Unsupported(
                "random numbers in a Scan, whose iterations have no number; a Loop can draw them"
            )
        key = random.fold_in(key, step)
    return key


def _dtype(n: Node, default: DType) -> DType:
    dtype = n.dtype_attr("dtype") if n.attr("dtype") is not None else default
    if not dtype.is_float or dtype.bits < 16:
        raise Unsupported(f"random numbers of type {dtype.label}")
    return dtype


def _shape(n: Node) -> Any:
    return n.tensor(0).shape if n.op_type.endswith("Like") else n.attr("shape")


@importer("RandomUniform", "RandomUniformLike")
def _uniform(n: Node) -> Value:
    dtype = _dtype(n, n.tensor(0).dtype if n.op_type.endswith("Like") else f32)
    random = _random(n)
    return random.uniform(_key(n), _shape(n), dtype, n.attr("low", 0.0), n.attr("high", 1.0))


@importer("RandomNormal", "RandomNormalLike")
def _normal(n: Node) -> Value:
    dtype = _dtype(n, n.tensor(0).dtype if n.op_type.endswith("Like") else f32)
    random = _random(n)
    return random.normal(_key(n), _shape(n), dtype, n.attr("mean", 0.0), n.attr("scale", 1.0))


@importer("Bernoulli")
def _bernoulli(n: Node) -> Value:
    x = n.value(0)
    dtype = n.dtype_attr("dtype") if n.attr("dtype") is not None else x.type.dtype
    return cast(n, _random(n).bernoulli(_key(n), x), dtype)


@importer("Multinomial")
def _multinomial(n: Node) -> Value:
    dtype = n.dtype_attr("dtype") if n.attr("dtype") is not None else i32
    x = n.value(0)
    wide = x if x.type.dtype is f64 else cast(n, x, f32)
    places = _random(n).categorical(_key(n), wide, n.attr("sample_size", 1))
    return cast(n, places, dtype)


@importer("Dropout")
def _dropout(n: Node) -> Any:
    """In training, keep an element with probability ``1 - ratio`` and divide it by that probability."""
    x = n.tensor(0)
    training = n.tensor(2).array if n.has(2) else False
    ratio = n.tensor(1).array if n.has(1) else 0.5
    if (training is not None and not training) or (ratio is not None and not ratio):
        n.attr("seed")
        return (x, n.emit(g.BroadcastTo(n.constant(True, boolean), shape=x.shape))) if n.wants(1) else x
    wide = f64 if x.dtype is f64 else f32
    a = Arithmetic(n, wide)
    stay = a.Sub(1, cast(n, n.value(1), wide) if n.has(1) else 0.5)
    if training is None:
        stay = a.Select(n.value(2), stay, 1)
    stay = n.emit(g.Reshape(stay, shape=()))
    mask = _random(n).bernoulli(_key(n), n.emit(g.BroadcastTo(stay, shape=x.shape)))
    kept = a.Select(mask, a.Div(cast(n, x.value, wide), stay), 0)
    return cast(n, kept, x.dtype), mask
