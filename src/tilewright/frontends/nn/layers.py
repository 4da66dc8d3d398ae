"""Layers: modules whose parameters have PyTorch's names and layouts, so that its weights load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import CompileError
from ..trace import Tensor
from ..trace import numpy as tnp
from ..trace.tracing import current
from . import functional as F
from .module import Module, Parameter, parameter

_random = np.random.default_rng()


def seed(number: int) -> None:
    """Seed the random numbers of initial parameters and of dropout."""
    global _random
    _random = np.random.default_rng(number)


def uniform(shape: Sequence[int], limit: float) -> Parameter:
    """Return a float32 parameter drawn uniformly from ``[-limit, limit]``."""
    return parameter(shape, lambda s: _random.uniform(-limit, limit, s))


def _constant(shape: Sequence[int], value: float) -> Parameter:
    return parameter(shape, lambda s: np.full(s, value))


class Linear(Module):
    """``x @ weight.T + bias``: (..., inputs) to (..., outputs). `weight` is (outputs, inputs), `bias`
    (outputs).
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        limit = 1 / math.sqrt(inputs)
        self.weight = uniform((outputs, inputs), limit)
        self.bias = uniform((outputs,), limit) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(Module):
    """A table of `count` vectors: integer ids (...) to their rows of `weight`, (..., size)."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = parameter((count, size), _random.standard_normal)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)

    def attend(self, x: Tensor) -> Tensor:
        """Return ``x @ weight.T``: (..., size) to (..., count), for output layers that share the embedding's
        weight.
        """
        return F.linear(x, self.weight)


class LayerNorm(Module):
    """Normalization to mean 0 and variance 1 over the last dimensions, which have sizes `shape` (Ba et al.
    2016).

    `weight` and `bias` have these sizes; `eps` is added to the variance.
    """

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        self.axes, self.eps = tuple(range(-len(sizes), 0)), eps
        self.weight = _constant(sizes, 1)
        self.bias = _constant(sizes, 0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias, self.axes, self.eps)


class RMSNorm(Module):
    """Normalization to mean square 1 over the last dimension, of `size` elements (Zhang and Sennrich 2019).

    `weight` is (size); `eps` is added to the mean square.
    """

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _constant((size,), 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight, eps=self.eps)


class GroupNorm(Module):
    """Normalization of (N, C, *spatial) over groups of channels (Wu and He 2018); `weight` and `bias` are
    (C).
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight, self.bias = _constant((channels,), 1), _constant((channels,), 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)


class BatchNorm2d(Module):
    """Normalization of each channel of (N, C, H, W) (Ioffe and Szegedy 2015); `weight` and `bias` are (C).

    In training mode the statistics are the batch's; their running averages, of weight `momentum` for the
    newest batch, are used in inference mode.

    Raises:
        CompileError: It is traced in training mode.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = _constant((channels,), 1), _constant((channels,), 0)
        self.running_mean, self.running_var = tnp.zeros(channels), tnp.ones(channels)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps)
        _refuse_training(self)
        x = tnp.asarray(x)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        n = x.size / x.shape[1]
        m = self.momentum
        self.running_mean = (1 - m) * self.running_mean + m * mean
        self.running_var = (1 - m) * self.running_var + m * variance * (n / (n - 1))
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self.eps)


class Dropout(Module):
    """In training mode each element becomes 0 with probability `p`; the others are divided by ``1 - p``.

    Raises:
        CompileError: It is traced in training mode.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        x = tnp.asarray(x)
        if not self.training or not self.p:
            return x
        _refuse_training(self)
        keep = _random.random(x.shape) >= self.p
        return tnp.where(keep, x / (1 - self.p), 0)


def _refuse_training(module: Module) -> None:
    if current() is not None:
        raise CompileError(
            f"{type(module).__name__} in training mode changes from call to call and does not compile: call "
            "model.eval() first"
        )


class _Conv(Module):
    rank = 0

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: F.Sizes,
        stride: F.Sizes = 1,
        padding: F.Sizes = 0,
        dilation: F.Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        shape = (outputs, inputs // groups, *F.several(kernel, self.rank))
        limit = 1 / math.sqrt(math.prod(shape[1:]))
        self.weight = uniform(shape, limit)
        self.bias = uniform((outputs,), limit) if bias else None
        self.options: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }

    def forward(self, x: Tensor) -> Tensor:
        return F.conv(x, self.weight, self.bias, **self.options)


class Conv1d(_Conv):
    """Convolution of (N, C, L); arguments as of `Conv2d`."""

    rank = 1


class Conv2d(_Conv):
    """Convolution of (N, inputs, H, W) to (N, outputs, H', W').

    `weight` is (outputs, inputs / groups, *kernel), `bias` (outputs). `kernel`, `stride`, `padding` (zeros on
    both sides) and `dilation` are one number, or one for each spatial dimension.
    """

    rank = 2


class MultiHeadAttention(Module):
    """Attention of x (B, S, size) to itself or to `memory` (B, T, size) with `heads` heads (Vaswani et al.
    2017).

    Parameters have the names and layouts of `torch.nn.MultiheadAttention`.

    Raises:
        ValueError: `heads` does not divide `size`.
    """

    def __init__(self, size: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        if size % heads:
            raise ValueError(f"{size} elements cannot be divided into {heads} heads")
        self.heads = heads
        self.in_proj_weight = uniform((3 * size, size), math.sqrt(6 / (4 * size)))
        self.in_proj_bias = _constant((3 * size,), 0) if bias else None
        self.out_proj = Linear(size, size, bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return the attended values, (B, S, size).

        `mask` is broadcast to (B, heads, S, T): booleans are true where a query attends to a key, numbers are
        added to scores. `causal` hides later positions.
        """
        x = tnp.asarray(x)
        source = x if memory is None else tnp.asarray(memory)
        weights = tnp.split(self.in_proj_weight, 3)
        biases = [None] * 3 if self.in_proj_bias is None else tnp.split(self.in_proj_bias, 3)
        q, k, v = (
            self._split(F.linear(t, w, b))
            for t, w, b in zip((x, source, source), weights, biases, strict=True)
        )
        y = F.attention(q, k, v, mask, causal)
        result: Tensor = self.out_proj(y.transpose(0, 2, 1, 3).reshape(x.shape))
        return result

    def _split(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        return x.reshape(batch, length, self.heads, size // self.heads).transpose(0, 2, 1, 3)


class Activation(Module):
    """A module that applies one function without parameters, with fixed options."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    @staticmethod
    def function(x: Tensor, **options: object) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x, **self.options)


def _activation(name: str, function: Callable[..., Tensor]) -> type[Activation]:
    return type(
        name,
        (Activation,),
        {"function": staticmethod(function), "__doc__": function.__doc__, "__module__": __name__},
    )


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "ReLU": F.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": F.sigmoid,
    "Tanh": F.tanh,
    "Softmax": F.softmax,
    "ELU": F.elu,
    "LeakyReLU": F.leaky_relu,
    "Hardswish": F.hard_swish,
    "Mish": F.mish,
    "Softplus": F.softplus,
    "MaxPool2d": F.max_pool,
    "AvgPool2d": F.avg_pool,
}
ReLU, GELU, SiLU, Sigmoid, Tanh, Softmax, ELU, LeakyReLU, Hardswish, Mish, Softplus, MaxPool2d, AvgPool2d = (
    _activation(n, f) for n, f in _FUNCTIONS.items()
)
