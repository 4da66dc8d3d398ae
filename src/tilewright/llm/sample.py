"""`sample`: from logits to tokens inside a library; it chooses what `engine.sampling.choose` chooses."""

from __future__ import annotations

from typing import Any

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as _tnp

tnp: Any = _tnp

CANDIDATES = 64
"""So many most probable tokens are looked at where only some may be drawn."""
UNDECIDED = -2
"""The token of a row for which they are too few: whoever asked decides from the logits."""
NONE = -1
"""The token of a row that allows none, or holds what is no number."""


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """A token for each row of logits [batch, vocabulary], and its log-probability by these logits: int32 and float32 [batch].

    Args:
        temperature: float32 [batch]; less than 1e-5 takes the most probable token, of equal ones the first.
        top_k: int32 [batch], 0 for all; `top_p`, `min_p`: float32 [batch], 1 and 0 for all; see `SamplingParameters`.
        uniform: float64 [batch], at least 0 and less than 1: what draws the token. Tokens stand in their own order where all may be drawn or min-p alone leaves
            some out, else the most probable one first.

    Returns:
        `NONE` for a row whose greatest logit is not finite, `UNDECIDED` where more than `CANDIDATES` tokens may be drawn, but not all.
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
    # As in the engine, tokens stand in their own order where min-p alone leaves some out.
    alone = (cut & ~limited & (top_p >= 1))[:, None]
    order = tnp.argsort(tnp.where(alone, tnp.where(keep, ids, logits.shape[1]), rank), axis=1)
    ids, drawn = tnp.take_along_axis(ids, order, 1), tnp.take_along_axis(tnp.where(keep, w, 0), order, 1)
    sums = tnp.cumsum(drawn, axis=1)
    place = tnp.minimum(_passed(sums, uniform * sums[:, -1]), tnp.sum(tnp.astype(keep, "int64"), axis=1) - 1)
    some_token = tnp.take_along_axis(ids, place[:, None], 1)[:, 0]
    # Nothing that may be drawn lies beyond the candidates.
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
    """Where running sums [batch, n] first exceed a goal [batch]: int64 [batch], less than n."""
    below = tnp.astype(sums <= goal[:, None], "int64")
    return tnp.minimum(tnp.sum(below, axis=1), sums.shape[1] - 1)  # type: ignore[no-any-return]


def candidates(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest logits of each row, falling, and their places: of equal ones the first.

    They lie in the blocks of the greatest maxima, of which there are as many as candidates. So two short selections do for one of a long row.
    """
    batch, n = logits.shape
    if n <= CANDIDATES * CANDIDATES:
        return tnp.topk(logits, min(CANDIDATES, n))  # type: ignore[no-any-return]
    blocks = -(-n // CANDIDATES)
    missing = tnp.full((batch, blocks * CANDIDATES - n), -float("inf"), logits.dtype)
    padded = tnp.concatenate([logits, missing], 1).reshape(batch, blocks, CANDIDATES)
    _, found = tnp.topk(tnp.max(padded, axis=2), CANDIDATES)
    found = tnp.sort(found, axis=1)  # so that equal logits stand in the order of their places
    within = tnp.take_along_axis(padded, found[:, :, None], 1).reshape(batch, CANDIDATES * CANDIDATES)
    top, places = tnp.topk(within, CANDIDATES)
    block = tnp.take_along_axis(found, places // CANDIDATES, 1)
    return top, block * CANDIDATES + places % CANDIDATES


__all__ = ["CANDIDATES", "NONE", "UNDECIDED", "candidates", "sample"]
