"""The loss of sequences without an alignment, under PyTorch's names."""

from __future__ import annotations

from ...dialects import graph as g
from ...dialects.graph.operands import differ
from ...errors import ShapeError
from ..trace import numpy as tnp
from ..trace.index import check_index
from ..trace.operands import apply, as_tensor
from ..trace.pointwise import where
from ..trace.tensor import Tensor, TensorLike
from ..trace.tracing import user_location
from .losses import Loss, reduced


def ctc_loss(
    log_probs: TensorLike,
    targets: TensorLike,
    input_lengths: TensorLike,
    target_lengths: TensorLike,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the negative logarithm of the probability of label sequences, summed over all alignments
    (connectionist temporal classification: Graves et al. 2006).

    The gradient is that by `log_probs` themselves. PyTorch returns the gradient for outputs of a
    ``log_softmax``, which differs by ``exp(log_probs)``; behind a ``log_softmax`` both are the same.

    Args:
        log_probs: Logarithms of probabilities (T, N, C) of C classes at T times, or (T, C).
        targets: Labels (N, S) other than `blank`, or all of them one after the other, (sum of
            `target_lengths`), integers; (S) beside `log_probs` (T, C).
        input_lengths: The times that count, at most T, (N) or ().
        target_lengths: The labels that count, at most S, (N) or ().
        blank: The class of no label.
        reduction: ``mean`` divides each loss by the number of its labels, and is the mean over N; ``sum``; or
            ``none`` for a loss of each sequence.
        zero_infinity: Whether a sequence of labels that is too long for its times has the loss 0 and no
            gradient, and not an infinite one.

    Returns:
        A scalar, or (N), in the type of `log_probs`.

    Raises:
        ShapeError: Shapes or types do not fit, or `blank` is no class.
        CompileError: There is no such reduction.
    """
    x, y = as_tensor(log_probs), as_tensor(targets)
    times, counts = as_tensor(input_lengths), as_tensor(target_lengths)
    single = x.ndim == 2
    if not x.type.dtype.is_float or x.ndim not in (2, 3):
        raise ShapeError(
            f"log_probs are floating point, of shape (T, N, C) or (T, C), not {x.dtype} {tuple(x.shape)} (at "
            f"{user_location('')})"
        )
    for name, given in (("targets", y), ("input_lengths", times), ("target_lengths", counts)):
        if not given.type.dtype.is_integer:
            raise ShapeError(f"{name} are integers, not {given.dtype} (at {user_location('')})")
    if single:
        x, y, times, counts = x[:, None], y[None], times.reshape(1), counts.reshape(1)
    t, n, classes = x.shape
    for name, given in (("input_lengths", times), ("target_lengths", counts)):
        if given.ndim != 1 or differ(given.shape[0], n):
            raise ShapeError(f"{name} have shape {tuple(given.shape)}, not ({n},) (at {user_location('')})")
    if y.ndim not in (1, 2) or y.ndim == 2 and differ(y.shape[0], n):
        raise ShapeError(
            f"targets have shape {tuple(y.shape)}, not ({n}, S) or one dimension (at {user_location('')})"
        )
    if isinstance(classes, int) and not 0 <= blank < classes:
        raise ShapeError(f"blank={blank} is none of the {classes} classes (at {user_location('')})")
    y, times, counts = (v.astype("int64") for v in (y, times, counts))
    if y.ndim == 1:  # The labels of a sequence begin where those before it end.
        total = y.shape[0]
        places = tnp.expand_dims(tnp.cumsum(counts) - counts, 1) + tnp.arange(total)
        y = y[tnp.minimum(places, total - 1)]
    check_index(times, t + 1, wraps=False)
    check_index(counts, y.shape[1] + 1, wraps=False)
    used = tnp.arange(y.shape[1]) < tnp.expand_dims(counts, 1)
    check_index(where(used, y, 0), classes, wraps=False)
    loss = apply(g.CtcLoss, x, y, times, counts, blank=blank)
    if zero_infinity:
        loss = where(loss == float("inf"), 0.0, loss)
    if reduction == "mean":
        return (loss / tnp.maximum(counts, 1).astype(loss.dtype)).mean()
    return loss[0] if single and reduction == "none" else reduced(loss, reduction)


class CTCLoss(Loss):
    """The loss of sequences without an alignment.

    Options are those of `functional.ctc_loss`.
    """

    function = staticmethod(ctc_loss)


__all__ = ["CTCLoss", "ctc_loss"]
