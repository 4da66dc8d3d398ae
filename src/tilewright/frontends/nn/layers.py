"""Layers: modules whose parameters have PyTorch's names and layouts, so that its weights load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...errors import CompileError
from ..trace import Tensor, random, stop_gradient
from ..trace import numpy as tnp
from ..trace.eager import is_compiling
from ..trace.tracing import user_location
from . import functional as F
from .init import generator
from .module import Module, Parameter, parameter


def uniform(shape: Sequence[int], limit: float) -> Parameter:
    """Return a float32 parameter drawn uniformly from ``[-limit, limit]``."""
    return parameter(shape, lambda s: generator().uniform(-limit, limit, s))


def _constant(shape: Sequence[int], value: float) -> Parameter:
    return parameter(shape, lambda s: np.full(s, value))


class Linear(Module):
    """``x @ weight.T + bias``: (..., inputs) to (..., outputs).

    `weight` is (outputs, inputs), `bias` (outputs); both are float32, drawn uniformly from -b .. b for b =
    ``1 / sqrt(inputs)``.

    Args:
        inputs: The last size of the input.
        outputs: The last size of the result.
        bias: Whether to add a bias.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        limit = 1 / math.sqrt(inputs)
        self.weight = uniform((outputs, inputs), limit)
        self.bias = uniform((outputs,), limit) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., outputs) for `x` (..., inputs), in the common element type of `x` and the parameters.

        Raises:
            ShapeError: The last size of `x` differs from `inputs`.
        """
        return F.linear(x, self.weight, self.bias)


class Embedding(Module):
    """A table of vectors: integer ids (...) to their rows of `weight` (count, size), in shape (..., size).

    Args:
        count: The number of vectors.
        size: The number of elements of a vector.
    """

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = parameter((count, size), generator().standard_normal)

    def forward(self, ids: Tensor) -> Tensor:
        """Return (..., size) for integers `ids` (...) in -count .. count - 1.

        Raises:
            IndexError: `ids` are floating point, or one that is known while tracing is out of range.
        """
        return F.embedding(ids, self.weight)

    def attend(self, x: Tensor) -> Tensor:
        """Return ``x @ weight.T``, in the common type: (..., size) to (..., count), for output layers that
        share the embedding's weight.

        Raises:
            ShapeError: The last size of `x` differs from `size`.
        """
        return F.linear(x, self.weight)


class LayerNorm(Module):
    """Normalization to mean 0 and variance 1 over the last dimensions (Ba et al. 2016).

    `weight` and `bias` have the shape of these dimensions.

    Args:
        shape: The sizes of the dimensions that are normalized together; one number is the last dimension
            alone.
        eps: A number that is added to the variance.
        bias: Whether to add a bias.
    """

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        self.axes, self.eps = tuple(range(-len(sizes), 0)), eps
        self.weight = _constant(sizes, 1)
        self.bias = _constant(sizes, 0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized `x` (..., *shape), in its shape and floating-point type.

        Raises:
            ShapeError: `x` has integers or bools.
        """
        return F.layer_norm(x, self.weight, self.bias, self.axes, self.eps)


class RMSNorm(Module):
    """Normalization to mean square 1 over the last dimension (Zhang and Sennrich 2019); `weight` is (size).

    Args:
        size: The number of elements of the last dimension.
        eps: A number that is added to the mean square.
    """

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _constant((size,), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized `x` (..., size), in its shape and floating-point type.

        Raises:
            ShapeError: `x` has integers or bools.
        """
        return F.rms_norm(x, self.weight, eps=self.eps)


class GroupNorm(Module):
    """Normalization of (N, C, *spatial) over groups of channels (Wu and He 2018); `weight` and `bias` are
    (C).

    Args:
        groups: The number of groups, which divides `channels`.
        channels: The number of channels, C.
        eps: A number that is added to the variance.
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight, self.bias = _constant((channels,), 1), _constant((channels,), 0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized `x` (N, C, *spatial), in its shape and floating-point type.

        Raises:
            ShapeError: `x` has integers or bools.
        """
        return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)


class BatchNorm2d(Module):
    """Normalization of each channel of (N, C, H, W) (Ioffe and Szegedy 2015); `weight` and `bias` are (C).

    In training mode the statistics are the batch's; their running averages are used in inference mode.

    Args:
        channels: The number of channels, C.
        eps: A number that is added to the variance.
        momentum: The weight of the newest batch in the running averages `running_mean` and `running_var`,
            both (C).
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = _constant((channels,), 1), _constant((channels,), 0)
        self.running_mean, self.running_var = tnp.zeros(channels), tnp.ones(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized `x` (N, C, H, W), in its shape.

        Raises:
            CompileError: The module is compiled in training mode, and nothing collects the new statistics:
                see `buffer_updates`.
            ShapeError: In training mode, `x` has fewer dimensions than 4.
        """
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps)
        x = tnp.asarray(x)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        count = tnp.asarray(x.size // x.shape[1]).astype(variance.dtype)
        m = self.momentum
        for name, newest in (("running_mean", mean), ("running_var", variance * (count / (count - 1)))):
            held = self.current_buffer(name)
            average = (1 - m) * held + m * stop_gradient(newest)
            self.update_buffer(name, average.astype(held.dtype))
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self.eps)


class Dropout(Module):
    """In training mode each element of a tensor of any shape becomes 0 with probability `p`; the others are
    divided by ``1 - p`` (Srivastava et al. 2014). In inference mode elements stay as they are.

    Args:
        p: The probability, at least 0 and less than 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, of any shape, with elements dropped in training mode.

        Inside of `tw.random.using` the numbers are those of the module's key, else those of `seed`.

        Raises:
            CompileError: The module is compiled in training mode without a key.
        """
        x = tnp.asarray(x)
        if not self.training or not self.p:
            return x
        key = random.key_for(self.path)
        if key is not None:
            return F.dropout(x, self.p, key)
        if is_compiling():
            raise CompileError(
                f"Dropout '{self.path}' in training mode needs a key when it is compiled: write `with "
                "tw.random.using(key):` in the function, with a key that it takes as an argument, or call "
                f"model.eval() first (at {user_location('')})"
            )
        keep = generator().random(x.shape) >= self.p
        return tnp.where(keep, x / (1 - self.p), 0)


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
    """Convolution of (N, inputs, L) to (N, outputs, L'); arguments as of `Conv2d`, one number for each."""

    rank = 1


class Conv2d(_Conv):
    """Convolution of (N, inputs, H, W) to (N, outputs, H', W'); `functional.conv` gives the sizes.

    `weight` is (outputs, inputs / groups, *kernel), `bias` (outputs).

    Args:
        inputs: The number of input channels.
        outputs: The number of output channels.
        kernel: The kernel's size in elements: one number, or one for each spatial dimension, as all that
            follow.
        stride: The distance between windows in elements.
        padding: The elements of zero on both sides of each dimension.
        dilation: The distance between elements of a window.
        groups: The number of groups of channels, which divides `inputs` and `outputs`.
        bias: Whether to add a bias.
    """

    rank = 2


class MultiHeadAttention(Module):
    """Attention of x (B, S, size) to itself or to `memory` (B, T, size) (Vaswani et al. 2017).

    Parameters have the names and layouts of `torch.nn.MultiheadAttention`.

    Args:
        size: The number of elements of a vector of `x`, of `memory` and of the result.
        heads: The number of heads, which divides `size`.
        bias: Whether the projections add a bias.

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
        """Return the attended values (B, S, size).

        Args:
            x: The queries' source (B, S, size).
            memory: The source (B, T, size) of keys and values; None is `x`.
            mask: Broadcast to (B, heads, S, T). Booleans are true where a query attends to a key; numbers are
                added to scores.
            causal: Whether a query attends only to keys up to its own position.

        Raises:
            ShapeError: The last size of `x` or `memory` differs from `size`.
            ValueError: `x` or `memory` does not have three dimensions.
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
    """A module that applies one function without parameters, with fixed options.

    Args:
        **options: Keyword arguments of the function; it checks them when the module is called.
    """

    function: ClassVar[Callable[..., Tensor]]
    """The function of a tensor and the options."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x, **self.options)


class ReLU(Activation):
    """``max(x, 0)`` of each element of a tensor of any shape; see `functional.relu`."""

    function = staticmethod(F.relu)


class GELU(Activation):
    """The Gaussian error linear unit of each element, in any shape; options as of `functional.gelu`."""

    function = staticmethod(F.gelu)


class SiLU(Activation):
    """``x * sigmoid(x)`` of each element of a tensor of any shape; see `functional.silu`."""

    function = staticmethod(F.silu)


class Sigmoid(Activation):
    """``1 / (1 + exp(-x))`` of each element of a tensor of any shape; see `functional.sigmoid`."""

    function = staticmethod(F.sigmoid)


class Tanh(Activation):
    """The hyperbolic tangent of each element of a tensor of any shape; see `functional.tanh`."""

    function = staticmethod(F.tanh)


class Softmax(Activation):
    """The softmax along a dimension of a tensor of any shape; options as of `functional.softmax`."""

    function = staticmethod(F.softmax)


class ELU(Activation):
    """The exponential linear unit of each element, in any shape; options as of `functional.elu`."""

    function = staticmethod(F.elu)


class LeakyReLU(Activation):
    """`x` or ``slope * x`` of each element, in any shape; options as of `functional.leaky_relu`."""

    function = staticmethod(F.leaky_relu)


class Hardswish(Activation):
    """``x * hard_sigmoid(x)`` of each element of a tensor of any shape; see `functional.hard_swish`."""

    function = staticmethod(F.hard_swish)


class Mish(Activation):
    """``x * tanh(softplus(x))`` of each element of a tensor of any shape; see `functional.mish`."""

    function = staticmethod(F.mish)


class Softplus(Activation):
    """``log(1 + exp(beta * x)) / beta`` of elements, in any shape; options as of `functional.softplus`."""

    function = staticmethod(F.softplus)


class MaxPool2d(Activation):
    """The largest element of each window of (N, C, H, W); options as of `functional.max_pool`."""

    function = staticmethod(F.max_pool)


class AvgPool2d(Activation):
    """The mean of each window of (N, C, H, W); options as of `functional.avg_pool`."""

    function = staticmethod(F.avg_pool)
