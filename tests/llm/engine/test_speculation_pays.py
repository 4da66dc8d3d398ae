"""A speculating engine is never much slower than a plain one, and faster with a good draft: measured through
the whole engine on a clock that only calls of the models advance. Answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.llm.engine import steps
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request

SIZE: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "local": 0.995}
Times = tuple[float, float, float]
"""Milliseconds of a decoding step, of each further token in it, and of a token of a prompt."""
SMALL: Times = (0.5, 0.085, 0.16)
QUARTER: Times = (0.1, 0.02, 0.018)
"""The model and the draft of `bench.llm.speculation`."""
SLOW: Times = (0.4, 0.07, 0.1)


class Clock:
    """Stands for the module `time`."""

    now = work = 0.0
    """Seconds, and those that had passed on an idle machine."""

    def __init__(self, changing: bool = False) -> None:
        """With a load of the machine that changes threefold after every 150 plain steps, if `changing`."""
        self._changing = changing

    def perf_counter(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        loaded = self._changing and int(self.work * 1e3 / SMALL[0]) // 150 % 2
        self.now, self.work = self.now + seconds * (3 if loaded else 1), self.work + seconds

    def runs(self, runner: FakeRunner, times: Times) -> Any:
        """Let the calls of a runner take their times."""
        step, more, prompt = times
        seen = 0

        def before(call: str) -> None:
            nonlocal seen
            tokens, seen = runner.calls["tokens"] - seen, runner.calls["tokens"]
            if call == "decode":
                self.pass_by((step + more * (tokens - 1)) / 1e3)
            elif call == "prefill":
                self.pass_by(prompt * tokens / 1e3)

        runner.before = before
        return runner


def spoil(draft: FakeRunner, wrong: bool) -> None:
    """Let a draft always guess the same token, or guess well."""
    draft.bias[5] = 1e3 if wrong else 0.0


def answers(clock: Clock, engine: Engine, count: int, prompt: int, tokens: int, at_once: int) -> list[Any]:
    """The tokens of greedy answers, and the clock's work after each group of them."""
    found: list[Any] = []
    for first in range(0, count, at_once):
        streams = [
            engine.submit(
                Request(
                    [(7 * i * j + i) % 40 + 6 for j in range(prompt)],
                    SamplingParameters(0),
                    max_tokens=tokens,
                    ignore_eos=True,
                )
            )
            for i in range(first, first + at_once)
        ]
        found.append(([stream.collect()[0].tokens for stream in streams], clock.work))
    return found


def ratios(
    monkeypatch: pytest.MonkeyPatch,
    draft: Any,
    asked: tuple[int, int, int, int],
    times: Times = QUARTER,
    between: Callable[[int], None] = lambda group: None,
    changing: bool = False,
) -> list[float]:
    """How many times as fast as a plain engine a speculating one is, from the start to each group's end."""
    ends = []
    for speculation in (None, Speculation(draft)):
        clock = Clock(changing)
        monkeypatch.setattr(steps, "time", clock)
        if draft is not None:
            clock.runs(draft, times)
        engine = Engine(
            clock.runs(FakeRunner(**SIZE), SMALL), tokenizer(), EngineOptions(speculation=speculation)
        )
        found = []
        for group in range(asked[0] // asked[3]):
            between(group)
            found += answers(clock, engine, asked[3], *asked[1:])
        ends.append(found)
    assert [tokens for tokens, _ in ends[0]] == [tokens for tokens, _ in ends[1]]
    return [plain / speculated for (_, plain), (_, speculated) in zip(*ends, strict=True)]


@pytest.mark.parametrize(
    "asked", [(40, 100, 16, 1), (8, 200, 120, 1), (24, 60, 30, 4), (2, 30, 400, 1), (16, 300, 30, 8)], ids=str
)
@pytest.mark.parametrize("times", [QUARTER, SLOW], ids=["quarter", "slow"])
def test_a_wrong_draft_loses_little(
    asked: tuple[int, int, int, int], times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short answers and long ones, one or several at once: after every one of them."""
    draft = FakeRunner(**SIZE, draft=True)
    spoil(draft, True)
    assert min(ratios(monkeypatch, draft, asked, times)) >= 0.95


def test_a_changing_load(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (8, 100, 250, 1)
    wrong, good = (FakeRunner(**SIZE, draft=True) for _ in range(2))
    spoil(wrong, True)
    assert min(ratios(monkeypatch, wrong, asked, changing=True)) >= 0.95
    found = ratios(monkeypatch, good, asked, changing=True)
    assert found[-1] > 1.35 and min(found) >= 1


@pytest.mark.parametrize("asked", [(40, 100, 16, 1), (8, 200, 120, 1)], ids=str)
def test_lookup_loses_little(asked: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(ratios(monkeypatch, None, asked)) >= 0.95


def test_a_good_draft_wins_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ratios(monkeypatch, FakeRunner(**SIZE, draft=True), (6, 100, 150, 1))
    assert found[0] > 1.1 and found[1] > 1.25, "from the first answer on"
    assert found[-1] > 1.4 and min(found) >= 1


@pytest.mark.parametrize("length", [40, 150])
def test_a_draft_that_is_good_at_every_other_text(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = FakeRunner(**SIZE, draft=True)
    found = ratios(
        monkeypatch, draft, (12, 100, length, 1), between=lambda group: spoil(draft, group % 2 == 1)
    )
    assert min(found) >= 0.95


def test_a_draft_that_becomes_wrong_and_good_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that good guesses have saved is not spent on wrong ones, and the wrong ones are not held against
    good ones for long.
    """
    draft = FakeRunner(**SIZE, draft=True)
    found = ratios(monkeypatch, draft, (12, 100, 200, 1), between=lambda group: spoil(draft, 4 <= group < 8))
    seconds = [0.0, *((i + 1) / ratio for i, ratio in enumerate(found))]
    pieces = [4 / (seconds[end] - seconds[end - 4]) for end in (4, 8, 12)]
    assert pieces[0] > 1.3 and pieces[1] >= 0.95 and pieces[2] > 1.2
