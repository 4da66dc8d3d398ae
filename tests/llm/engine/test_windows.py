"""Pages that no later token sees are freed while a sequence runs, and outputs stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.engine.test_engine import leaks
from tests.llm.engine.test_replies import FakePages
from tests.llm.fake_runner import MASK, FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.llm.engine.beam_search import BeamSearch
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


def text(seed: int, tokens: int) -> list[int]:
    """Random tokens."""
    found: list[int] = np.random.default_rng(seed).integers(2, SIZE["vocabulary"], tokens).tolist()
    return found


def asking(prompt: list[int], tokens: int) -> Request:
    return Request(prompt, SamplingParameters(0), max_tokens=tokens, ignore_eos=True)


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


def test_long_prompts_need_the_memory_of_a_window() -> None:
    """A prompt of 15 pages runs in 4, or beside others in 10, and has the output of a large cache."""
    prompts = [text(seed, 950) for seed in range(3)]
    prompts.append([*prompts[0][:600], *prompts[1][:200]])
    plain = watched(WindowRunner(64, freed=False), EngineOptions(prefix_cache=False))
    expected = [plain.submit(asking(prompt, 60)).collect()[0].tokens for prompt in prompts]
    for pages, together in ((4, False), (5, False), (10, True)):
        engine = watched(WindowRunner(64, pages=pages), EngineOptions(replies=False))
        assert engine.limit == 1024
        if together:
            streams = [engine.submit(asking(prompt, 60)) for prompt in prompts]
            found = [stream.collect()[0].tokens for stream in streams]
        else:
            found = [engine.submit(asking(prompt, 60)).collect()[0].tokens for prompt in prompts]
        assert found == expected
        assert together or engine.stats().preemptions == 0
        assert not leaks(engine) and not engine._scheduler.cache._nodes
    few = watched(WindowRunner(64, pages=3))
    assert few.limit == 3 * PAGE  # a chunk of 128 tokens and their window need four


@pytest.mark.parametrize("reply", [False, True])
def test_a_prefix_continues_behind_evicted_pages(reply: bool) -> None:
    """The end of a long prompt is still there for the next turn, though its beginning is not."""
    engine = watched(WindowRunner(64, pages=8), EngineOptions(replies=reply))
    plain = watched(WindowRunner(64, freed=False), EngineOptions(replies=reply))
    prompt, cached = text(0, 800), list[int]()
    for _ in range(2):
        found = []
        for each in (engine, plain):
            stream = each.submit(asking(prompt, 100))
            found.append(stream.collect()[0].tokens)
            while each.step():
                pass
            cached.append(stream.cached_tokens)
        assert found[0] == found[1]
        prompt = [*prompt, *found[0], 5, 6, 7]
    assert cached[:2] == [0, 0] and cached[2] >= (896 if reply else 768)
    assert not leaks(engine)


def test_evicted_pages_are_read_from_files(tmp_path: Path) -> None:
    """Only those that the next token sees are read."""
    runner = WindowRunner(64, pages=8)
    runner.page_access = FakePages(runner)  # type: ignore[assignment]
    engine = watched(runner, EngineOptions(replies=False, page_folder=tmp_path))
    plain = watched(WindowRunner(64, freed=False))
    prompt = text(0, 900)
    engine.submit(asking(prompt, 2)).collect()
    stream = engine.submit(asking(prompt[:500], 40))
    assert stream.collect()[0].tokens == plain.submit(asking(prompt[:500], 40)).collect()[0].tokens
    assert stream.cached_tokens >= 448 and 1 <= engine.stats().pages_read <= 2
    assert not leaks(engine)


@pytest.mark.parametrize("pages", [9, 14, 40])
def test_forks_beams_and_shared_prefixes_with_little_memory(pages: int) -> None:
    """Random requests that begin alike have the outputs of an engine that frees nothing."""
    random = np.random.default_rng(pages)
    requests: list[Request] = []
    for k in range(14):
        begin = text(int(random.integers(2)), 700)
        prompt = [*begin[: int(random.integers(1, 700))], *range(2, 2 + int(random.integers(30)))]
        options: dict[str, Any] = {"beams": BeamSearch(2)} if k % 5 == 1 else {"n": 1 + 2 * (k % 4 == 2)}
        options["sampling"] = SamplingParameters(0) if k % 2 else SamplingParameters(1, seed=k)
        requests.append(Request(prompt, max_tokens=int(random.integers(1, 150)), ignore_eos=True, **options))
    expected = []
    plain = watched(
        WindowRunner(64, freed=False, pages=200), EngineOptions(prefix_cache=False, replies=False)
    )
    for request in requests:
        expected.append([choice.tokens for choice in plain.submit(request).collect()])
    engine = watched(WindowRunner(64, pages=pages), EngineOptions(chunk=64))
    streams = [engine.submit(request) for request in requests]
    for stream, tokens in zip(streams, expected, strict=True):
        assert [choice.tokens for choice in stream.collect()] == tokens
    assert not leaks(engine) and not engine._scheduler.cache._nodes


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
