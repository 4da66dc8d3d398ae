"""Functions of neural networks on tensors: each is one graph operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dialects import graph as g
from ...dialects.graph.elementwise import UNARY
from ..trace import Tensor
from ..trace.tensor import apply, as_tensor, together


def _activation(cls: type) -> Any:
    def activation(x: Any, **attributes: Any) -> Tensor:
        return apply(cls, as_tensor(x), **attributes)  # type: ignore[no-any-return]

    activation.__doc__ = cls.__doc__
    activation.__name__ = getattr(cls, "name", "").partition(".")[2]
    return activation


relu, silu, gelu, softplus, elu, celu, leaky_relu, hard_sigmoid, hard_swish, mish, softsign = map(
    _activation,
    (g.Relu, g.Silu, g.Gelu, g.Softplus, g.Elu, g.Celu, g.LeakyRelu, g.HardSigmoid, g.HardSwish, g.Mish, g.Softsign),
)
sigmoid, tanh, erf = (_activation(UNARY[n]) for n in ("sigmoid", "tanh", "erf"))


def softmax(x: Any, axis: int = -1) -> Tensor:
    return apply(g.Softmax, as_tensor(x), axis=axis)  # type: ignore[no-any-return]


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    return apply(g.LogSoftmax, as_tensor(x), axis=axis)  # type: ignore[no-any-return]


def linear(x: Any, weight: Any, bias: Any = None) -> Tensor:
    """``x @ weight.T + bias``: x (..., in), weight (out, in), bias (out)."""
    y = as_tensor(x) @ as_tensor(weight).T
    return y if bias is None else y + bias


def grouped_matmul(x: Any, weight: Any, index: Any) -> Tensor:
    """``x[i] @ weight[index[i]]`` for each row i: x (S, I), `weight` (G, I, O), `index` (S,) integers.

    Only matrices that are chosen are read; where rows are sorted by index, each is read once.
    """
    x, weight = together(x, weight)
    return apply(g.GroupedMatMul, x, weight, as_tensor(index))  # type: ignore[no-any-return]


def embedding(ids: Any, weight: Any) -> Tensor:
    """Rows of `weight` (count, size) at integers `ids`."""
    return as_tensor(weight)[as_tensor(ids)]


def layer_norm(x: Any, weight: Any = None, bias: Any = None, axes: Sequence[int] = (-1,), eps: float = 1e-5) -> Tensor:
    return apply(g.LayerNorm, as_tensor(x), weight, bias, axes=tuple(axes), epsilon=eps)  # type: ignore[no-any-return]


def rms_norm(x: Any, weight: Any = None, axes: Sequence[int] = (-1,), eps: float = 1e-6) -> Tensor:
    return apply(g.RmsNorm, as_tensor(x), weight, axes=tuple(axes), epsilon=eps)  # type: ignore[no-any-return]


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return apply(g.GroupNorm, as_tensor(x), weight, bias, groups=groups, epsilon=eps)  # type: ignore[no-any-return]


def batch_norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Tensor:
    """Normalization of (N, C, ...) by given statistics for each channel."""
    return apply(g.BatchNorm, *together(x, weight, bias, mean, variance), epsilon=eps)  # type: ignore[no-any-return]


def attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None, softcap: float = 0.0, *, k_scale: Any = None,
    v_scale: Any = None, sinks: Any = None,
) -> Tensor:  # fmt: skip
    """``softmax(scale * q k^T + mask) v``; q (B, H, S, D), k (B, G, T, D), v (B, G, T, E). A boolean mask is true where a key is seen; `scale`
    None is ``1 / sqrt(D)``. A `softcap` c other than 0 makes ``c tanh(s / c)`` of scores s before the mask.

    Keys and values may be integers that `k_scale` and `v_scale` (B, G, T) multiply. `sinks` (H) are scores that take part in each row's softmax and have no value."""
    q = as_tensor(q)
    if k_scale is None and v_scale is None:
        q, k, v = together(q, k, v)
    rest = (None if x is None else as_tensor(x) for x in (mask, k_scale, v_scale, sinks))
    return apply(g.Attention, q, as_tensor(k), as_tensor(v), *rest, causal=causal, scale=scale, softcap=softcap)  # type: ignore[no-any-return]


def rotary(x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Tensor:
    """Rotary position embedding of x (..., S, D)."""
    return apply(g.Rotary, *together(x, cos, sin), interleaved=interleaved)  # type: ignore[no-any-return]


def several(n: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    return (n,) * rank if isinstance(n, int) else tuple(n)


def _both(n: int | Sequence[int], rank: int) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in several(n, rank))


def conv(x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Tensor:  # fmt: skip
    """Convolution of (N, C, *spatial) by weight (O, C / groups, *kernel); numbers are for all spatial dimensions or each."""
    x, weight = together(x, weight)
    rank = x.ndim - 2
    sizes = {"strides": several(stride, rank), "padding": _both(padding, rank), "dilations": several(dilation, rank)}
    return apply(g.Conv, x, weight, bias, groups=groups, **sizes)  # type: ignore[no-any-return]


def _pool(cls: type, x: Any, kernel: Any, stride: Any, padding: Any, **attributes: Any) -> Tensor:
    x = as_tensor(x)
    rank = x.ndim - 2
    strides = several(kernel if stride is None else stride, rank)
    return apply(cls, x, kernel=several(kernel, rank), strides=strides, padding=_both(padding, rank), **attributes)  # type: ignore[no-any-return]


def max_pool(x: Any, kernel: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Largest element of each window of (N, C, *spatial)."""
    return _pool(g.MaxPool, x, kernel, stride, padding)


def avg_pool(x: Any, kernel: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Mean of each window of (N, C, *spatial), padding counted."""
    return _pool(g.AvgPool, x, kernel, stride, padding, count_include_pad=True)
