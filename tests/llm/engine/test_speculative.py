"""Speculation changes how fast tokens are generated, and never which: greedy tokens are the same, and drawn
ones have the same distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import RequestError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import Sampler, SamplingParameters, choose, probabilities
from tilewright.llm.engine.sequence import Guess, Sequence
from tilewright.llm.engine.speculative import PromptLookup, Speculation, accepted
from tilewright.llm.engine.stream import Request, Stream
from tilewright.llm.tokenizer import Detokenizer


def always(draft: Any = None, **options: Any) -> EngineOptions:
    """The options of an engine that makes all guesses, whatever they cost."""
    return EngineOptions(speculation=Speculation(draft, adaptive=False, **options))


def sequence(prompt: list[int], sampling: SamplingParameters, seed: int = 0) -> Sequence:
    request = Request(prompt, sampling)
    stream = Stream(request, lambda stream: None, lambda: None)
    return Sequence(request, stream, 0, 0, Sampler(sampling, prompt, seed, None), Detokenizer(tokenizer()))


@pytest.mark.parametrize("numbers", [{"tokens": 0}, {"max_batch": 0}])
def test_numbers_below_1_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="both numbers must be at least 1"):
        Speculation(None, **numbers)


@pytest.mark.parametrize("sampling", [SamplingParameters(), SamplingParameters(0.8, top_p=0.9, top_k=6)])
def test_rejection_sampling_keeps_the_distribution(sampling: SamplingParameters) -> None:
    """The first token after a guess has the model's probabilities, whatever the draft's are. The guess is
    accepted as often as possible.
    """
    rng = np.random.default_rng(0)
    model, draft = rng.normal(0, 1.5, (2, 10)).astype(np.float32)
    p, q = probabilities(model, sampling), probabilities(draft, sampling)
    logits = np.stack([model, model])
    count, kept, found = 3_000, 0, np.zeros(10)
    for seed in range(count):
        s = sequence([0], sampling, seed)
        guess = Guess(choose(draft[None], [(s.sampler, 0)]).tolist(), [q])
        tokens = accepted(s, guess, logits, choose(logits, [(s.sampler, 0), (s.sampler, 1)]).tolist())
        found[tokens[0]] += 1
        kept += len(tokens) == 2
    np.testing.assert_allclose(found / count, p, atol=4 * np.sqrt(0.25 / count))
    assert kept / count == pytest.approx(np.minimum(p, q).sum(), abs=0.04)


def test_a_guess_is_kept_up_to_the_first_wrong_token() -> None:
    s = sequence([0], SamplingParameters(0))
    logits = np.eye(5, dtype=np.float32)[[1, 2, 3]]
    assert accepted(s, Guess([1, 2]), logits, [1, 2, 3]) == [1, 2, 3]
    assert accepted(s, Guess([1, 4]), logits, [1, 2, 3]) == [1, 2]
    assert accepted(s, Guess([]), logits[:1], [1]) == [1]


def test_prompt_lookup_finds_what_followed_last() -> None:
    lookup = PromptLookup()

    def guess(s: Sequence, count: int = 3) -> list[int]:
        return lookup.guess([s], count)[0].tokens

    s = sequence([1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 2, 3], SamplingParameters())
    assert guess(s) == [5, 6, 2], "what followed the last two tokens, because the last three occur only once"
    s.tokens += [4]
    assert guess(s, 2) == [9, 1], "a match of three tokens is preferred to one of two"
    s.tokens += [77]
    assert guess(s) == []
    s.tokens += [77, 77]
    assert guess(s) == [77], "the match overlaps the end, so that only known tokens follow it"


@pytest.mark.parametrize(("drafted", "guesses"), [(False, 0), (True, 0), (True, 3)])
def test_speculation_keeps_the_output(drafted: bool, guesses: int) -> None:
    size: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "local": 0.9}
    draft = FakeRunner(**size, draft=True, chunk=48, guesses=guesses) if drafted else None
    fast, plain = (
        Engine(FakeRunner(**size), tokenizer(), always(draft, tokens=3)),
        Engine(FakeRunner(**size), tokenizer()),
    )
    for sampling in (
        SamplingParameters(0),
        SamplingParameters(0.7, seed=1),
        SamplingParameters(0, presence_penalty=1),
    ):
        for prompt in ([5], [*range(2, 130), 2, 3, 4], [7, 8, 9] * 40):
            request = Request(prompt, sampling, max_tokens=60, ignore_eos=True, n=2)
            assert fast.submit(request).collect() == plain.submit(request).collect()
    statistics = fast.stats()
    assert (
        0 < statistics.accepted_tokens < statistics.proposed_tokens and statistics.steps < plain.stats().steps
    )
    if draft is not None and guesses:
        assert draft.calls["guess"] > 20, "greedy answers without penalties"


def test_drawn_tokens_have_the_models_frequencies() -> None:
    """The second tokens that the whole engine draws have the same frequencies with a draft as without."""
    size: dict[str, Any] = {"vocabulary": 12, "local": 0.7, "scale": 3.0, "max_batch": 64}
    found = []
    for speculation in (
        None,
        Speculation(FakeRunner(**size, draft=True), tokens=2, max_batch=64, adaptive=False),
    ):
        engine = Engine(FakeRunner(**size), tokenizer(), EngineOptions(speculation=speculation, seed=1))
        request = Request([5], SamplingParameters(), max_tokens=3, ignore_eos=True, n=64)
        choices = [choice for _ in range(20) for choice in engine.submit(request).collect()]
        found.append(np.bincount([choice.tokens[1] for choice in choices], minlength=12) / len(choices))
    assert engine.stats().accepted_tokens > 400
    assert (np.abs(found[0] - found[1]) < 5 * np.sqrt(2 * np.maximum(found[0], 0.01) / 1280)).all()


@pytest.mark.parametrize("guesses", [0, 4])
def test_a_draft_that_is_the_model_itself_is_always_right(guesses: int) -> None:
    """All guesses of a draft that is the model itself are accepted, so its cache holds what the model's
    holds, after sharing, copying, forking and preemption.
    """
    size: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "pages": 9}
    draft = FakeRunner(**size, chunk=48, guesses=guesses)
    engine = Engine(
        FakeRunner(**size),
        tokenizer(),
        always(draft, tokens=3, max_batch=3),
    )
    prompt = list(range(2, 90))
    sampling = (SamplingParameters(0), SamplingParameters(seed=5))
    streams = [
        engine.submit(
            Request([*prompt[: 88 - 9 * i], i], sampling[i % 2], max_tokens=70, ignore_eos=True, n=1 + i % 2)
        )
        for i in range(6)
    ]
    for stream in streams:
        stream.collect()
    statistics = engine.stats()
    assert statistics.accepted_tokens == statistics.proposed_tokens > 50 and statistics.preemptions > 0
    assert statistics.cached_tokens > 0 and not draft.misuses


def test_what_a_draft_has_missed_is_made_up_for() -> None:
    """A draft computes what its cache lacks before it guesses, and pages are shared whether it has seen them
    or not. Two sequences at a time are not speculated on, so the draft's cache lacks their tokens.
    """
    size: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "local": 0.9}
    draft, plain = FakeRunner(**size, draft=True, chunk=32), FakeRunner(**size)
    engine = Engine(
        FakeRunner(**size),
        tokenizer(),
        always(draft, max_batch=1),
    )
    prompts = [[first] * 40 for first in (5, 6)]
    greedy = SamplingParameters(0)
    long = engine.submit(Request(prompts[0], greedy, max_tokens=150, ignore_eos=True))
    short = engine.submit(Request(prompts[1], greedy, max_tokens=100, ignore_eos=True))
    said = [stream.collect()[0].tokens for stream in (long, short)]
    assert said == [plain.greedy(p, n) for p, n in zip(prompts, (150, 100), strict=True)]
    assert draft.calls["decode"] > 0 and draft.calls["prefill"] > 4, (
        "the draft reads what it has missed when the short request has ended"
    )
    again = engine.submit(Request([*prompts[1], *said[1]], greedy, max_tokens=40, ignore_eos=True))
    assert again.collect()[0].tokens == plain.greedy([*prompts[1], *said[1]], 40)
    assert not draft.misuses and again.cached_tokens == 128


def test_a_draft_that_fails_is_given_up() -> None:
    size: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "local": 0.9}
    draft = FakeRunner(**size, draft=True)
    engine = Engine(FakeRunner(**size), tokenizer(), always(draft))
    request = Request([5] * 70, SamplingParameters(0, frequency_penalty=0.1), max_tokens=30, ignore_eos=True)
    expected = Engine(FakeRunner(**size), tokenizer()).submit(request).collect()

    def before(call: str) -> None:
        if call == "decode" and draft.calls["decode"] > 7:
            raise OSError("out of luck")

    draft.before = before
    assert engine.submit(request).collect() == expected
    assert engine.submit(request).collect() == expected and draft.calls["decode"] == 8


def test_a_draft_must_fit_the_model() -> None:
    runner = FakeRunner(vocabulary=tokenizer().vocabulary)
    for changed, message in (
        ({"vocabulary": 5}, "the draft model has 5 tokens"),
        ({"pages": 3}, "compiled for pages = 3"),
        ({"has_state": True}, "keeps state"),
    ):
        draft = FakeRunner(**{"vocabulary": runner.vocabulary, **changed})
        with pytest.raises(RequestError, match=message):
            Engine(runner, tokenizer(), always(draft))
