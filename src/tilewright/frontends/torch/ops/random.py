"""Random operators. In a compiled program they draw under keys of the run's seed, an input of the module; what a part of ``torch.compile``'s graph
draws is an input itself, drawn by torch: see `graph_module.DRAWS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import DType, boolean, f32, f64, i64, u64
from ...random import Key, Random
from ..importer import Node, Unsupported
from ..registry import importer

_NEGATIVE = -1.7580993408473766
"""What SELU tends to on the left: the value of elements that alpha dropout drops."""


def noise_of(node: Any) -> tuple[str, Any]:
    """Where an importer keeps the value of the noise that was drawn for a node."""
    return "noise", node


def _drawing(n: Node) -> tuple[Random, Key]:
    """A key of this node's own.

    Raises:
        Unsupported: torch is to draw, so that a seed gives the numbers that it gives without compiling.
    """
    seed = n.importer.run_seed()
    if seed is None:
        raise Unsupported("this operator is random; dropout and the like vanish after model.eval()")
    random = Random(n.emit)
    n.importer.drawn += 1
    key = random.fold_in(random.key(seed), n.importer.drawn)
    for step in n.importer.steps:
        key = random.fold_in(key, step())
    return random, key


def _wide(dtype: DType) -> DType:
    return dtype if dtype in (f32, f64) else f32


def _uniform(n: Node, shape: Sequence[Dim], dtype: DType) -> Term:
    """Numbers in [0, 1)."""
    random, key = _drawing(n)
    return Term(n.importer.builder, random.uniform(key, shape, dtype))


def _normal(n: Node, shape: Sequence[Dim], dtype: DType) -> Term:
    random, key = _drawing(n)
    return Term(n.importer.builder, random.normal(key, shape, dtype))


@importer("aten.rand.default", "aten.rand_like.default")
def rand(n: Node, *_: Any, **__: Any) -> Value:
    return _uniform(n, n.result_shape(), n.result_dtype()).value


@importer("aten.randn.default", "aten.randn_like.default")
def randn(n: Node, *_: Any, **__: Any) -> Value:
    return _normal(n, n.result_shape(), n.result_dtype()).value


def _integers(n: Node, low: Any, high: Any) -> Value:
    """A random word modulo the range, which is far smaller than a word can tell."""
    if not isinstance(low, int) or not isinstance(high, int):
        raise Unsupported("random integers between bounds that are sizes or data")
    random, key = _drawing(n)
    words = Term(n.importer.builder, random.bits(key, n.result_shape(), 64))
    return n.cast(((words % words.number(high - low, u64)).cast(i64) + low).value, n.result_dtype())


@importer("aten.randint.default")
def randint(n: Node, high: Any, _: Any, **__: Any) -> Value:
    return _integers(n, 0, high)


@importer("aten.randint.low")
def randint_low(n: Node, low: Any, high: Any, _: Any, **__: Any) -> Value:
    return _integers(n, low, high)


@importer("aten.randint_like.default")
def randint_like(n: Node, _: Value, high: Any, **__: Any) -> Value:
    return _integers(n, 0, high)


@importer("aten.randint_like.low_dtype")
def randint_like_low(n: Node, _: Value, low: Any, high: Any, **__: Any) -> Value:
    return _integers(n, low, high)


@importer("aten.randperm.default")
def randperm(n: Node, *_: Any, **__: Any) -> Value:
    """The order of random numbers."""
    (size,) = n.result_shape()
    drawn = _uniform(n, (size,), f64).value
    return n.cast(n.emit(g.Topk(drawn, k=size, axis=0))[1], n.result_dtype())


# -- Distributions: what is drawn of a tensor has its shape, and its values do not matter --------------------------------------------------


def _distribution(aten: str, draw: Callable[..., Term]) -> None:
    @importer(f"aten.{aten}")
    def function(n: Node, _: Value, *parameters: Any, **named: Any) -> Value:
        dtype = n.result_dtype()
        return n.cast(draw(n, n.result_shape(), _wide(dtype), *parameters, **named).value, dtype)


def _between(n: Node, shape: Any, dtype: DType, low: float = 0.0, high: float = 1.0) -> Term:
    random, key = _drawing(n)
    return Term(n.importer.builder, random.uniform(key, shape, dtype, low, high))


def _scaled_normal(n: Node, shape: Any, dtype: DType, mean: float = 0.0, std: float = 1.0) -> Term:
    return _normal(n, shape, dtype) * float(std) + float(mean)


def _exponential(n: Node, shape: Any, dtype: DType, rate: float = 1.0) -> Term:
    return (1 - _uniform(n, shape, dtype)).unary("log") * (-1.0 / rate)


def _cauchy(n: Node, shape: Any, dtype: DType, median: float = 0.0, sigma: float = 1.0) -> Term:
    return ((_uniform(n, shape, dtype) - 0.5) * math.pi).unary("tan") * float(sigma) + float(median)


def _geometric(n: Node, shape: Any, dtype: DType, p: float) -> Term:
    """How many trials there are to the first success."""
    if p >= 1:
        return Term(n.importer.builder, n.constant(1, dtype)).broadcast(shape)
    trials = ((1 - _uniform(n, shape, dtype)).unary("log") * (1 / math.log1p(-p))).unary("ceil")
    return (trials < 1).select(1, trials)


def _log_normal(n: Node, shape: Any, dtype: DType, mean: float = 1.0, std: float = 2.0) -> Term:
    return _scaled_normal(n, shape, dtype, mean, std).unary("exp")


def _bernoulli(n: Node, shape: Any, dtype: DType, p: float = 0.5) -> Term:
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
    "aten.normal.Tensor_Tensor", "aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.float_float"
)
def normal(n: Node, mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> Value:
    dtype = n.result_dtype()
    drawn = _normal(n, n.result_shape(), dtype).value
    return n.binary("add", n.binary("mul", drawn, n.as_tensor(std, dtype)), n.as_tensor(mean, dtype))


@importer("aten.multinomial.default")
def multinomial(n: Node, x: Value, count: Dim, replacement: bool = False) -> Value:
    """Places drawn by their weights; without replacement the largest of log-weights with Gumbel noise (Vieira, 2014)."""
    shape = x.type.shape
    rows = n.reshape(n.cast(x, _wide(x.type.dtype)), (1, *shape) if len(shape) == 1 else shape)
    chances = Term(n.importer.builder, rows).unary("log")
    if replacement:
        random, key = _drawing(n)
        found = random.categorical(key, chances.value, count)
    else:
        noise = -(-(_uniform(n, chances.shape, chances.dtype).unary("log"))).unary("log")
        found = n.emit(g.Topk((chances + noise).value, k=count, axis=-1))[1]
    return n.reshape(found, n.result_shape())


# -- Dropout ------------------------------------------------------------------------------------------------------------------------------


def _kept(n: Node, shape: Sequence[Dim], p: float) -> Term:
    return _uniform(n, shape, f32) >= float(p)


@importer("aten.dropout.default")
def dropout(n: Node, x: Value, p: float, train: bool) -> Value:
    if not train or p == 0:
        return x
    given = Term(n.importer.builder, x)
    return _kept(n, x.type.shape, p).select(given * (1 / (1 - p) if p < 1 else 0.0), 0).value


@importer("aten.feature_dropout.default")
def feature_dropout(n: Node, x: Value, p: float, train: bool) -> Value:
    """Whole channels."""
    if not train or p == 0:
        return x
    shape = (*x.type.shape[:2], *[1] * (x.type.rank - 2))
    given = Term(n.importer.builder, x)
    return _kept(n, shape, p).select(given * (1 / (1 - p) if p < 1 else 0.0), 0).value


@importer("aten.alpha_dropout.default")
def alpha_dropout(n: Node, x: Value, p: float, train: bool) -> Value:
    """Mean and variance of what SELU gives stay."""
    if not train or p == 0:
        return x
    given = Term(n.importer.builder, x)
    if p >= 1:
        return (given * 0.0).value
    scale = 1 / math.sqrt((_NEGATIVE * _NEGATIVE * p + 1) * (1 - p))
    return (_kept(n, x.type.shape, p).select(given, _NEGATIVE) * scale - scale * _NEGATIVE * p).value


@importer("aten.native_dropout.default")
def native_dropout(n: Node, x: Value, p: float, train: bool | None) -> tuple[Value, Value | None]:
    """The elements that stay, scaled to keep the mean, and which they are."""
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
    n: Node, x: Value, _: Value, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *__: Any
) -> tuple[Value, Value]:
    """Elements that are not positive, times a random slope (in training) or the mean one; and the slopes."""
    given = Term(n.importer.builder, x)
    if training:
        slope = _between(n, x.type.shape, _wide(given.dtype), lower, upper).cast(given.dtype)
    else:
        slope = given.number((lower + upper) / 2).broadcast(given.shape)
    slope = (given > 0).select(1, slope)
    return (given * slope).value, slope.value
