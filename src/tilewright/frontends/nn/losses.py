"""Losses under PyTorch's names: functions of predictions and targets.

Targets are constants or tensors; gradients flow to both where they are floating point. `reduction` is
``mean``, ``sum`` or ``none``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ...dialects import graph as g
from ...errors import CompileError, ShapeError
from ..trace import numpy as tnp
from ..trace.operands import apply, as_tensor, together
from ..trace.pointwise import where
from ..trace.tensor import Tensor, TensorLike
from ..trace.tracing import user_location
from .module import Module


def reduced(x: Tensor, reduction: str) -> Tensor:
    """Return a tensor of losses as it is, their sum or their mean.

    Raises:
        CompileError: There is no such reduction.
    """
    if reduction == "none":
        return x
    if reduction == "sum":
        return x.sum()
    if reduction == "mean":
        return x.mean()
    raise CompileError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r} (at {user_location('')})")


def _pair(input: TensorLike, target: TensorLike) -> tuple[Tensor, Tensor]:
    x, y = together(input, target)
    if not x.type.dtype.is_float:
        raise ShapeError(f"a loss is that of floating-point predictions, not {x.dtype}")
    if x.ndim != y.ndim:
        raise ShapeError(
            f"predictions of shape {tuple(x.shape)} do not fit targets of shape {tuple(y.shape)}: reshape "
            f"one of them (at {user_location('')})"
        )
    return x, y


def mse_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """Return the square of ``input - target``.

    Args:
        input: Predictions of any shape, floating point.
        target: Targets of that shape.
        reduction: ``mean``, ``sum``, or ``none`` for a loss of each element.

    Returns:
        A scalar, or the shape of `input`, in their common type.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
    """
    x, y = _pair(input, target)
    return reduced((x - y) * (x - y), reduction)


def l1_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """Return the absolute value of ``input - target``; arguments, result and errors as of `mse_loss`, shape
    (...) included.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
    """
    x, y = _pair(input, target)
    return reduced(abs(x - y), reduction)


def huber_loss(input: TensorLike, target: TensorLike, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return half the square of small differences, and ``delta * (|d| - delta / 2)`` of larger ones d (Huber
    1964).

    Args:
        input: Predictions of any shape, floating point.
        target: Targets of that shape.
        reduction: As of `mse_loss`.
        delta: The difference that separates small from large, more than 0.

    Returns:
        A scalar, or the shape of `input`, in their common type.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
        ValueError: `delta` is not positive.
    """
    if not delta > 0:
        raise ValueError(f"delta is {delta}, and must be more than 0")
    x, y = _pair(input, target)
    d = abs(x - y)
    return reduced(where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta)), reduction)


def smooth_l1_loss(
    input: TensorLike, target: TensorLike, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Return `huber_loss` divided by `beta`, which is its `delta`; with 0 `l1_loss`, in the types and shapes
    of these.

    Args:
        input: Predictions of any shape, floating point.
        target: Targets of that shape.
        reduction: As of `mse_loss`.
        beta: The difference that separates small from large, at least 0.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
        ValueError: `beta` is negative.
    """
    if beta == 0:
        return l1_loss(input, target, reduction)
    if beta < 0:
        raise ValueError(f"beta is {beta}, and must be at least 0")
    x, y = _pair(input, target)
    d = abs(x - y)
    return reduced(where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta), reduction)


def binary_cross_entropy(
    input: TensorLike, target: TensorLike, weight: TensorLike | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the cross-entropy of probabilities and binary targets, whose logarithms are at least -100.

    Args:
        input: Probabilities of any shape, in 0 .. 1.
        target: Targets of that shape, in 0 .. 1.
        weight: Factors of the elements' losses, which broadcast, or None.
        reduction: As of `mse_loss`.

    Returns:
        A scalar, or the shape of `input`, in their common type.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
    """
    x, y = _pair(input, target)
    # The logarithms' arguments are limited too, because the gradient of a limited infinity is no number.
    least = 2.0**-126
    first = tnp.maximum(tnp.log(tnp.maximum(x, least)), -100.0)
    second = tnp.maximum(tnp.log(tnp.maximum(1 - x, least)), -100.0)
    loss = -(y * first + (1 - y) * second)
    return reduced(loss if weight is None else loss * as_tensor(weight, x.dtype), reduction)


def binary_cross_entropy_with_logits(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    reduction: str = "mean",
    pos_weight: TensorLike | None = None,
) -> Tensor:
    """Return the cross-entropy of binary targets and the sigmoids of logits, computed without overflow.

    Args:
        input: Logits of any shape.
        target: Targets of that shape, in 0 .. 1.
        weight: Factors of the elements' losses, which broadcast, or None.
        reduction: As of `mse_loss`.
        pos_weight: Factors of the losses of positive targets, which broadcast, or None.

    Returns:
        A scalar, or the shape of `input`, in their common type.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
    """
    x, y = _pair(input, target)
    negative = apply(g.Softplus, -x, threshold=40.0)  # -log(sigmoid(x))
    factor: Any = 1.0 if pos_weight is None else 1 + (as_tensor(pos_weight, x.dtype) - 1) * y
    loss = (1 - y) * x + factor * negative
    return reduced(loss if weight is None else loss * as_tensor(weight, x.dtype), reduction)


def kl_div(
    input: TensorLike, target: TensorLike, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return the Kullback-Leibler divergence ``target * (log(target) - input)`` of each element.

    Args:
        input: Log-probabilities of any shape.
        target: Probabilities of that shape, or with `log_target` their logarithms.
        reduction: As of `mse_loss`; ``batchmean`` is the sum divided by the first size.
        log_target: Whether `target` has logarithms.

    Returns:
        A scalar, or the shape of `input`, in their common type.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
    """
    x, y = _pair(input, target)
    if log_target:
        loss = tnp.exp(y) * (y - x)
    else:
        positive = y > 0
        loss = where(positive, y * tnp.log(where(positive, y, 1.0)), 0.0) - y * x
    if reduction == "batchmean":
        return loss.sum() / as_tensor(x.shape[0], x.dtype)
    return reduced(loss, reduction)


def cosine_embedding_loss(
    input1: TensorLike,
    input2: TensorLike,
    target: TensorLike,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return 1 minus the cosine of two vectors where the target is 1, and the part of the cosine above
    `margin` where it is -1.

    Args:
        input1: Vectors (N, D), or one (D).
        input2: Vectors of that shape.
        target: 1 or -1 for each pair, (N) or ().
        margin: The cosine up to which vectors of target -1 have no loss.
        reduction: As of `mse_loss`.

    Returns:
        A scalar, or (N), in the common type of the vectors.

    Raises:
        ShapeError: The shapes do not fit, or `input1` is not floating point.
        CompileError: There is no such reduction.
    """
    x, y = _pair(input1, input2)
    sign, eps = as_tensor(target), 1e-12
    dot, a, b = (x * y).sum(-1), (x * x).sum(-1) + eps, (y * y).sum(-1) + eps
    cosine = dot / tnp.sqrt(a * b)
    zero = cosine * 0
    loss = where(sign == 1, 1 - cosine, zero) + where(sign == -1, tnp.maximum(cosine - margin, 0.0), zero)
    return reduced(loss, reduction)


def nll_loss(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log-probability of each target's class.

    Args:
        input: Log-probabilities (C) or (N, C, ...).
        target: Class indices, () or (N, ...), integers in 0 .. C - 1 or `ignore_index`.
        weight: Factors (C) of the classes' losses, or None. The mean is that of the factors, too.
        ignore_index: The target that has no loss and does not count in the mean.
        reduction: As of `mse_loss`.

    Returns:
        A scalar, or the shape of `target`, in the type of `input`.

    Raises:
        ShapeError: The shapes do not fit, `input` is not floating point, or `target` has no integers.
        CompileError: There is no such reduction.
    """
    x, y, factor = _classes(input, target, weight, ignore_index)
    return _weighted(-_picked(x, y) * factor, factor, reduction)


def cross_entropy(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross-entropy of logits and class indices or class probabilities.

    The gradient by the logits is their softmax minus the target's distribution, without overflow.

    Args:
        input: Logits (C) or (N, C, ...).
        target: Class indices, () or (N, ...), integers in 0 .. C - 1 or `ignore_index`; or probabilities of
            the shape of `input`, floating point.
        weight: Factors (C) of the classes' losses, or None. The mean of losses of indices is that of the
            factors, too.
        ignore_index: The index that has no loss and does not count in the mean.
        reduction: As of `mse_loss`.
        label_smoothing: The share of the target's distribution that is spread equally over all classes.

    Returns:
        A scalar, or the shape of `input` without C, in the type of `input`.

    Raises:
        ShapeError: The shapes do not fit, or `input` is not floating point.
        CompileError: There is no such reduction.
        ValueError: `label_smoothing` is not in 0 .. 1.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}, and must be in 0 .. 1")
    x, y = as_tensor(input), as_tensor(target)
    if y.type.dtype.is_float:
        return _of_probabilities(x, y, weight, reduction, label_smoothing)
    x, y, factor = _classes(x, y, weight, ignore_index)
    logs = apply(g.LogSoftmax, x, axis=-1)
    hard = _weighted(-_picked(logs, y) * factor, factor, reduction)
    if not label_smoothing:
        return hard
    counts = where(as_tensor(target) == ignore_index, 0.0, 1.0).astype(x.dtype)
    each = logs if weight is None else logs * as_tensor(weight, x.dtype)
    smooth = _weighted(-each.sum(-1) * counts, factor, reduction)
    share = label_smoothing / _known_classes(x)
    return (1 - label_smoothing) * hard + share * smooth


def _of_probabilities(
    x: Tensor, y: Tensor, weight: TensorLike | None, reduction: str, smoothing: float
) -> Tensor:
    x, y = _pair(x, y)
    axis = 0 if x.ndim == 1 else 1
    if tuple(x.shape) != tuple(y.shape):
        raise ShapeError(
            f"logits of shape {tuple(x.shape)} do not fit probabilities of shape {tuple(y.shape)} (at "
            f"{user_location('')})"
        )
    x, y = tnp.moveaxis(x, axis, -1), tnp.moveaxis(y, axis, -1)
    if smoothing:
        y = y * (1 - smoothing) + smoothing / _known_classes(x)
    if weight is not None:
        y = y * as_tensor(weight, x.dtype)
    # PyTorch's mean of probabilities' losses is that over the rows, whatever the factors of the classes are.
    return reduced(-(apply(g.LogSoftmax, x, axis=-1) * y).sum(-1), reduction)


def _known_classes(x: Tensor) -> int:
    classes = x.shape[-1]
    if not isinstance(classes, int):
        raise ShapeError(f"the number of classes, {classes}, is known only in the run")
    return classes


def _classes(
    input: TensorLike, target: TensorLike, weight: TensorLike | None, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The predictions with the classes last, the targets with 0 for ignored ones, and the factor of each
    target's loss.
    """
    x, y = as_tensor(input), as_tensor(target)
    if not x.type.dtype.is_float or not y.type.dtype.is_integer:
        raise ShapeError(
            f"predictions are floating point and class indices integers, not {x.dtype} and {y.dtype} (at "
            f"{user_location('')})"
        )
    if not x.ndim or y.ndim != x.ndim - 1 or tuple(y.shape) != (*x.shape[:1], *x.shape[2:])[: y.ndim]:
        raise ShapeError(
            f"predictions of shape {tuple(x.shape)} need class indices without the axis of the classes, not "
            f"of shape {tuple(y.shape)} (at {user_location('')})"
        )
    if x.ndim > 2:
        x = tnp.moveaxis(x, 1, -1)
    counts = y != ignore_index
    y = where(counts, y, 0)
    factor = counts.astype(x.dtype)
    if weight is not None:
        factor = factor * as_tensor(weight, x.dtype)[y]
    return x, y, factor


def _picked(x: Tensor, y: Tensor) -> Tensor:
    """The element of each row's class: (..., C) and (...) to (...)."""
    return tnp.take_along_axis(x, tnp.expand_dims(y, -1), axis=-1)[..., 0]


def _weighted(loss: Tensor, factor: Tensor, reduction: str) -> Tensor:
    return loss.sum() / factor.sum() if reduction == "mean" else reduced(loss, reduction)


class Loss(Module):
    """A module that applies a loss with fixed options.

    Args:
        **options: Keyword arguments of the function; it checks them when the module is called.
    """

    function: ClassVar[Callable[..., Tensor]]
    """The function of predictions, targets and the options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, *tensors: TensorLike) -> Tensor:
        """Return the loss of predictions and targets; shapes, types and errors are those of the function.

        Args:
            *tensors: The function's tensors: predictions and targets (N, ...).
        """
        return type(self).function(*tensors, **self.options)


class BCELoss(Loss):
    """The cross-entropy of probabilities and binary targets.

    Options are those of `functional.binary_cross_entropy`.
    """

    function = staticmethod(binary_cross_entropy)


class BCEWithLogitsLoss(Loss):
    """The cross-entropy of binary targets and the sigmoids of logits.

    Options are those of `functional.binary_cross_entropy_with_logits`.
    """

    function = staticmethod(binary_cross_entropy_with_logits)


class CosineEmbeddingLoss(Loss):
    """A loss of the cosines of pairs of vectors.

    Options are those of `functional.cosine_embedding_loss`.
    """

    function = staticmethod(cosine_embedding_loss)


class CrossEntropyLoss(Loss):
    """The cross-entropy of logits and class indices or probabilities.

    Options are those of `functional.cross_entropy`.
    """

    function = staticmethod(cross_entropy)


class HuberLoss(Loss):
    """Half the square of small differences, and a linear function of larger ones.

    Options are those of `functional.huber_loss`.
    """

    function = staticmethod(huber_loss)


class KLDivLoss(Loss):
    """The Kullback-Leibler divergence.

    Options are those of `functional.kl_div`.
    """

    function = staticmethod(kl_div)


class L1Loss(Loss):
    """The mean absolute difference.

    Options are those of `functional.l1_loss`.
    """

    function = staticmethod(l1_loss)


class MSELoss(Loss):
    """The mean square of differences.

    Options are those of `functional.mse_loss`.
    """

    function = staticmethod(mse_loss)


class NLLLoss(Loss):
    """The negative log-probability of each target's class.

    Options are those of `functional.nll_loss`.
    """

    function = staticmethod(nll_loss)


class SmoothL1Loss(Loss):
    """The Huber loss divided by its delta.

    Options are those of `functional.smooth_l1_loss`.
    """

    function = staticmethod(smooth_l1_loss)


__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "Loss",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]
