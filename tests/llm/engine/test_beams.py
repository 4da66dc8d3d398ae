"""Beam search: the sequences that a plain search over the model finds, with little memory and beside others,
and those of transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.engine.test_engine import GREEDY, alone, leaks, requests, watched
from tests.llm.fake_runner import MASK, FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import EngineError, RequestError
from tilewright.llm.engine.beam_search import BeamSearch
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.grammar import Grammars
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request


def expected(
    fake: FakeRunner, prompt: list[int], search: BeamSearch, most: int, ends: set[int]
) -> list[list[int]]:
    """The outputs of a search that computes every sequence from its beginning."""

    def scores(tokens: list[int]) -> np.ndarray[Any, Any]:
        total = 0
        for position, token in enumerate(tokens):
            total = (total + fake._cell(total, token, position, position >= len(prompt))) & MASK
        logits = np.asarray(fake._of(total, tokens[-1], 0), np.float64)
        return np.asarray(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))

    def rating(score: float, n: int) -> float:
        return score / n**search.length_penalty

    live: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[tuple[float, list[int]]] = []
    while True:
        options = [(s + x, [*out, t]) for s, out in live for t, x in enumerate(scores([*prompt, *out]))]
        options.sort(key=lambda entry: -entry[0])
        options = options[: max(2, 1 + len(ends)) * search.width]
        done = [out[-1] in ends or len(out) == most for _, out in options]
        found += [
            (rating(s, len(o)), o) for (s, o), d in zip(options[: search.width], done, strict=False) if d
        ]
        found = sorted(found, key=lambda entry: -entry[0])[: search.width]
        live = [option for option, d in zip(options, done, strict=True) if not d][: search.width]
        full = len(found) == search.width
        if not live or (full and search.early_stopping):
            return [out for _, out in found]
        if full and rating(live[0][0], len(live[0][1])) <= found[-1][0]:
            return [out for _, out in found]


SEARCHES = [
    BeamSearch(1),
    BeamSearch(4),
    BeamSearch(3, length_penalty=0.0),
    BeamSearch(5, length_penalty=-1.0, early_stopping=True),
    BeamSearch(4, length_penalty=2.0),
]


def request(search: BeamSearch, prompt: list[int], most: int, **more: Any) -> Request:
    return Request(prompt, GREEDY, max_tokens=most, beams=search, n=search.width, **more)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_sequences_of_a_plain_search(search: BeamSearch, uniform: bool) -> None:
    prompt = [5 + i % 50 for i in range(115)]  # outputs begin in a page of the prompt, and fill it
    for scale in (12.0, 3.0):
        engine, fake = watched(uniform=uniform, scale=scale)
        found = engine.submit(request(search, prompt, 30)).collect()
        ends = set(tokenizer().eos)
        assert [c.tokens for c in found] == expected(fake, prompt, search, 30, ends)
        for choice in found:
            ended = choice.tokens[-1] in ends
            assert choice.finish_reason == ("stop" if ended else "length")
            assert choice.text == tokenizer().decode(choice.tokens[: len(choice.tokens) - ended])
        assert not fake.misuses and not leaks(engine)


@pytest.mark.parametrize("uniform", [True, False])
def test_with_little_memory_beside_other_requests(uniform: bool) -> None:
    """Searches are preempted, and wait for sequences that were; the results are those of each alone."""
    prompts = [[3 + i] * (10 + 9 * i) for i in range(4)]
    searches = [request(SEARCHES[1 + i % 4], p, 20, priority=i % 2) for i, p in enumerate(prompts)]
    others = [r for r in requests(8, 3) if len(r.prompt) + (r.max_tokens or 0) < 200]
    mixed = [each for pair in zip(searches, others, strict=False) for each in pair] + others[4:]
    engine, fake = watched(pages=14, max_batch=6, uniform=uniform)
    streams = [engine.submit(each) for each in mixed]
    found = [[c.tokens for c in stream.collect()] for stream in streams]
    assert found == [[c.tokens for c in alone_or_search(each, uniform)] for each in mixed]
    assert engine.stats().preemptions > 0 and not fake.misuses and not leaks(engine)


def alone_or_search(each: Request, uniform: bool) -> Any:
    if each.beams is None:
        return alone(each, uniform=uniform)
    return watched(uniform=uniform)[0].submit(each).collect()


def test_log_probabilities_add_up() -> None:
    engine, _ = watched()
    sampling = SamplingParameters(0.7, logprobs=3)
    search = BeamSearch(3, length_penalty=0.0)
    found = engine.submit(Request([4] * 20, sampling, max_tokens=9, beams=search, n=3)).collect()
    sums = [sum(entry.logprob for entry in choice.logprobs) for choice in found]
    assert sums == sorted(sums, reverse=True) and len(set(sums)) == 3
    for choice in found:
        assert [entry.token for entry in choice.logprobs] == choice.tokens
        assert all(len(entry.top) == 3 for entry in choice.logprobs)


def test_penalties_and_least_tokens_count_for_each_sequence() -> None:
    engine, _ = watched(scale=20.0)
    sampling = SamplingParameters(0, frequency_penalty=100.0, presence_penalty=100.0)
    search = BeamSearch(4)
    found = engine.submit(
        Request([4] * 20, sampling, max_tokens=25, min_tokens=25, beams=search, n=4)
    ).collect()
    for choice in found:
        assert len(choice.tokens) == len(set(choice.tokens)) == 25
        assert choice.finish_reason == "length"


def test_a_grammar_bounds_the_outputs() -> None:
    engine, _ = watched()
    grammar = Grammars(tokenizer()).regex("(one|two)")
    found = engine.submit(
        Request([4] * 20, GREEDY, max_tokens=9, beams=BeamSearch(4), n=4, grammar=grammar)
    ).collect()
    assert {choice.text for choice in found} <= {"one", "two", ""}
    assert {choice.finish_reason for choice in found} == {"stop"} and found[0].text
    assert not leaks(engine)


def test_speculation_and_adapters_do_not_change_the_outputs() -> None:
    search = request(SEARCHES[1], [7, 8, 9] * 20, 24)
    plain = [c.tokens for c in watched()[0].submit(search).collect()]
    engine, fake = watched(EngineOptions(speculation=Speculation(adaptive=False)), adapters=1)
    assert [c.tokens for c in engine.submit(search).collect()] == plain
    engine.adapters.load("a", Path("a"))
    adapted = request(SEARCHES[1], [7, 8, 9] * 20, 24, adapter="a")
    assert [c.tokens for c in engine.submit(adapted).collect()] != plain
    assert not fake.misuses and not leaks(engine)


def test_a_search_is_cancelled_and_fails_as_a_whole() -> None:
    engine, fake = watched()
    stream = engine.submit(Request([4] * 20, GREEDY, max_tokens=30, beams=BeamSearch(4), n=2))
    for _ in range(5):
        engine.step()
    stream.cancel()
    assert [c.finish_reason for c in stream.collect()] == ["cancelled"] * 2 and not leaks(engine)
    fake.bias[:] = np.nan
    with pytest.raises(EngineError, match="logits are NaN"):
        engine.submit(Request([4] * 20, GREEDY, max_tokens=30, beams=BeamSearch(4))).collect()
    assert not leaks(engine)


def test_what_cannot_be_served_is_refused() -> None:
    engine, _ = watched(max_batch=4, pages=8)
    cases: list[tuple[Request, str]] = [
        (Request([4], beams=BeamSearch(5)), "width of 5; the batch allows 1 to 4"),
        (Request([4], beams=BeamSearch(2), n=3), "n is 3; a beam search gives at most its width, 2"),
        (Request([4], beams=BeamSearch(2), stop=["a"]), "no stop strings: use stop tokens"),
        (Request([4], beams=BeamSearch(2, float("nan"))), "length_penalty is nan"),
        (Request([4], max_tokens=200, beams=BeamSearch(4)), "lower max_tokens or the width"),
    ]
    for refused, message in cases:
        with pytest.raises(RequestError, match=message):
            engine.submit(refused)
    with pytest.raises(RequestError, match="keeps state that cannot be copied"):
        watched(has_state=True)[0].submit(Request([4], beams=BeamSearch(2)))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model of transformers, and a runner of the same model."""
    pytest.importorskip("transformers")
    from safetensors.numpy import load_file
    from tests.llm.model_runner import ModelRunner
    from tests.llm.models.test_families import checkpoint

    from tilewright.llm.load_weights import load_weights
    from tilewright.llm.models import build

    folder = tmp_path_factory.mktemp("llama")
    theirs = checkpoint("llama", folder, num_hidden_layers=1)
    ours = build(folder)
    load_weights(ours, load_file(folder / "model.safetensors"))
    return theirs, ModelRunner(ours, vocabulary=96, pages=24, has_state=False, max_batch=6)


@pytest.mark.parametrize("search", SEARCHES[1:], ids=str)
def test_outputs_are_those_of_transformers(search: BeamSearch, llama: tuple[Any, Any]) -> None:
    import torch

    theirs, runner = llama
    engine, end = Engine(runner, tokenizer()), 11
    for seed in range(3):
        prompt = np.random.default_rng(seed).integers(12, 96, 40).tolist()
        whole = theirs.generate(
            torch.tensor([prompt]), num_beams=search.width, num_return_sequences=search.width,
            do_sample=False, max_new_tokens=16, length_penalty=search.length_penalty,
            early_stopping=search.early_stopping, eos_token_id=end, pad_token_id=0,
        )  # fmt: skip
        made = whole[:, len(prompt) :].tolist()
        wanted = [m[: m.index(end) + 1] if end in m else m for m in made]
        found = engine.submit(request(search, prompt, 16, ignore_eos=True, stop_tokens=[end])).collect()
        assert [c.tokens for c in found] == wanted
