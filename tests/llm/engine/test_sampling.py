"""Choosing tokens, compared with plain implementations of the definitions and with frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import RequestError
from tilewright.llm.engine.sampling import (
    Sampler,
    SamplingParameters,
    choose,
    draw,
    largest,
    logprobs,
    probabilities,
    seed_of_choice,
)


def plain(logits: Any, p: SamplingParameters) -> Any:
    """The reference for `probabilities`, in which each filter sorts all logits."""
    x = np.asarray(logits, np.float64) / p.temperature
    found = np.exp(x - x.max())
    found /= found.sum()
    found[found < p.min_p * found.max()] = 0
    if p.top_k:
        found[np.argsort(-found, kind="stable")[p.top_k :]] = 0
    found /= found.sum()
    order = np.argsort(-found, kind="stable")
    before = np.cumsum(found[order]) - found[order]
    found[order[before >= p.top_p]] = 0
    return found / found.sum()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 700),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    st.sampled_from([0, 1, 3, 50]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_truncation_agrees_with_a_plain_implementation(
    seed: int, n: int, temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)
    p = SamplingParameters(temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    np.testing.assert_allclose(probabilities(logits, p), plain(logits, p), atol=1e-5)


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.9999])
def test_nuclei_of_many_tokens(spread: float, top_p: float) -> None:
    """As many tokens are kept as by the definition, and they are the most likely ones; among equal ones, the
    first.
    """
    logits = np.random.default_rng(0).normal(0, spread, 20_000).astype(np.float32)
    p = SamplingParameters(top_p=top_p)
    found, expected = (np.flatnonzero(f(logits, p)) for f in (probabilities, plain))
    assert abs(len(found) - len(expected)) <= 1 + len(logits) // 5000, (
        "rounding of the sums changes the number by a few"
    )
    assert len(found) < 20_000 and set(found) <= set(np.argsort(-logits, kind="stable")[: len(found)])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, 100), st.sampled_from([1, 1e-1, 1e3]))
def test_largest(seed: int, n: int, count: int, step: float) -> None:
    # Rounding leaves many or few equal numbers.
    x = np.round(np.random.default_rng(seed).normal(0, 1, n) / step).astype(np.float32)
    assert largest(x, count).tolist() == np.argsort(-x, kind="stable")[:count].tolist()


def frequencies(logits: Any, p: SamplingParameters, count: int = 6_000) -> Any:
    sampler = Sampler(p, [0], 7, None)
    rows = np.broadcast_to(logits, (500, len(logits)))
    found = np.concatenate(
        [choose(rows, [(sampler, step + i) for i in range(500)]) for step in range(0, count, 500)]
    )
    return np.bincount(found, minlength=len(logits)) / count


@pytest.mark.parametrize(
    "p", [SamplingParameters(), SamplingParameters(0.7, top_p=0.8), SamplingParameters(top_k=5)]
)
def test_draws_have_the_distribution(p: SamplingParameters) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 40).astype(np.float32)
    expected = probabilities(logits, p)
    np.testing.assert_allclose(frequencies(logits, p), expected, atol=4 * np.sqrt(0.25 / 6_000))


def test_draws_over_many_blocks_reach_every_token_and_none_of_no_weight() -> None:
    w = np.zeros(1000, np.float32)
    w[[0, 255, 256, 511, 999]] = [1, 2, 3, 4, 5]
    found = [draw(None, w, u) for u in (np.arange(1500) + 0.5) / 1500]
    counts = np.bincount(found, minlength=1000)
    assert counts[[0, 255, 256, 511, 999]].tolist() == [100, 200, 300, 400, 500] and counts.sum() == 1500
    assert draw(None, w, 1 - 2**-53) == 999 and draw(None, np.array([1, 0], np.float32), 1 - 2**-53) == 0


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    logits = np.random.default_rng(0).normal(0, 1, (8, 300)).astype(np.float32)
    p = SamplingParameters()
    alone = [int(choose(logits[i : i + 1], [(Sampler(p, [0], 5, None), i)])[0]) for i in range(8)]
    assert choose(logits, [(Sampler(p, [0], 5, None), i) for i in range(8)]).tolist() == alone
    assert choose(logits, [(Sampler(p, [0], 6, None), i) for i in range(8)]).tolist() != alone
    assert len({seed_of_choice(s, i) for s in (0, 1, 2**64 - 1) for i in range(4)}) == 12


def test_uniform_numbers_are_uniform() -> None:
    sampler = Sampler(SamplingParameters(), [0], 1, None)
    found = np.array([sampler.uniform(step, purpose) for step in range(4000) for purpose in (0, 1, 2)])
    assert abs(found.mean() - 0.5) < 0.01 and np.histogram(found, 10, (0, 1))[0].min() > 1050


def test_greedy_takes_the_first_of_equals_and_finds_what_is_no_number() -> None:
    greedy = Sampler(SamplingParameters(temperature=0), [0], 0, None)
    warm = Sampler(SamplingParameters(), [0], 0, None)
    rows = np.array([[1, 3, 3], [1, np.nan, 3], [-np.inf] * 3, [0, 1, -np.inf]], np.float32)
    assert choose(rows, [(greedy, 0)] * 4).tolist() == [1, -1, -1, 1]
    assert choose(rows[1:3], [(warm, 0)] * 2).tolist() == [-1, -1]


def test_penalties_and_bias() -> None:
    p = SamplingParameters(
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias={6: 3.0, 7: -np.inf}
    )
    sampler = Sampler(p, [1, 2, 2], 0, None)
    for token in (2, 3, 3):
        sampler.accept(token)
    sampler.look_ahead()
    sampler.accept(4)
    sampler.look_back([4])  # Takes back token 4, which then has no effect.
    logits = np.array([1, 1, 1, -1, 1, 1, 1, 1], np.float32)
    sampler.adjust(logits)
    assert logits.tolist() == [1, 0.5, 0.5 - 0.75, -2 - 1.25, 1, 1, 4, -np.inf]


def test_penalties_see_many_tokens() -> None:
    sampler = Sampler(SamplingParameters(presence_penalty=1.0), [0], 0, None)
    for token in range(100):
        sampler.accept(token)
    logits = np.zeros(120, np.float32)
    sampler.adjust(logits)
    assert logits.tolist() == [-1.0] * 100 + [0.0] * 20


def test_log_probabilities_are_the_models() -> None:
    logits = np.random.default_rng(1).normal(0, 5, 50).astype(np.float32)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = logprobs(logits, 17, 3)
    assert found.token == 17 and found.logprob == pytest.approx(expected[17], abs=1e-5)
    assert [t for t, _ in found.top] == np.argsort(-expected)[:3].tolist()
    assert [x for _, x in found.top] == pytest.approx(np.sort(expected)[::-1][:3].tolist(), abs=1e-5)
    assert logprobs(logits, 17, 0).top == () and len(logprobs(logits, 17, 50).top) == 50


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0; it must be more than 0"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logprobs": 1000}, "logprobs"),
        ({"logit_bias": {100: 1.0}}, "logit_bias names token 100"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias of token 1"),
    ],
)
def test_parameters_out_of_range_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParameters(**given).check(100)
