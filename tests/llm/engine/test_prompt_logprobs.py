"""Log-probabilities of prompts, and outputs of a least length."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.llm.engine.test_engine import GREEDY, leaks, watched
from tests.llm.fake_runner import FakeRunner

from tilewright.errors import EngineError, RequestError
from tilewright.llm.engine.engine import EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request

TOP = 5


def prompts(count: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 60, random.integers(1, 150)).tolist() for _ in range(count)]


def one_by_one(prompt: list[int], **runner: object) -> list[tuple[float, list[int]]]:
    """The log-probability of each of the prompt's tokens after the first, and the most probable tokens there,
    from separate requests.
    """
    found = []
    for end in range(1, len(prompt)):
        engine, fake = watched(**runner)  # type: ignore[arg-type]
        sampling = SamplingParameters(temperature=0, logprobs=fake.vocabulary)
        (entry,) = engine.submit(Request(prompt[:end], sampling, max_tokens=1)).collect()[0].logprobs
        found.append((dict(entry.top)[prompt[end]], [token for token, _ in entry.top[:TOP]]))
    return found


@pytest.mark.parametrize("pages", [64, 8])
@pytest.mark.parametrize("speculation", [None, Speculation(tokens=3, adaptive=False)])
def test_each_token_of_a_prompt_has_the_log_probability_of_a_request_that_ends_before_it(
    pages: int, speculation: Speculation | None
) -> None:
    engine, _ = watched(EngineOptions(speculation=speculation), pages=pages)
    plain = [Request(prompt, GREEDY, max_tokens=20) for prompt in prompts(4, 1)]
    scored = [
        Request(prompt, GREEDY, max_tokens=4, prompt_logprobs=TOP, n=2) for prompt in [*prompts(5, 0), [7]]
    ]
    streams = [
        engine.submit(request) for pair in zip(scored, [*plain, *plain], strict=False) for request in pair
    ]
    for stream in streams:
        outputs, request = stream.collect(), stream.request
        assert outputs[0].tokens == FakeRunner(vocabulary=engine.runner.vocabulary).greedy(
            request.prompt, len(outputs[0].tokens)
        )
        if request.prompt_logprobs is None:
            assert stream.prompt_logprobs == []
            continue
        expected = one_by_one(request.prompt)
        assert [entry.token for entry in stream.prompt_logprobs] == request.prompt[1:]
        for entry, (logprob, top) in zip(stream.prompt_logprobs, expected, strict=True):
            assert math.isclose(entry.logprob, logprob, abs_tol=1e-5)
            assert [token for token, _ in entry.top] == top
    assert not leaks(engine)


def test_a_model_with_state_reports_them_too() -> None:
    engine, _ = watched(has_state=True)
    (prompt,) = prompts(1, 5)
    stream = engine.submit(Request(prompt, GREEDY, max_tokens=1, prompt_logprobs=0))
    stream.collect()
    expected = [logprob for logprob, _ in one_by_one(prompt, has_state=True)]
    assert np.allclose([entry.logprob for entry in stream.prompt_logprobs], expected, atol=1e-5)


def test_logits_of_a_prompt_that_are_no_numbers_fail_the_request() -> None:
    engine, fake = watched()
    fake.bias[:] = np.nan
    with pytest.raises(EngineError, match="NaN"):
        engine.submit(Request([1, 2, 3], GREEDY, max_tokens=1, prompt_logprobs=0)).collect()
    fake.bias[:] = 0
    assert engine.submit(Request([1, 2, 3], GREEDY, max_tokens=1, prompt_logprobs=0)).collect()


@pytest.mark.parametrize("speculation", [None, Speculation(tokens=3, adaptive=False)])
def test_no_token_ends_an_output_before_its_least_length(speculation: Speculation | None) -> None:
    engine, fake = watched(EngineOptions(speculation=speculation))
    fake.bias[[5, 9, *engine.tokenizer.eos]] = 100
    request = Request([1, 2, 3], GREEDY, stop_tokens=[5, 9], max_tokens=20, min_tokens=6)
    stream = engine.submit(request)
    deltas = list(stream)
    tokens = [token for delta in deltas for token in delta.tokens]
    ends = {5, 9, *engine.tokenizer.eos}
    assert len(tokens) == 7 and not ends & set(tokens[:6]) and tokens[6] in ends
    assert deltas[-1].stop == (tokens[6] if tokens[6] in (5, 9) else None)
    (shorter,) = engine.submit(Request([1, 2, 3], GREEDY, stop_tokens=[5, 9], max_tokens=20)).collect()
    assert len(shorter.tokens) == 1


def test_the_last_delta_names_the_stop_string() -> None:
    engine, _ = watched()
    (whole,) = engine.submit(Request([1, 2, 3], GREEDY, max_tokens=40)).collect()
    stop = whole.text[10:13]
    last = list(engine.submit(Request([1, 2, 3], GREEDY, max_tokens=40, stop=["no such text", stop])))[-1]
    assert (last.finish_reason, last.stop) == ("stop", stop)


def test_impossible_values_are_refused() -> None:
    engine, _ = watched()
    with pytest.raises(RequestError, match="min_tokens is 5; it must be from 0 to max_tokens, 4"):
        engine.submit(Request([1], min_tokens=5, max_tokens=4))
    with pytest.raises(RequestError, match="prompt_logprobs is -1"):
        engine.submit(Request([1], prompt_logprobs=-1))
