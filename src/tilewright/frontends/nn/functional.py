"""Functions of neural networks on tensors, each one graph operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...dialects import graph as g
from ...dialects.graph.elementwise import UNARY
from ..trace.operands import apply, as_tensor, together
from ..trace.tensor import Tensor, TensorLike

Sizes: TypeAlias = int | Sequence[int]
"""One number for all spatial dimensions, or one for each."""


def _activation(cls: type) -> Callable[..., Tensor]:
    def activation(x: TensorLike, **attributes: object) -> Tensor:
        return apply(cls, as_tensor(x), **attributes)

    activation.__doc__ = cls.__doc__
    activation.__name__ = getattr(cls, "name", "").partition(".")[2]
    return activation


relu, silu, gelu, softplus, elu, celu, leaky_relu, hard_sigmoid, hard_swish, mish, softsign = map(
    _activation,
    (
        g.Relu,
        g.Silu,
        g.Gelu,
        g.Softplus,
        g.Elu,
        g.Celu,
        g.LeakyRelu,
        g.HardSigmoid,
        g.HardSwish,
        g.Mish,
        g.Softsign,
    ),
)
sigmoid, tanh, erf = (_activation(UNARY[n]) for n in ("sigmoid", "tanh", "erf"))


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Return ``exp(x - max) / sum`` along `axis`, in the shape and type of `x`."""
    return apply(g.Softmax, as_tensor(x), axis=axis)


def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Return the logarithm of `softmax` along `axis`, computed without overflow."""
    return apply(g.LogSoftmax, as_tensor(x), axis=axis)


def linear(x: TensorLike, weight: TensorLike, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``: x (..., in), weight (out, in), bias (out); the result is (..., out)."""
    y = as_tensor(x) @ as_tensor(weight).T
    return y if bias is None else y + bias


def grouped_matmul(x: TensorLike, weight: TensorLike, index: TensorLike) -> Tensor:
    """Return ``x[i] @ weight[index[i]]`` for each row i: x (S, I), `weight` (G, I, O), `index` (S,) integers;
    the result is (S, O).

    Only the matrices that `index` contains are read. If rows are sorted by index, each is read once.
    """
    x, weight = together(x, weight)
    return apply(g.GroupedMatMul, x, weight, as_tensor(index))


def embedding(ids: TensorLike, weight: TensorLike) -> Tensor:
    """Return the rows of `weight` (count, size) at integers `ids` (...), in shape (..., size).

    Raises:
        IndexError: An id that is known while tracing lies outside of `weight`.
    """
    return as_tensor(weight)[as_tensor(ids)]


def layer_norm(
    x: TensorLike,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    axes: Sequence[int] = (-1,),
    eps: float = 1e-5,
) -> Tensor:
    """Normalize over `axes` to mean 0 and variance 1, then multiply by `weight` and add `bias`, both of the
    shape of these axes (Ba et al. 2016). `eps` is added to the variance.
    """
    return apply(g.LayerNorm, as_tensor(x), weight, bias, axes=tuple(axes), epsilon=eps)


def rms_norm(
    x: TensorLike, weight: Tensor | None = None, axes: Sequence[int] = (-1,), eps: float = 1e-6
) -> Tensor:
    """Divide by the root mean square over `axes`, then multiply by `weight`, of the shape of these axes
    (Zhang and Sennrich 2019). `eps` is added to the mean square.
    """
    return apply(g.RmsNorm, as_tensor(x), weight, axes=tuple(axes), epsilon=eps)


def group_norm(
    x: TensorLike,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize `x` (N, C, ...) over each of `groups` groups of channels, then multiply by `weight` (C) and
    add `bias` (C) (Wu and He 2018). `eps` is added to the variance.
    """
    return apply(g.GroupNorm, as_tensor(x), weight, bias, groups=groups, epsilon=eps)


def batch_norm(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    weight: TensorLike,
    bias: TensorLike,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize `x` (N, C, ...) by given statistics of each channel: ``(x - mean) / sqrt(variance + eps) *
    weight + bias``, all four of shape (C) (Ioffe and Szegedy 2015).
    """
    return apply(g.BatchNorm, *together(x, weight, bias, mean, variance), epsilon=eps)


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    *,
    k_scale: TensorLike | None = None,
    v_scale: TensorLike | None = None,
    sinks: TensorLike | None = None,
) -> Tensor:
    """Return ``softmax(scale * q @ k.T + mask) @ v`` for each head, of shape (B, H, S, E).

    Args:
        q: Queries (B, H, S, D).
        k: Keys (B, G, T, D). H is a multiple of G: groups of H / G query heads share a key head.
        v: Values (B, G, T, E).
        mask: Broadcast to (B, H, S, T). Booleans are true where a query attends to a key; numbers are added
            to scores.
        causal: Whether query i attends only to keys up to i.
        scale: The factor of the scores; None is ``1 / sqrt(D)``.
        softcap: If c is not 0, scores s become ``c * tanh(s / c)`` before the mask.
        k_scale: Factors (B, G, T) of quantized keys, which may be integers.
        v_scale: Factors (B, G, T) of quantized values, which may be integers.
        sinks: Scores (H) that take part in each row's softmax but have no value.

    A query that attends to no key gets zeros.
    """
    q = as_tensor(q)
    if k_scale is None and v_scale is None:
        q, k, v = together(q, k, v)
    rest = (None if x is None else as_tensor(x) for x in (mask, k_scale, v_scale, sinks))
    return apply(
        g.Attention, q, as_tensor(k), as_tensor(v), *rest, causal=causal, scale=scale, softcap=softcap
    )


def rotary(x: TensorLike, cos: TensorLike, sin: TensorLike, interleaved: bool = False) -> Tensor:
    """Rotate pairs of elements of x (..., S, D) by position (rotary position embedding, Su et al. 2021).

    `cos` and `sin` are broadcast to x. The pairs are (i, i + D / 2), or if `interleaved` (2i, 2i + 1).
    """
    return apply(g.Rotary, *together(x, cos, sin), interleaved=interleaved)


def several(n: Sizes, rank: int) -> tuple[int, ...]:
    """Return one number for each of `rank` spatial dimensions."""
    return (n,) * rank if isinstance(n, int) else tuple(n)


def _both(n: Sizes, rank: int) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in several(n, rank))


def conv(
    x: TensorLike,
    weight: TensorLike,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve `x` (N, C, *spatial) with `weight` (O, C / groups, *kernel) and add `bias` (O), in any number
    of spatial dimensions. `stride`, `padding` (elements of zero on both sides) and `dilation` are one number,
    or one for each spatial dimension.
    """
    x, weight = together(x, weight)
    rank = x.ndim - 2
    sizes = {
        "strides": several(stride, rank),
        "padding": _both(padding, rank),
        "dilations": several(dilation, rank),
    }
    return apply(g.Conv, x, weight, bias, groups=groups, **sizes)


def _pool(
    cls: type, x: TensorLike, kernel: Sizes, stride: Sizes | None, padding: Sizes, **attributes: object
) -> Tensor:
    x = as_tensor(x)
    rank = x.ndim - 2
    strides = several(kernel if stride is None else stride, rank)
    return apply(
        cls, x, kernel=several(kernel, rank), strides=strides, padding=_both(padding, rank), **attributes
    )


def max_pool(x: TensorLike, kernel: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> Tensor:
    """Return the largest element of each window of `x` (N, C, *spatial). `kernel`, `stride` (None: the
    kernel) and `padding` are one number, or one for each spatial dimension.
    """
    return _pool(g.MaxPool, x, kernel, stride, padding)


def avg_pool(x: TensorLike, kernel: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> Tensor:
    """Return the mean of each window of `x` (N, C, *spatial), padding counted as zeros; arguments as in
    `max_pool`.
    """
    return _pool(g.AvgPool, x, kernel, stride, padding, count_include_pad=True)
