"""`sample`: draws tokens from logits inside a library; the results equal those of
`engine.sampling.choose`.
"""

from __future__ import annotations

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp

CANDIDATES = 64
"""Number of most probable tokens that are considered if sampling is restricted. A larger value costs time per
token.
"""
UNDECIDED = -2
"""The token of a row for which `CANDIDATES` are too few: the caller decides from the logits."""
NONE = -1
"""The token of a row that allows no token, or contains NaN or infinity."""


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """A token for each row of logits [batch, vocabulary], and its log-probability: int32 and float32 [batch].

    Args:
        temperature: float32 [batch]; less than 1e-5 takes the most probable token, the first of equal ones.
        top_k: int32 [batch], 0 for all; `top_p`, `min_p`: float32 [batch], 1 and 0 for all; see
            `SamplingParameters`.
        uniform: float64 [batch] in [0, 1), the random numbers. Cumulative probabilities run in the order of
            token numbers if all tokens or those of min-p alone may be drawn, else from the most probable
            token on.

    Returns:
        The token is `NONE` if the row's greatest logit is not finite, and `UNDECIDED` if more than
        `CANDIDATES` tokens, but not all, may be drawn.
    """
    best, first = tnp.max(logits, axis=1), tnp.argmax(logits, axis=1)
    greedy = temperature < 1e-5
    scale = (1 / tnp.where(greedy, 1, temperature))[:, None]
    weights = tnp.astype(tnp.exp((logits - best[:, None]) * scale), "float64")
    sums = tnp.cumsum(weights, axis=1)
    whole = sums[:, -1]
    any_token = _passed(sums, uniform * whole)

    top, ids = candidates(logits)
    w = tnp.astype(tnp.exp((top - best[:, None]) * scale), "float64")
    count = top.shape[1]
    rank = tnp.arange(count)
    limited, cut = (top_k > 0) & (top_k < logits.shape[1]), min_p > 0
    keep = ((rank < top_k[:, None]) | ~limited[:, None]) & ((w >= min_p[:, None]) | (rank == 0))
    kept = tnp.where(keep, w, 0)
    mass = tnp.where(limited | cut, tnp.sum(kept, axis=1), whole)
    goal = top_p * mass
    sums = tnp.cumsum(kept, axis=1)
    keep = keep & ((top_p >= 1)[:, None] | (sums - kept < goal[:, None]))
    # As in the engine, tokens keep the order of their numbers if min-p alone excludes some.
    alone = (cut & ~limited & (top_p >= 1))[:, None]
    order = tnp.argsort(tnp.where(alone, tnp.where(keep, ids, logits.shape[1]), rank), axis=1)
    ids, drawn = tnp.take_along_axis(ids, order, 1), tnp.take_along_axis(tnp.where(keep, w, 0), order, 1)
    sums = tnp.cumsum(drawn, axis=1)
    place = tnp.minimum(_passed(sums, uniform * sums[:, -1]), tnp.sum(tnp.astype(keep, "int64"), axis=1) - 1)
    some_token = tnp.take_along_axis(ids, place[:, None], 1)[:, 0]
    # No token beyond the candidates may be drawn.
    ends = (limited & (top_k <= count)) | (cut & (w[:, -1] < min_p))
    enough = tnp.where(limited | cut, ends, sums[:, -1] >= goal) | (logits.shape[1] <= count)

    chosen = tnp.where(limited | cut | (top_p < 1), tnp.where(enough, some_token, UNDECIDED), any_token)
    chosen = tnp.where(greedy, first, chosen)
    finite = tnp.abs(best) < float("inf")
    chosen = tnp.where(finite, chosen, NONE)
    logit = tnp.take_along_axis(logits, tnp.maximum(chosen, 0)[:, None], 1)[:, 0]
    logprob = logit - best - tnp.log(tnp.sum(tnp.exp(logits - best[:, None]), axis=1))
    return tnp.astype(chosen, "int32"), logprob


def _passed(sums: Tensor, goal: Tensor) -> Tensor:
    """The first index at which running sums [batch, n] exceed a goal [batch]: int64 [batch], less than n."""
    below = tnp.astype(sums <= goal[:, None], "int64")
    result: Tensor = tnp.minimum(tnp.sum(below, axis=1), sums.shape[1] - 1)
    return result


def candidates(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest logits of each row in descending order, and their indices; the first of equal ones comes
    first.

    They lie in the blocks with the greatest maxima, as many as candidates. Two short selections so replace
    one over a long row.
    """
    batch, n = logits.shape
    if n <= CANDIDATES * CANDIDATES:
        result: tuple[Tensor, Tensor] = tnp.topk(logits, min(CANDIDATES, n))
        return result
    blocks = -(-n // CANDIDATES)
    missing = tnp.full((batch, blocks * CANDIDATES - n), -float("inf"), logits.dtype)
    padded = tnp.concatenate([logits, missing], 1).reshape(batch, blocks, CANDIDATES)
    _, best_blocks = tnp.topk(tnp.max(padded, axis=2), CANDIDATES)
    best_blocks = tnp.sort(best_blocks, axis=1)  # Equal logits are then in the order of their indices.
    within = tnp.take_along_axis(padded, best_blocks[:, :, None], 1).reshape(batch, CANDIDATES * CANDIDATES)
    top, places = tnp.topk(within, CANDIDATES)
    block = tnp.take_along_axis(best_blocks, places // CANDIDATES, 1)
    return top, block * CANDIDATES + places % CANDIDATES


__all__ = ["CANDIDATES", "NONE", "UNDECIDED", "candidates", "sample"]
