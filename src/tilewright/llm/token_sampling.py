"""`sample` draws tokens from logits inside a library, and `adjusted` applies penalties, biases and grammars
to them; the results equal those of `engine.sampling`.
"""

from __future__ import annotations

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..ir.symbolic import bounds
from .exact_sums import UNIT, ExactSums, fixed, part
from .runner import NONE, UNDECIDED

CANDIDATES = 64
"""Number of most probable tokens that are considered if sampling is restricted. A larger value costs time per
token.
"""
BLOCK = 256
"""A token is drawn among blocks of this many, then within one."""


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """A token for each row of logits [batch, vocabulary], and its log-probability: int32 and float32 [batch].

    Sums of weights are exact: see `exact_sums`.

    Args:
        temperature: float32 [batch]; less than 1e-5 takes the most probable token, the first of equal ones.
        top_k: int32 [batch], 0 for all; `top_p`, `min_p`: float32 [batch], 1 and 0 for all; see
            `SamplingParameters`.
        uniform: uint32 [batch], the random numbers in [0, 1), times 2^32. Cumulative probabilities run in the
            order of token numbers if all tokens or those of min-p alone may be drawn, else from the most
            probable token on.

    Returns:
        The token is `NONE` if the row's greatest logit is not finite, and `UNDECIDED` if more than
        `CANDIDATES` tokens, but not all, may be drawn.
    """
    n = logits.shape[1]
    best, first = tnp.max(logits, axis=1), tnp.argmax(logits, axis=1)
    greedy = temperature < 1e-5
    scale = 1 / tnp.where(greedy, 1, temperature)
    any_token, whole = _of_all(logits, best, scale, uniform)

    top, ids = candidates(logits)
    w = tnp.exp((top - best[:, None]) * scale[:, None])
    count = top.shape[1]
    rank = tnp.arange(count)
    limited, cut = (top_k > 0) & (top_k < n), min_p > 0
    keep = ((rank < top_k[:, None]) | ~limited[:, None]) & ((w >= min_p[:, None]) | (rank == 0))
    kept = fixed(tnp.where(keep, w, 0))
    sums = tnp.cumsum(kept, axis=1, dtype="uint32")
    mass = tnp.where(limited | cut, tnp.astype(sums[:, -1], "float32"), whole * (1 / UNIT))
    goal = tnp.astype(tnp.minimum(top_p * mass, 2.0**31), "uint32")  # candidates have less than 2^31
    keep = keep & ((top_p >= 1)[:, None] | (sums - kept < goal[:, None]))
    # As in the engine, tokens keep the order of their numbers if min-p alone excludes some.
    alone = (cut & ~limited & (top_p >= 1))[:, None]
    order = tnp.argsort(tnp.where(alone, tnp.where(keep, ids, n), rank), axis=1)
    ids, kept = (tnp.take_along_axis(x, order, 1) for x in (ids, tnp.where(keep, kept, 0)))
    sums = tnp.cumsum(kept, axis=1, dtype="uint32")
    place = _count(sums <= part(sums[:, -1], uniform)[:, None])
    some_token = tnp.take_along_axis(ids, place[:, None], 1)[:, 0]
    # No token beyond the candidates may be drawn.
    ends = (limited & (top_k <= count)) | (cut & (w[:, -1] < min_p))
    enough = tnp.where(limited | cut, ends, sums[:, -1] >= goal) | (n <= count)

    chosen = tnp.where(limited | cut | (top_p < 1), tnp.where(enough, some_token, UNDECIDED), any_token)
    chosen = tnp.where(tnp.abs(best) < float("inf"), tnp.where(greedy, first, chosen), NONE)
    logit = tnp.take_along_axis(logits, tnp.maximum(chosen, 0)[:, None], 1)[:, 0]
    logprob = logit - best - tnp.log(tnp.sum(tnp.exp(logits - best[:, None]), axis=1))
    return tnp.astype(chosen, "int32"), logprob


def _of_all(logits: Tensor, best: Tensor, scale: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A token drawn among all of a row, int32 [batch], and the sum of the row's weights, float32 [batch]: the
    block in which the running sum of weights passes a part of the whole, then the token in it.
    """
    exact = ExactSums(logits.shape[1])
    blocks = _blocks(logits, BLOCK)
    words = exact.cut(tnp.exp((blocks - best[:, None, None]) * scale[:, None, None]))
    running = tnp.cumsum(tnp.sum(words, axis=3, dtype="uint32"), axis=2, dtype="uint32")
    whole = exact.number(running[:, :, -1])
    low, middle, high = exact.part(whole, uniform)
    goal = low[:, None], middle[:, None], high[:, None]
    block = _count(~exact.less(goal, exact.number(running)))
    before = tnp.take_along_axis(running, tnp.maximum(block - 1, 0)[None, :, None], 2)
    before = tnp.where((block > 0)[None, :, None], before, 0)
    within = tnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0]
    words = exact.cut(tnp.exp((within - best[:, None]) * scale[:, None]))
    running = before + tnp.cumsum(words, axis=2, dtype="uint32")
    return block * BLOCK + _count(~exact.less(goal, exact.number(running))), exact.rounded(whole)


def greedy(logits: Tensor) -> Tensor:
    """The most probable token of each row of logits [batch, vocabulary], as `sample` takes it: int32."""
    finite = tnp.abs(tnp.max(logits, axis=1)) < float("inf")
    return tnp.astype(tnp.where(finite, tnp.argmax(logits, axis=1), NONE), "int32")


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


def _count(passed: Tensor) -> Tensor:
    """How many running sums [batch, n] do not exceed a goal that is less than the last of them: int32
    [batch].
    """
    # Only a row that contains NaN passes all of them.
    return tnp.minimum(tnp.sum(passed, axis=1, dtype="int32"), passed.shape[1] - 1)


def _blocks(logits: Tensor, size: int) -> Tensor:
    """Logits [batch, vocabulary] as blocks [batch, any, size], the last one filled up with -inf."""
    batch, n = logits.shape
    blocks = -(-n // size)
    missing = tnp.full((batch, blocks * size - n), -float("inf"), logits.dtype)
    return tnp.concatenate([logits, missing], 1).reshape(batch, blocks, size)


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
    padded = _blocks(logits, CANDIDATES)
    _, best_blocks = tnp.topk(tnp.max(padded, axis=2), CANDIDATES)
    best_blocks = tnp.sort(best_blocks, axis=1)  # Equal logits are then in the order of their indices.
    within = tnp.take_along_axis(padded, best_blocks[:, :, None], 1).reshape(batch, CANDIDATES * CANDIDATES)
    top, places = tnp.topk(within, CANDIDATES)
    block = tnp.take_along_axis(best_blocks, places // CANDIDATES, 1)
    return top, block * CANDIDATES + places % CANDIDATES


__all__ = ["CANDIDATES", "NONE", "UNDECIDED", "adjusted", "candidates", "greedy", "sample"]
