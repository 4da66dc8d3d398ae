"""Random operators. In a compiled program they draw under keys of the run's seed, an input of the module. In
a graph of ``torch.compile``, torch draws the numbers and passes them as inputs: see `graph_module.DRAWS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import DType, boolean, f32, f64, i64, u64
from ...random import Key, Random
from ...unsupported import Unsupported
from ..importer import Node, Operand
from ..registry import importer

if TYPE_CHECKING:
    import torch

_NEGATIVE = -1.7580993408473766
"""SELU's limit at minus infinity: the value of elements that alpha dropout drops."""


def noise_of(node: torch.fx.Node) -> tuple[str, torch.fx.Node]:
    """Return the key under which an importer keeps the value of the noise that was drawn for a node."""
    return "noise", node


def _drawing(n: Node) -> tuple[Random, Key]:
    """Return the generator and a key for this node alone.

    Raises:
        Unsupported: torch draws, so that a seed gives the same numbers as without compiling.
    """
    seed = n.importer.run_seed()
    if seed is None:
        raise Unsupported("this operator is random; model.eval() removes dropout")
    random = Random(n.emit, n.emit_all)
    n.importer.drawn += 1
    key = random.fold_in(random.key(seed), n.importer.drawn)
    for step in n.importer.steps:
        key = random.fold_in(key, step())
    return random, key


def _wide(dtype: DType) -> DType:
    return dtype if dtype in (f32, f64) else f32


def _uniform(n: Node, shape: Sequence[Dim], dtype: DType) -> Term:
    """Return numbers in [0, 1)."""
    random, key = _drawing(n)
    return Term(n.importer.builder, random.uniform(key, shape, dtype))


def _normal(n: Node, shape: Sequence[Dim], dtype: DType) -> Term:
    random, key = _drawing(n)
    return Term(n.importer.builder, random.normal(key, shape, dtype))


@importer("aten.rand.default", "aten.rand_like.default")
def rand(n: Node, *_: object, **__: object) -> Value:
    return _uniform(n, n.result_shape(), n.result_dtype()).value


@importer("aten.randn.default", "aten.randn_like.default")
def randn(n: Node, *_: object, **__: object) -> Value:
    return _normal(n, n.result_shape(), n.result_dtype()).value


def _integers(n: Node, low: Operand, high: Operand) -> Value:
    """Return a random word modulo the range, which is far smaller than a word's."""
    if not isinstance(low, int) or not isinstance(high, int):
        raise Unsupported("random integers between bounds that are sizes or data")
    random, key = _drawing(n)
    words = Term(n.importer.builder, random.bits(key, n.result_shape(), 64))
    return n.cast(((words % words.number(high - low, u64)).cast(i64) + low).value, n.result_dtype())


@importer("aten.randint.default")
def randint(n: Node, high: Operand, _: object, **__: object) -> Value:
    return _integers(n, 0, high)


@importer("aten.randint.low")
def randint_low(n: Node, low: Operand, high: Operand, _: object, **__: object) -> Value:
    return _integers(n, low, high)


@importer("aten.randint_like.default")
def randint_like(n: Node, _: Value, high: Operand, **__: object) -> Value:
    return _integers(n, 0, high)


@importer("aten.randint_like.low_dtype")
def randint_like_low(n: Node, _: Value, low: Operand, high: Operand, **__: object) -> Value:
    return _integers(n, low, high)


@importer("aten.randperm.default")
def randperm(n: Node, *_: object, **__: object) -> Value:
    """Return the permutation that sorts random numbers."""
    (size,) = n.result_shape()
    drawn = _uniform(n, (size,), f64).value
    return n.cast(n.emit_all(g.Topk(drawn, k=size, axis=0))[1], n.result_dtype())


# -- Distributions: the result has the shape of the operand, whose values do not matter ----------------------


def _distribution(aten: str, draw: Callable[..., Term]) -> None:
    @importer(f"aten.{aten}")
    def function(n: Node, _: Value, *parameters: object, **named: object) -> Value:
        dtype = n.result_dtype()
        return n.cast(draw(n, n.result_shape(), _wide(dtype), *parameters, **named).value, dtype)


def _between(n: Node, shape: Sequence[Dim], dtype: DType, low: float = 0.0, high: float = 1.0) -> Term:
    random, key = _drawing(n)
    return Term(n.importer.builder, random.uniform(key, shape, dtype, low, high))


def _scaled_normal(n: Node, shape: Sequence[Dim], dtype: DType, mean: float = 0.0, std: float = 1.0) -> Term:
    return _normal(n, shape, dtype) * float(std) + float(mean)


def _exponential(n: Node, shape: Sequence[Dim], dtype: DType, rate: float = 1.0) -> Term:
    return (1 - _uniform(n, shape, dtype)).unary("log") * (-1.0 / rate)


def _cauchy(n: Node, shape: Sequence[Dim], dtype: DType, median: float = 0.0, sigma: float = 1.0) -> Term:
    return ((_uniform(n, shape, dtype) - 0.5) * math.pi).unary("tan") * float(sigma) + float(median)


def _geometric(n: Node, shape: Sequence[Dim], dtype: DType, p: float) -> Term:
    """Return the number of trials up to the first success."""
    if p >= 1:
        return Term(n.importer.builder, n.constant(1, dtype)).broadcast(shape)
    trials = ((1 - _uniform(n, shape, dtype)).unary("log") * (1 / math.log1p(-p))).unary("ceil")
    return (trials < 1).select(1, trials)


def _log_normal(n: Node, shape: Sequence[Dim], dtype: DType, mean: float = 1.0, std: float = 2.0) -> Term:
    return _scaled_normal(n, shape, dtype, mean, std).unary("exp")


def _bernoulli(n: Node, shape: Sequence[Dim], dtype: DType, p: float = 0.5) -> Term:
    return (_uniform(n, shape, dtype) < float(p)).cast(dtype)


for _name, _draw in (
    ("uniform.default", _between),
    ("normal_functional.default", _scaled_normal),
    ("exponential.default", _exponential),
    ("cauchy.default", _cauchy),
    ("geometric.default", _geometric),
    ("log_normal.default", _log_normal),
    ("bernoulli.p", _bernoulli),
):
    _distribution(_name, _draw)


@importer(
    "aten.normal.Tensor_Tensor",
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    "aten.normal.float_float",
)
def normal(n: Node, mean: Operand, std: Operand = 1.0, *_: object, **__: object) -> Value:
    dtype = n.result_dtype()
    drawn = _normal(n, n.result_shape(), dtype).value
    return n.binary("add", n.binary("mul", drawn, n.as_tensor(std, dtype)), n.as_tensor(mean, dtype))


@importer("aten.multinomial.default")
def multinomial(n: Node, x: Value, count: Dim, replacement: bool = False) -> Value:
    """Return indices drawn by their weights; without replacement those of the largest log-weights with Gumbel
    noise (Vieira 2014).
    """
    shape = x.type.shape
    rows = n.reshape(n.cast(x, _wide(x.type.dtype)), (1, *shape) if len(shape) == 1 else shape)
    chances = Term(n.importer.builder, rows).unary("log")
    if replacement:
        random, key = _drawing(n)
        indices = random.categorical(key, chances.value, count)
    else:
        noise = -(-(_uniform(n, chances.shape, chances.dtype).unary("log"))).unary("log")
        indices = n.emit_all(g.Topk((chances + noise).value, k=count, axis=-1))[1]
    return n.reshape(indices, n.result_shape())


# -- Dropout -------------------------------------------------------------------------------------------------


def _kept(n: Node, shape: Sequence[Dim], p: float) -> Term:
    return _uniform(n, shape, f32) >= float(p)


@importer("aten.dropout.default")
def dropout(n: Node, x: Value, p: float, train: bool) -> Value:
    if not train or p == 0:
        return x
    elements = Term(n.importer.builder, x)
    return _kept(n, x.type.shape, p).select(elements * (1 / (1 - p) if p < 1 else 0.0), 0).value


@importer("aten.feature_dropout.default")
def feature_dropout(n: Node, x: Value, p: float, train: bool) -> Value:
    """Drop whole channels."""
    if not train or p == 0:
        return x
    shape = (*x.type.shape[:2], *[1] * (x.type.rank - 2))
    elements = Term(n.importer.builder, x)
    return _kept(n, shape, p).select(elements * (1 / (1 - p) if p < 1 else 0.0), 0).value


@importer("aten.alpha_dropout.default")
def alpha_dropout(n: Node, x: Value, p: float, train: bool) -> Value:
    """Drop elements so that mean and variance of SELU's results stay."""
    if not train or p == 0:
        return x
    elements = Term(n.importer.builder, x)
    if p >= 1:
        return (elements * 0.0).value
    scale = 1 / math.sqrt((_NEGATIVE * _NEGATIVE * p + 1) * (1 - p))
    return (_kept(n, x.type.shape, p).select(elements, _NEGATIVE) * scale - scale * _NEGATIVE * p).value


@importer("aten.native_dropout.default")
def native_dropout(n: Node, x: Value, p: float, train: bool | None) -> tuple[Value, Value | None]:
    """Return the kept elements, scaled to preserve the mean, and the mask of them."""
    if train is False:
        return x, None
    noise = n.importer.values.get(noise_of(n.fx))
    if noise is None:
        noise = _kept(n, x.type.shape, p).cast(x.type.dtype).value
    scale = 1 / (1 - p) if p < 1 else 0.0
    scaled = n.binary("mul", noise, n.constant(scale, x.type.dtype))
    return n.binary("mul", x, scaled), n.emit(g.Cast(noise, dtype=boolean))


@importer("aten.rrelu_with_noise_functional.default")
def rrelu(
    n: Node,
    x: Value,
    _: Value,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *__: object,
) -> tuple[Value, Value]:
    """Return elements with negative ones times a random slope (in training) or the mean slope, and the
    slopes.
    """
    elements = Term(n.importer.builder, x)
    if training:
        slope = _between(n, x.type.shape, _wide(elements.dtype), lower, upper).cast(elements.dtype)
    else:
        slope = elements.number((lower + upper) / 2).broadcast(elements.shape)
    slope = (elements > 0).select(1, slope)
    return (elements * slope).value, slope.value
