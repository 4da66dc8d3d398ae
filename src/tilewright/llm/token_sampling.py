"""`sample` draws tokens from logits inside a library, and `adjusted` applies penalties, biases and grammars
to them; the results equal those of `engine.sampling`.
"""

from __future__ import annotations

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..ir.symbolic import bounds
from .runner import NONE, UNDECIDED

CANDIDATES = 64
"""Number of most probable tokens that are considered if sampling is restricted. A larger value costs time per
token.
"""


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


def adjusted(
    logits: Tensor,
    ids: Tensor,
    counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    bias_ids: Tensor,
    bias: Tensor,
    allowed: Tensor,
    constraint: Tensor,
) -> Tensor:
    """Logits [batch, vocabulary] with penalties, then biases, then grammars: see `SamplingParameters`.

    Args:
        ids: int32 [batch, n], the tokens that occur in prompt or output, in ascending order; the rest of a
            row is at least the vocabulary.
        counts: int32 [batch, n], how often each occurs in the output.
        repetition, frequency, presence: float32 [batch], the penalties.
        bias_ids: int32 [batch, m], tokens in ascending order, as in `ids`.
        bias: float32 [batch, m], what is added to their logits.
        allowed: uint8 [g, vocabulary / 8], masks of tokens: bit ``t % 8`` of byte ``t / 8`` is set where a
            grammar allows token t.
        constraint: int32 [batch], the mask of each row; -1 where all tokens are allowed.
    """
    token = tnp.arange(logits.shape[1], dtype="int32")[None]
    place, occurs = _found(ids, token)
    count = tnp.astype(tnp.take_along_axis(counts, place, 1), "float32")
    by = repetition[:, None]
    repeated = tnp.where(logits > 0, logits / by, logits * by)
    written = tnp.where(count > 0, presence[:, None], 0)
    logits = tnp.where(occurs, repeated - frequency[:, None] * count - written, logits)
    place, biased = _found(bias_ids, token)
    logits = tnp.where(biased, logits + tnp.take_along_axis(bias, place, 1), logits)
    masks = allowed[tnp.maximum(constraint, 0)]
    bit = tnp.take_along_axis(masks, tnp.broadcast_to(token // 8, logits.shape), 1) >> tnp.astype(
        token % 8, "uint8"
    )
    # Adding, as the engine does, leaves NaN where a logit is NaN or infinite.
    result: Tensor = logits + tnp.where((constraint[:, None] >= 0) & (bit % 2 == 0), -float("inf"), 0.0)
    return result


def _found(ids: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """For each token [1, vocabulary]: its place (less than n) in each row of ascending `ids` [batch, n], and
    whether it is there; both [batch, vocabulary].

    A binary search, whose steps are one elementwise computation.
    """
    n = ids.shape[1]
    most = bounds(n)[1]
    assert most is not None
    below = tnp.zeros((ids.shape[0], token.shape[1]), "int32")
    for bit in reversed(range(most.bit_length())):
        tried = below + (1 << bit)
        is_less = tnp.take_along_axis(ids, tnp.minimum(tried, n) - 1, 1) < token
        below = tnp.where((tried <= n) & is_less, tried, below)
    place = tnp.minimum(below, n - 1)
    return place, tnp.take_along_axis(ids, place, 1) == token


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


__all__ = ["CANDIDATES", "NONE", "UNDECIDED", "adjusted", "candidates", "sample"]
