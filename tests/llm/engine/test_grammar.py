"""Outputs follow a grammar, whatever the model prefers."""

from __future__ import annotations

import json
import math
import re

import pytest
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import EngineError, RequestError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.grammar import Grammars
from tilewright.llm.engine.sampling import Sampler, SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "list": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "list"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer())


def engine(options: EngineOptions | None = None, local: float = 0.5) -> Engine:
    t = tokenizer()
    # Vocabularies of models are padded as well.
    runner = FakeRunner(vocabulary=t.vocabulary + 3, local=local, scale=5)
    runner.bias[1] = 4.0  # Makes the output end after some tokens.
    return Engine(runner, t, options)


@pytest.mark.parametrize("seed", range(6))
def test_json_of_a_schema(grammars: Grammars, seed: int) -> None:
    request = Request(
        [5, 6, 7], SamplingParameters(seed=seed), max_tokens=400, grammar=grammars.json_schema(SCHEMA), n=2
    )
    for choice in engine().submit(request).collect():
        assert choice.finish_reason == "stop"
        found = json.loads(choice.text)
        assert set(found) == {"name", "list"} and len(found["name"]) <= 8
        assert all(isinstance(x, int) for x in found["list"])


def test_regular_expression_and_lark(grammars: Grammars) -> None:
    pattern = r"(one|two){3}-[0-9]{2,4}"
    for grammar in (grammars.regex(pattern), grammars.grammar(f"start: /{pattern}/")):
        found = (
            engine()
            .submit(Request([5], SamplingParameters(seed=1), grammar=grammar, max_tokens=100))
            .collect()[0]
        )
        assert re.fullmatch(pattern, found.text) and found.finish_reason == "stop"


def test_the_output_ends_where_nothing_may_follow(grammars: Grammars) -> None:
    request = Request([5], SamplingParameters(seed=1), grammar=grammars.regex("abc"), ignore_eos=True)
    found = engine().submit(request).collect()[0]
    assert (found.text, found.finish_reason) == ("abc", "stop")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafted", [False, True])
def test_speculation_makes_no_difference(grammars: Grammars, temperature: float, drafted: bool) -> None:
    t = tokenizer()
    draft = FakeRunner(vocabulary=t.vocabulary + 3, local=0.9, scale=5, draft=True) if drafted else None
    request = Request(
        t.encode('{"name": "') * 3,
        SamplingParameters(temperature, seed=3, frequency_penalty=0.1),
        grammar=grammars.json_schema(SCHEMA),
        max_tokens=120,
    )
    fast = engine(EngineOptions(speculation=Speculation(draft, tokens=3, adaptive=False)), 0.9)
    found = fast.submit(request).collect()
    assert found == engine(local=0.9).submit(request).collect()
    assert fast.stats().accepted_tokens > 0


def test_a_grammar_is_used_again(grammars: Grammars) -> None:
    grammar = grammars.json_schema(SCHEMA)
    e = engine()
    request = Request([5], SamplingParameters(seed=1), grammar=grammar, max_tokens=200)
    assert e.submit(request).collect() == e.submit(request).collect()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g: g.json_schema('{"type":'), "the JSON schema is not JSON"),
        (lambda g: g.json_schema({"type": "objekt"}), "the JSON schema cannot be used: .*objekt"),
        (lambda g: g.regex("[a"), "the regular expression cannot be used: .*unclosed"),
        (lambda g: g.grammar("start: other"), "the grammar cannot be used: .*other"),
    ],
)
def test_bad_grammars_are_refused(grammars: Grammars, make: object, message: str) -> None:
    with pytest.raises(RequestError, match=f"(?s){message}"):
        make(grammars)  # type: ignore[operator]


def test_a_tokenizer_without_an_end_of_text_is_refused() -> None:
    with pytest.raises(RequestError, match="no end-of-text token"):
        Grammars(Tokenizer(tokenizer().backend))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("pages", [64, 2])
def test_the_only_allowed_token_needs_no_step(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, temperature: float, pages: int
) -> None:
    """The output is the same as with a step for every token, and so are the pages' contents."""
    prompt = list(range(2, 62))

    def requests() -> list[Request]:
        return [
            Request(
                prompt,
                SamplingParameters(temperature, seed=3, frequency_penalty=0.1),
                grammar=grammars.regex(r"~~~~~~~~[a-z][a-z]~~~~~~~~[0-9]+~~"),
                max_tokens=most,
            )
            for most in (40, 5)
        ]

    def outputs() -> tuple[list[object], int]:
        runner = FakeRunner(vocabulary=tokenizer().vocabulary + 3, pages=pages, uniform=False, scale=5)
        made = Engine(runner, tokenizer())
        streams = [made.submit(request) for request in requests()]
        found: list[object] = [stream.collect() for stream in streams]
        assert not runner.misuses
        return found, made.stats().forced_tokens

    found, forced = outputs()
    monkeypatch.setattr(Sampler, "only", lambda self, vocabulary: None)
    assert outputs() == (found, 0) and forced >= 16


def test_a_step_appends_a_limited_number_of_forced_tokens(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.llm.engine.outputs.FORCED", 8)
    made = engine()
    request = Request([5], SamplingParameters(0), grammar=grammars.regex("~" * 40), max_tokens=60)
    deltas = list(made.submit(request))
    assert "".join(delta.text for delta in deltas) == "~" * 40
    assert max(len(delta.tokens) for delta in deltas) == 9 and made.stats().forced_tokens > 24


def test_tokens_are_not_skipped_where_more_than_the_grammar_decides(grammars: Grammars) -> None:
    """With log-probabilities every token has a step, and a bias may forbid the only token."""
    tilde = tokenizer().encode("~")[0]
    made = engine()
    asked = Request([5], SamplingParameters(0, logprobs=1), grammar=grammars.regex("~~~~"), max_tokens=9)
    (choice,) = made.submit(asked).collect()
    assert choice.text == "~~~~" and [entry.token for entry in choice.logprobs][:4] == [tilde] * 4
    assert made.stats().forced_tokens == 0
    banned = Request([5], SamplingParameters(0, logit_bias={tilde: -math.inf}), grammar=grammars.regex("a~"))
    with pytest.raises(EngineError, match="the grammar allows no token"):
        made.submit(banned).collect()
