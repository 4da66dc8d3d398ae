"""A budget of reasoning: the end of the reasoning is written for the model when its tokens are used up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import RequestError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.grammar import Grammars
from tilewright.llm.engine.reasoning_budget import BudgetState, ReasoningBudget
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request

SIZE: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "uniform": False, "local": 0.9}
PROMPT = list(range(2, 90))
END = tuple(tokenizer().encode("\n</t>\n", special=False))


def budget(tokens: int, begun: bool = True) -> ReasoningBudget:
    return ReasoningBudget(tokens, "<t>", "</t>", END, begun)


def engine(options: EngineOptions | None = None) -> Engine:
    return Engine(FakeRunner(**SIZE), tokenizer(), options)


def request(reasoning: ReasoningBudget | None, tokens: int = 60, **sampling: Any) -> Request:
    how = SamplingParameters(**{"temperature": 0.0, **sampling})
    return Request(PROMPT, how, max_tokens=tokens, ignore_eos=True, reasoning=reasoning)


@pytest.mark.parametrize("count", [0, 1, 5, 30])
def test_the_end_is_written_when_the_budget_is_used_up(count: int) -> None:
    free = engine().submit(request(None)).collect()[0].tokens
    found = engine().submit(request(budget(count))).collect()[0].tokens
    assert found[:count] == free[:count] and tuple(found[count : count + len(END)]) == END
    assert len(found) == 60
    forced = found[: count + len(END)]
    made, runner = [], FakeRunner(**SIZE)
    total, state = 0, [*PROMPT, *forced]
    for position, token in enumerate(state):  # what follows depends on the written tokens
        total = (total + runner._cell(total, token, position, position >= len(PROMPT))) % (1 << 64)
        if position == len(state) - 1:
            made.append(int(runner._of(total, token, 0).argmax()))
    assert found[count + len(END)] == made[0]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "seed": 1}, {"presence_penalty": 0.1}])
@pytest.mark.parametrize("drafted", [False, True])
def test_speculation_and_few_pages_make_no_difference(sampling: dict[str, Any], drafted: bool) -> None:
    draft = FakeRunner(**SIZE, draft=True) if drafted else None
    fast = engine(EngineOptions(speculation=Speculation(draft, adaptive=False), pages=6))
    asked = [request(budget(count), **sampling) for count in (3, 7, 12, 20)]
    streams = [fast.submit(each) for each in asked]
    assert [s.collect() for s in streams] == [engine().submit(each).collect() for each in asked]
    assert fast.stats().accepted_tokens > 0


def test_the_output_may_end_within_the_written_end() -> None:
    found = engine().submit(request(budget(5), tokens=6)).collect()[0]
    assert found.tokens[5:] == [END[0]] and found.finish_reason == "length"


def test_log_probabilities_of_written_tokens_are_those_of_certainty() -> None:
    (choice,) = engine().submit(request(budget(4), logprobs=2)).collect()
    assert [entry.token for entry in choice.logprobs] == choice.tokens
    assert [entry.logprob for entry in choice.logprobs[4 : 4 + len(END)]] == [0.0] * len(END)
    assert choice.logprobs[3].logprob < 0 and len(choice.logprobs[3].top) == 2


def counted(state: BudgetState, texts: list[str]) -> int | None:
    """The number of texts after which the reasoning has to end."""
    return next((i for i, text in enumerate(texts, 1) if state.add(text)), None)


def test_what_counts_as_reasoning() -> None:
    long = ["word "] * 10
    assert counted(BudgetState(budget(3)), long) == 3
    assert counted(BudgetState(budget(3)), ["a", "b</", "t>", *long]) is None, "it has ended by itself"
    assert counted(BudgetState(budget(3, False)), long) is None, "there is none"
    assert counted(BudgetState(budget(3, False)), [" <", "t", ">", *long]) == 6
    assert counted(BudgetState(budget(0, False)), ["<t>", *long]) == 1
    assert counted(BudgetState(budget(0, False)), ["<t", "able>", *long]) is None


def test_what_a_budget_excludes() -> None:
    grammar = Grammars(tokenizer()).json()
    for changed, message in (
        (Request(PROMPT, grammar=grammar, reasoning=budget(1)), "exclude each other"),
        (Request(PROMPT, reasoning=budget(-1)), "at least 0 tokens"),
        (Request(PROMPT, reasoning=ReasoningBudget(1, "a", "b", ())), "an end of tokens"),
    ):
        with pytest.raises(RequestError, match=message):
            engine().submit(changed)
