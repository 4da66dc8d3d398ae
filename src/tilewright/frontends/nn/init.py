"""Initial parameters under the names of `torch.nn.init`, without its final underscore: functions of a shape
that return a new float32 parameter instead of filling one.

    layer.weight = nn.init.kaiming_normal(layer.weight.shape, nonlinearity="relu")

Inside of `placeholders` the parameters have no elements. `seed` makes the numbers repeatable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..trace import random
from .module import Parameter, parameter

_generators = [np.random.default_rng()]


def seed(number: int) -> None:
    """Seed the random numbers of initial parameters, and of dropout without a key.

    Args:
        number: Any integer that is not negative.

    Raises:
        ValueError: The number is negative.
    """
    _generators[0] = np.random.default_rng(number)


def generator() -> np.random.Generator:
    """Return the generator that `seed` seeds."""
    return _generators[0]


def constant(shape: Sequence[int], val: float) -> Parameter:
    """Return a float32 parameter of equal elements.

    Args:
        shape: The size of each dimension.
        val: The elements' value.
    """
    return parameter(shape, lambda s: np.full(s, val))


def zeros(shape: Sequence[int]) -> Parameter:
    """Return a float32 parameter of zeros of the given shape."""
    return constant(shape, 0.0)


def ones(shape: Sequence[int]) -> Parameter:
    """Return a float32 parameter of ones of the given shape."""
    return constant(shape, 1.0)


def eye(shape: Sequence[int]) -> Parameter:
    """Return a float32 parameter (n, m) with ones on the diagonal, else zeros.

    Raises:
        ValueError: The shape is not that of a matrix.
    """
    rows, columns = _matrix(shape)
    return parameter(shape, lambda s: np.eye(rows, columns))


def uniform(shape: Sequence[int], a: float = 0.0, b: float = 1.0) -> Parameter:
    """Return a float32 parameter drawn uniformly from ``[a, b)``.

    Args:
        shape: The size of each dimension.
        a: The least number.
        b: The number that all are less than.
    """
    return parameter(shape, lambda s: generator().uniform(a, b, s))


def normal(shape: Sequence[int], mean: float = 0.0, std: float = 1.0) -> Parameter:
    """Return a float32 parameter drawn from a normal distribution.

    Args:
        shape: The size of each dimension.
        mean: The mean.
        std: The standard deviation.
    """
    return parameter(shape, lambda s: mean + std * generator().standard_normal(s))


def trunc_normal(
    shape: Sequence[int], mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Parameter:
    """Return a float32 parameter drawn from a normal distribution that is limited to ``[a, b]``.

    Args:
        shape: The size of each dimension.
        mean: The mean before the limits.
        std: The standard deviation before the limits.
        a: The least number.
        b: The largest number.

    Raises:
        ValueError: `a` is not less than `b`.
    """
    if not a < b:
        raise ValueError(f"there are no numbers from {a} to {b}")

    def elements(sizes: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        key = random.key(int(generator().integers(1 << 62)))
        x = random.truncated_normal(key, (a - mean) / std, (b - mean) / std, sizes, "float64")
        return mean + std * x.numpy()

    return parameter(shape, elements)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended factor of the standard deviation before a function.

    Args:
        nonlinearity: ``linear``, ``conv1d`` (2d, 3d and transposed ones too), ``sigmoid``, ``tanh``,
            ``relu``, ``leaky_relu`` or ``selu``.
        param: The slope of ``leaky_relu`` for negative numbers; None is 0.01.

    Raises:
        ValueError: There is no such function.
    """
    if nonlinearity in ("linear", "sigmoid") or nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    gains = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    if nonlinearity not in gains:
        raise ValueError(f"no gain is known for {nonlinearity!r}; those of {', '.join(gains)} are")
    return gains[nonlinearity]


def xavier_uniform(shape: Sequence[int], gain: float = 1.0) -> Parameter:
    """Return a float32 parameter drawn uniformly with variance ``2 * gain**2 / (fan_in + fan_out)`` (Glorot
    and Bengio 2010).

    Args:
        shape: (outputs, inputs, *kernel).
        gain: The factor of the standard deviation.

    Raises:
        ValueError: The shape has fewer dimensions than 2.
    """
    limit = gain * math.sqrt(6.0 / sum(_fans(shape)))
    return uniform(shape, -limit, limit)


def xavier_normal(shape: Sequence[int], gain: float = 1.0) -> Parameter:
    """Return a float32 parameter drawn from a normal distribution with the variance of `xavier_uniform`.

    Args:
        shape: (outputs, inputs, *kernel).
        gain: The factor of the standard deviation.

    Raises:
        ValueError: The shape has fewer dimensions than 2.
    """
    return normal(shape, 0.0, gain * math.sqrt(2.0 / sum(_fans(shape))))


def kaiming_uniform(
    shape: Sequence[int], a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Parameter:
    """Return a float32 parameter drawn uniformly with variance ``gain**2 / fan`` (He et al. 2015).

    Args:
        shape: (outputs, inputs, *kernel).
        a: The slope of ``leaky_relu`` for negative numbers.
        mode: ``fan_in`` keeps the variance of the forward pass, ``fan_out`` that of the backward pass.
        nonlinearity: The function that follows, as of `calculate_gain`.

    Raises:
        ValueError: The shape has fewer dimensions than 2, or there is no such mode or function.
    """
    limit = math.sqrt(3.0) * _kaiming_deviation(shape, a, mode, nonlinearity)
    return uniform(shape, -limit, limit)


def kaiming_normal(
    shape: Sequence[int], a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Parameter:
    """Return a float32 parameter drawn from a normal distribution with the variance of `kaiming_uniform`.

    Args:
        shape: (outputs, inputs, *kernel).
        a: The slope of ``leaky_relu`` for negative numbers.
        mode: As of `kaiming_uniform`.
        nonlinearity: The function that follows, as of `calculate_gain`.

    Raises:
        ValueError: The shape has fewer dimensions than 2, or there is no such mode or function.
    """
    return normal(shape, 0.0, _kaiming_deviation(shape, a, mode, nonlinearity))


def orthogonal(shape: Sequence[int], gain: float = 1.0) -> Parameter:
    """Return a float32 parameter whose rows, or columns if these are fewer, are orthogonal and of length
    `gain`, with all dimensions but the first as one (Saxe et al. 2014).

    Args:
        shape: The size of each dimension, of at least two.
        gain: The length.

    Raises:
        ValueError: The shape has fewer dimensions than 2.
    """
    _fans(shape)
    rows = shape[0]

    def elements(sizes: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        columns = math.prod(sizes[1:])
        q, r = np.linalg.qr(generator().standard_normal((max(rows, columns), min(rows, columns))))
        # The signs make the distribution uniform (Mezzadri 2007).
        q = q * np.sign(np.diagonal(r))
        return gain * (q.T if rows < columns else q).reshape(sizes)

    return parameter(shape, elements)


def _kaiming_deviation(shape: Sequence[int], a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is 'fan_in' or 'fan_out', not {mode!r}")
    return calculate_gain(nonlinearity, a) / math.sqrt(_fans(shape)[mode == "fan_out"])


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """The numbers of inputs of an output and of outputs of an input."""
    if len(shape) < 2:
        raise ValueError(
            f"a parameter with inputs and outputs has two dimensions or more, not {tuple(shape)}"
        )
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(f"{tuple(shape)} is not the shape of a matrix")
    return shape[0], shape[1]


__all__ = [
    "calculate_gain",
    "constant",
    "eye",
    "generator",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "ones",
    "orthogonal",
    "seed",
    "trunc_normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]
