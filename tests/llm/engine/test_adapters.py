"""Requests with adapters: each gets the tokens of its own, whatever is loaded, unloaded and shared."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.llm.engine.test_engine import watched
from tests.llm.fake_runner import FakeAdapters, FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import RequestError, WeightsError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request, Stream
from tilewright.llm.runner import PAGE

GREEDY = SamplingParameters(temperature=0)
PROMPT = [5 + i % 50 for i in range(2 * PAGE + 10)]


def started(options: EngineOptions | None = None, *, loaded: str = "ab", adapters: int = 2) -> Engine:
    engine, _ = watched(options, adapters=adapters, uniform=False)
    for name in loaded:
        engine.adapters.load(name, Path("folder", name))
    return engine


def asked(engine: Engine, adapter: str, count: int = 12, n: int = 1) -> Stream:
    return engine.submit(Request(PROMPT, GREEDY, max_tokens=count, ignore_eos=True, adapter=adapter, n=n))


def wanted(engine: Engine, adapter: str, count: int = 12) -> list[int]:
    fake = engine.runner
    assert isinstance(fake, FakeRunner)
    return fake.greedy(PROMPT, count, str(Path("folder", adapter)) if adapter else "")


@pytest.mark.parametrize("speculation", [None, Speculation(adaptive=False)])
def test_one_batch(speculation: Speculation | None) -> None:
    """Requests with two adapters and without one, of which some have several choices, run together."""
    engine = started(EngineOptions(speculation=speculation))
    names = ["a", "", "b", "a", "b", ""]
    streams = [asked(engine, name, n=1 + i % 2) for i, name in enumerate(names)]
    for name, stream in zip(names, streams, strict=True):
        assert all(choice.tokens == wanted(engine, name) for choice in stream.collect())
    assert len({tuple(wanted(engine, name)) for name in names}) == 3, "adapters change the output"


def test_prefixes_belong_to_their_adapter() -> None:
    """A prompt's pages serve later requests with the same adapter, and no others."""
    engine = started()
    cached = []
    for name in ("a", "b", "", "a", "b", ""):
        stream = asked(engine, name)
        assert stream.collect()[0].tokens == wanted(engine, name)
        cached.append(stream.cached_tokens)
    assert cached[:3] == [0, 0, 0] and min(cached[3:]) >= 2 * PAGE


def test_a_new_adapter_in_an_old_place() -> None:
    """After an adapter is unloaded, another one in its place, of the same name, has pages of its own."""
    engine = started(loaded="a", adapters=1)
    assert asked(engine, "a").collect()[0].tokens == wanted(engine, "a")
    engine.adapters.unload("a")
    engine.adapters.load("a", Path("folder", "other"))
    stream = asked(engine, "a")
    assert stream.collect()[0].tokens == wanted(engine, "other") and stream.cached_tokens == 0


def test_running_requests_keep_an_unloaded_adapter() -> None:
    engine = started()
    stream = asked(engine, "a", 30, n=2)
    for _ in range(5):
        engine.step()
    engine.adapters.unload("a")
    with pytest.raises(RequestError, match="no adapter 'a' is loaded; loaded: b"):
        asked(engine, "a")
    with pytest.raises(RequestError, match="all 2 places are in use"):
        engine.adapters.load("c", Path("folder", "c"))
    assert all(choice.tokens == wanted(engine, "a", 30) for choice in stream.collect())
    engine.adapters.load("c", Path("folder", "c"))
    assert asked(engine, "c").collect()[0].tokens == wanted(engine, "c")


def test_replacing() -> None:
    engine = started(loaded="a")
    stream = asked(engine, "a", 30)
    engine.step()
    engine.adapters.load("a", Path("folder", "other"), replace=True)
    later = asked(engine, "a", 30)
    assert stream.collect()[0].tokens == wanted(engine, "a", 30)
    assert later.collect()[0].tokens == wanted(engine, "other", 30)
    assert engine.adapters.names == ["a"]


def test_replacing_the_only_adapter() -> None:
    """It takes the place of the old one, which stays if the new one is refused or the old one is in use."""
    engine = started(loaded="a", adapters=1)
    with pytest.raises(WeightsError, match="damaged"):
        engine.adapters.load("a", Path("bad"), replace=True)
    stream = asked(engine, "a")
    with pytest.raises(RequestError, match="all 1 places are in use by a"):
        engine.adapters.load("a", Path("folder", "other"), replace=True)
    assert stream.collect()[0].tokens == wanted(engine, "a")
    engine.adapters.load("a", Path("folder", "other"), replace=True)
    stream = asked(engine, "a")
    assert stream.collect()[0].tokens == wanted(engine, "other") and stream.cached_tokens == 0
    with pytest.raises(RequestError, match="all 1 places are in use by a"):
        engine.adapters.load("b", Path("folder", "b"))


def test_a_place_is_free_after_a_replacement_that_fails() -> None:
    engine = started(loaded="a", adapters=1)
    fake = engine.runner.adapters
    assert isinstance(fake, FakeAdapters)

    def fail(number: int, adapter: Path) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake, "write", fail)
        with pytest.raises(MemoryError):
            engine.adapters.load("a", Path("folder", "other"), replace=True)
    assert engine.adapters.names == []
    engine.adapters.load("b", Path("folder", "b"))
    assert asked(engine, "b").collect()[0].tokens == wanted(engine, "b")


def test_places_are_freed_after_failures_and_cancelled_requests() -> None:
    engine = started(loaded="a", adapters=1)
    stream = asked(engine, "a")
    engine.step()
    stream.cancel()
    engine.step()
    engine.adapters.unload("a")
    with pytest.raises(WeightsError, match="damaged"):
        engine.adapters.load("a", Path("bad"))
    engine.adapters.load("b", Path("folder", "b"))
    assert asked(engine, "b").collect()[0].tokens == wanted(engine, "b")


def test_refusals() -> None:
    engine = started()
    with pytest.raises(RequestError, match="'a' is loaded already"):
        engine.adapters.load("a", Path("folder", "c"))
    with pytest.raises(RequestError, match="no adapter 'c' is loaded; loaded: a, b"):
        engine.adapters.unload("c")
    without = Engine(FakeRunner(vocabulary=tokenizer().vocabulary), tokenizer())
    with pytest.raises(RequestError, match="--max-adapters"):
        without.adapters.load("a", Path("folder", "a"))
    with pytest.raises(RequestError, match="loaded: none"):
        asked(without, "a")
