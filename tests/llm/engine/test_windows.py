"""Pages that no later token sees are freed while a sequence runs, and outputs stay the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.llm.engine.test_engine import leaks
from tests.llm.fake_runner import MASK, FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.runner import KEY_BLOCK, LONG_WINDOW, PAGE, Floats, Ints, first_page

SIZE: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "uniform": False, "local": 0.9}


class WindowRunner(FakeRunner):
    """A runner whose cells and logits depend on the last `window` tokens only, and which reads no others."""

    def __init__(self, window: int, freed: bool = True, **options: Any) -> None:
        super().__init__(**{**SIZE, **options})
        self.seen = window
        self.window = window if freed else None

    def prefill(self, tokens: Ints, start: int, pages: Ints, slot: int) -> Floats:
        self._called("prefill", len(tokens))
        for i, token in enumerate(tokens.tolist()):
            total = self._write(token, start + i, self._sum(pages, start + i), pages, slot)
        return self._logits(total, int(tokens[-1]), slot)

    def _sum(self, pages: Ints, length: int) -> int:
        begin, total = max(0, length - (self.seen - 1)), 0
        for at in range(begin, length):
            page = int(pages[at // PAGE])
            if page < 0 or self.places[page, at % PAGE] != at:
                self._misuse(f"page {page} does not hold token {at}")
            total += int(self.cells[page, at % PAGE])
        return total & MASK


def watched(runner: FakeRunner, options: EngineOptions | None = None) -> Engine:
    """An engine whose runner notices every access to a free page."""
    engine = Engine(runner, tokenizer(), options)
    give_back = engine._scheduler.pool.give_back

    def forget(page: int) -> None:
        runner.forget(page)
        give_back(page)

    engine._scheduler.pool.give_back = forget  # type: ignore[method-assign]
    return engine


def asked(count: int, tokens: int) -> list[Request]:
    return [
        Request(list(range(2 + i, 40 + 30 * i)), SamplingParameters(0), max_tokens=tokens, ignore_eos=True)
        for i in range(count)
    ]


@pytest.mark.parametrize("window", [10, 64, 100])
@pytest.mark.parametrize("drafted", [None, False, True])
def test_outputs_do_not_depend_on_freed_pages(window: int, drafted: bool | None) -> None:
    speculation = None
    if drafted is not None:
        draft = WindowRunner(window, draft=True, pages=24) if drafted else None
        speculation = Speculation(draft, adaptive=False)
    options = EngineOptions(speculation=speculation, replies=False)
    engine = watched(WindowRunner(window, pages=24), options)
    plain = watched(WindowRunner(window, freed=False, pages=64), EngineOptions(replies=False))
    streams = [[made.submit(request) for request in asked(4, 300)] for made in (engine, plain)]
    found, expected = ([s.collect()[0].tokens for s in each] for each in streams)
    assert found == expected
    assert engine.stats().pages_released >= 4 and plain.stats().pages_released == 0
    assert not leaks(engine)


def test_long_answers_need_the_memory_of_a_window() -> None:
    """Four answers of 500 tokens run together in 20 pages, without preemption."""
    preemptions = []
    for freed in (True, False):
        engine = watched(WindowRunner(64, freed=freed, pages=20), EngineOptions(replies=False))
        streams = [engine.submit(request) for request in asked(4, 500)]
        for stream in streams:
            stream.collect()
        preemptions.append(engine.stats().preemptions)
    assert preemptions[0] == 0 < preemptions[1]


def test_a_draft_that_lags_keeps_its_pages() -> None:
    """While two sequences run, the draft computes nothing; later it needs the pages of what it has missed."""
    draft = WindowRunner(10, draft=True)
    engine = watched(
        WindowRunner(10), EngineOptions(speculation=Speculation(draft, max_batch=1, adaptive=False))
    )
    streams = [engine.submit(request) for request in asked(2, 150)]
    plain = watched(WindowRunner(10, freed=False))
    expected = [plain.submit(request).collect()[0].tokens for request in asked(2, 150)]
    assert [stream.collect()[0].tokens for stream in streams] == expected
    assert draft.calls["decode"] > 0 and not draft.misuses


def test_the_first_page_that_is_read() -> None:
    assert [first_page(at, 64) for at in (0, 63, 126, 127, 191)] == [0, 0, 0, 1, 2]
    long = LONG_WINDOW + 100
    for position in (0, 2000, 5000):
        first = first_page(position, long) * PAGE
        assert first % KEY_BLOCK == 0 and first <= max(position - long + 1, 0)
