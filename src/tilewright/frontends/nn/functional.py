"""Functions of neural networks on tensors.

Arguments that are no tensors become tensors: an array, a torch tensor, a number, nested sequences. A function
raises TypeError for elements that no tensor can have, and `TraceError` for a tensor of a trace that is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ...dialects import graph as g
from ...dialects.graph.elementwise import UNARY
from ..trace import random
from ..trace.operands import apply, as_tensor, together
from ..trace.pointwise import where
from ..trace.tensor import Tensor, TensorLike
from .ctc import ctc_loss as ctc_loss
from .losses import binary_cross_entropy as binary_cross_entropy
from .losses import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from .losses import cosine_embedding_loss as cosine_embedding_loss
from .losses import cross_entropy as cross_entropy
from .losses import huber_loss as huber_loss
from .losses import kl_div as kl_div
from .losses import l1_loss as l1_loss
from .losses import mse_loss as mse_loss
from .losses import nll_loss as nll_loss
from .losses import smooth_l1_loss as smooth_l1_loss

Sizes: TypeAlias = int | Sequence[int]
"""One number for all spatial dimensions, or one for each."""


def relu(x: TensorLike) -> Tensor:
    """Return ``max(x, 0)`` of each element, in the shape and type of `x` (numbers of any type).

    Raises:
        ShapeError: `x` has bools.
    """
    return apply(g.Relu, as_tensor(x))


def silu(x: TensorLike) -> Tensor:
    """Return ``x * sigmoid(x)`` (swish) of each element, in the shape and type of `x` (Elfwing et al. 2018).

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.Silu, as_tensor(x))


def gelu(x: TensorLike, *, approximate: str = "none") -> Tensor:
    """Return the Gaussian error linear unit of each element (Hendrycks and Gimpel 2016).

    Args:
        x: A floating-point tensor of any shape.
        approximate: ``none`` is ``x * (1 + erf(x / sqrt(2))) / 2``, ``tanh`` its approximation by tanh.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools, or `approximate` is neither.
    """
    return apply(g.Gelu, as_tensor(x), approximate=approximate)


def softplus(x: TensorLike, *, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return ``log(1 + exp(beta * x)) / beta`` of each element.

    Args:
        x: A floating-point tensor of any shape.
        beta: The factor of `x`.
        threshold: Elements with ``beta * x`` above it stay as they are.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.Softplus, as_tensor(x), beta=beta, threshold=threshold)


def elu(x: TensorLike, *, alpha: float = 1.0, scale: float = 1.0) -> Tensor:
    """Return ``scale * x`` of positive elements, ``scale * alpha * (exp(x) - 1)`` of others.

    The function is that of Clevert et al. 2016; with a `scale` it is SELU (Klambauer et al. 2017).

    Args:
        x: A floating-point tensor of any shape.
        alpha: The factor of negative results.
        scale: The factor of all results.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.Elu, as_tensor(x), alpha=alpha, scale=scale)


def celu(x: TensorLike, *, alpha: float = 1.0) -> Tensor:
    """Return ``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`` of each element (Barron 2017).

    Args:
        x: A floating-point tensor of any shape.
        alpha: The limit for large negative elements is ``-alpha``.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.Celu, as_tensor(x), alpha=alpha)


def leaky_relu(x: TensorLike, *, slope: float = 0.01) -> Tensor:
    """Return `x` of positive elements, ``slope * x`` of others (Maas et al. 2013).

    Args:
        x: A floating-point tensor of any shape.
        slope: The factor of negative elements.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.LeakyRelu, as_tensor(x), slope=slope)


def hard_sigmoid(x: TensorLike, *, alpha: float = 1.0 / 6.0, beta: float = 0.5) -> Tensor:
    """Return ``clip(alpha * x + beta, 0, 1)`` of each element.

    Args:
        x: A floating-point tensor of any shape.
        alpha: The factor of `x`.
        beta: The result for 0.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.HardSigmoid, as_tensor(x), alpha=alpha, beta=beta)


def hard_swish(x: TensorLike) -> Tensor:
    """Return ``x * hard_sigmoid(x)`` of each element, in the shape and type of `x` (Howard et al. 2019).

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.HardSwish, as_tensor(x))


def mish(x: TensorLike) -> Tensor:
    """Return ``x * tanh(softplus(x))`` of each element, in the shape and type of `x` (Misra 2019).

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.Mish, as_tensor(x))


def softsign(x: TensorLike) -> Tensor:
    """Return ``x / (1 + |x|)`` of each element, in the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(g.Softsign, as_tensor(x))


def sigmoid(x: TensorLike) -> Tensor:
    """Return ``1 / (1 + exp(-x))`` of each element, in the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(UNARY["sigmoid"], as_tensor(x))


def tanh(x: TensorLike) -> Tensor:
    """Return the hyperbolic tangent of each element, in the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(UNARY["tanh"], as_tensor(x))


def erf(x: TensorLike) -> Tensor:
    """Return the error function of each element, in the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools.
    """
    return apply(UNARY["erf"], as_tensor(x))


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Return ``exp(x - max) / sum`` along `axis`, in the shape and type of `x`.

    Args:
        x: A floating-point tensor of any shape with at least one dimension.
        axis: The dimension along which the results sum to 1; negative ones count from the last.

    Raises:
        ShapeError: `x` has integers or bools, or no such axis.
    """
    return apply(g.Softmax, as_tensor(x), axis=axis)


def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Return the logarithm of `softmax` along `axis`, computed without overflow, in the shape and type of
    `x`.

    Args:
        x: A floating-point tensor of any shape with at least one dimension.
        axis: The dimension of the softmax; negative ones count from the last.

    Raises:
        ShapeError: `x` has integers or bools, or no such axis.
    """
    return apply(g.LogSoftmax, as_tensor(x), axis=axis)


def linear(x: TensorLike, weight: TensorLike, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, of shape (..., out).

    Args:
        x: The input (..., in).
        weight: The matrix (out, in).
        bias: The vector (out), or None. All three are converted to their common element type.

    Raises:
        ShapeError: The last sizes of `x` and `weight` differ, or the bias does not fit the result.
    """
    y = as_tensor(x) @ as_tensor(weight).T
    return y if bias is None else y + bias


def grouped_matmul(x: TensorLike, weight: TensorLike, index: TensorLike) -> Tensor:
    """Return ``x[i] @ weight[index[i]]`` for each row i, of shape (S, O).

    Only the matrices that `index` contains are read. If rows are sorted by index, each is read once.

    Args:
        x: The rows (S, I), converted to the common element type with `weight`.
        weight: The matrices (G, I, O).
        index: Integers (S) in 0 .. G - 1; one outside of this range stands for the nearest.

    Raises:
        ShapeError: A shape does not fit, or `index` has no integers.
    """
    x, weight = together(x, weight)
    return apply(g.GroupedMatMul, x, weight, as_tensor(index))


def embedding(ids: TensorLike, weight: TensorLike) -> Tensor:
    """Return the rows of a table at integer ids, of shape (..., size).

    Args:
        ids: Integers (...) of any shape in -count .. count - 1; negative ones count from the last row.
        weight: The table (count, size).

    Raises:
        IndexError: `ids` are floating point, or an id that is known while tracing lies outside of `weight`.
            In a run of a compiled model such an id raises `OutOfRangeError`, which is an IndexError.
    """
    return as_tensor(weight)[as_tensor(ids)]


def _parameter(x: TensorLike | None, like: Tensor) -> Tensor | None:
    """Return a factor or summand of a normalization of `like`, in its type or, as float32, in a wider one."""
    if x is None:
        return None
    p, dtype = as_tensor(x), like.type.dtype
    narrow = (p.type.dtype, dtype)
    return p if all(d.is_float and d.bits <= 32 for d in narrow) else as_tensor(p, dtype)


def layer_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    axes: Sequence[int] = (-1,),
    eps: float = 1e-5,
) -> Tensor:
    """Normalize over `axes` to mean 0 and variance 1, then multiply by `weight` and add `bias` (Ba et al.
    2016).

    Args:
        x: A floating-point tensor of any shape.
        weight: Factors of the shape of the axes, or None.
        bias: Summands of the shape of the axes, or None.
        axes: The last dimensions of `x`, as many as are normalized together.
        eps: A number that is added to the variance.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools, or no such axis, or `weight` or `bias` does not broadcast
            to it.
    """
    x = as_tensor(x)
    return apply(g.LayerNorm, x, _parameter(weight, x), _parameter(bias, x), axes=tuple(axes), epsilon=eps)


def rms_norm(
    x: TensorLike, weight: TensorLike | None = None, axes: Sequence[int] = (-1,), eps: float = 1e-6
) -> Tensor:
    """Divide by the root mean square over `axes`, then multiply by `weight` (Zhang and Sennrich 2019).

    Args:
        x: A floating-point tensor of any shape.
        weight: Factors of the shape of the axes, or None.
        axes: The last dimensions of `x`, as many as are normalized together.
        eps: A number that is added to the mean square.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools, or no such axis, or `weight` does not broadcast to it.
    """
    x = as_tensor(x)
    return apply(g.RmsNorm, x, _parameter(weight, x), axes=tuple(axes), epsilon=eps)


def group_norm(
    x: TensorLike,
    groups: int,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize over each of `groups` groups of channels, then multiply by `weight` and add `bias` (Wu and He
    2018).

    Args:
        x: A floating-point tensor (N, C, *spatial).
        groups: The number of groups, which divides C; C groups are instance normalization.
        weight: Factors (C), or None.
        bias: Summands (C), or None.
        eps: A number that is added to the variance.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `x` has integers or bools, the groups do not divide C, or `weight` or `bias` has another
            shape than (C).
    """
    x = as_tensor(x)
    return apply(g.GroupNorm, x, _parameter(weight, x), _parameter(bias, x), groups=groups, epsilon=eps)


def batch_norm(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    weight: TensorLike,
    bias: TensorLike,
    eps: float = 1e-5,
) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` for each channel (Ioffe and Szegedy 2015).

    Args:
        x: A tensor (N, C, *spatial). All five tensors are converted to their common element type.
        mean: The mean (C) of each channel.
        variance: The variance (C) of each channel.
        weight: Factors (C).
        bias: Summands (C).
        eps: A number that is added to the variance.

    Returns:
        A tensor of the shape of `x`.

    Raises:
        ShapeError: The common element type is not floating point, or a tensor has another shape than (C).
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
    """Return ``softmax(scale * q @ k.T + mask) @ v`` for each head, of shape (B, H, S, E) (Vaswani et al.
    2017).

    A query that attends to no key gets zeros.

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

    Raises:
        ShapeError: Shapes do not fit, H is no multiple of G, or `q` is not floating point.
    """
    q = as_tensor(q)
    if k_scale is None and v_scale is None:
        q, k, v = together(q, k, v)
    rest = (None if x is None else as_tensor(x) for x in (mask, k_scale, v_scale, sinks))
    return apply(
        g.Attention, q, as_tensor(k), as_tensor(v), *rest, causal=causal, scale=scale, softcap=softcap
    )


def rotary(x: TensorLike, cos: TensorLike, sin: TensorLike, interleaved: bool = False) -> Tensor:
    """Rotate pairs of elements of `x` by position (rotary position embedding, Su et al. 2021).

    Args:
        x: A tensor (..., S, D) with an even D that is known while tracing.
        cos: Cosines of the angles, broadcast to `x`; each stands at both elements of its pair.
        sin: Sines of the angles, broadcast to `x`.
        interleaved: Whether the pairs are (2i, 2i + 1) instead of (i, i + D / 2).

    Returns:
        A tensor of the shape of `x`, in the common element type of all three.

    Raises:
        ShapeError: D is odd, or known only in the run, or `cos` or `sin` does not broadcast to `x`.
    """
    return apply(g.Rotary, *together(x, cos, sin), interleaved=interleaved)


def dropout(x: TensorLike, p: float, key: TensorLike) -> Tensor:
    """Replace each element by 0 with probability `p`, and divide the others by ``1 - p`` (Srivastava et al.
    2014).

    Args:
        x: A floating-point tensor of any shape.
        p: The probability, at least 0 and less than 1.
        key: The key (2) of `tw.random` that the choice is drawn with.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        ShapeError: `key` is no key.
        ValueError: There is no such probability.
    """
    if not 0 <= p < 1:
        raise ValueError(f"elements are dropped with a probability of at least 0 and less than 1, not {p}")
    x = as_tensor(x)
    keep = random.uniform(key, x.shape) >= p
    return where(keep, x * (1 / (1 - p)), 0)


def several(n: Sizes, rank: int) -> tuple[int, ...]:
    """Return one number for each of `rank` spatial dimensions.

    Args:
        n: One number for all dimensions, or one for each.
        rank: The number of spatial dimensions.
    """
    return (n,) * rank if isinstance(n, int) else tuple(n)


def _both(n: Sizes, rank: int) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in several(n, rank))


def conv(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve `x` with `weight` and add `bias`, in any number of spatial dimensions.

    Args:
        x: The input (N, C, *spatial), in the common element type with `weight`.
        weight: The kernels (O, C / groups, *kernel).
        bias: Summands (O), converted to that type, or None.
        stride: The distance between windows in elements: one number, or one for each spatial dimension.
        padding: The elements of zero on both sides of each dimension, given like `stride`.
        dilation: The distance between elements of a window, given like `stride`.
        groups: The number of groups of channels; it divides C and O, and a group's outputs see its inputs.

    Returns:
        A tensor (N, O, *result) with ``(n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1``
        elements for n in each spatial dimension.

    Raises:
        ShapeError: Ranks, channels, groups or the bias do not fit, the kernel is larger than the padded
            input, or not every spatial dimension has a stride, a padding and a dilation.
    """
    x, weight = together(x, weight)
    bias = None if bias is None else as_tensor(bias, x.dtype)
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
    """Return the largest element of each window.

    Args:
        x: The input (N, C, *spatial), of any type of numbers.
        kernel: The window's size in elements: one number, or one for each spatial dimension.
        stride: The distance between windows in elements, given like `kernel`; None is the kernel's size.
        padding: The elements on both sides of each dimension that no maximum selects, given like `kernel`.

    Returns:
        A tensor (N, C, *result) with ``(n + 2 * padding - kernel) // stride + 1`` elements for n in each
        spatial dimension.

    Raises:
        ShapeError: The kernel has another number of spatial dimensions than `x`.
    """
    return _pool(g.MaxPool, x, kernel, stride, padding)


def avg_pool(x: TensorLike, kernel: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> Tensor:
    """Return the mean of each window, in which padding counts as zeros.

    Args:
        x: The input (N, C, *spatial).
        kernel: The window's size in elements: one number, or one for each spatial dimension.
        stride: The distance between windows in elements, given like `kernel`; None is the kernel's size.
        padding: The elements of zero on both sides of each dimension, given like `kernel`.

    Returns:
        A tensor (N, C, *result) of the type of `x`; sizes are those of `max_pool`.

    Raises:
        ShapeError: The kernel has another number of spatial dimensions than `x`.
    """
    return _pool(g.AvgPool, x, kernel, stride, padding, count_include_pad=True)
