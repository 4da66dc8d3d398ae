"""Streams in threads and in asyncio, with an engine that runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import EngineError, OverloadedError
from tilewright.llm.engine.engine import Engine
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.stream import Request

GREEDY = SamplingParameters(temperature=0)


def request(first: int = 5, count: int = 10) -> Request:
    return Request([first], GREEDY, max_tokens=count, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(FakeRunner(vocabulary=tokenizer().vocabulary), tokenizer())
    engine.start()
    yield engine
    engine.stop()


def said(engine: Engine, first: int, count: int = 10) -> list[int]:
    return engine.runner.greedy([first], count)  # type: ignore[attr-defined,no-any-return]


def test_readers_in_many_threads(engine: Engine) -> None:
    found: dict[int, list[int]] = {}

    def read(first: int) -> None:
        found[first] = engine.submit(request(first)).collect()[0].tokens

    threads = [threading.Thread(target=read, args=(first,)) for first in range(2, 22)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {first: said(engine, first) for first in range(2, 22)}
    assert engine.embed([3, 4]).tolist() == [3, 7]


def test_asyncio(engine: Engine) -> None:
    async def read(first: int) -> list[int]:
        return [token async for delta in engine.submit(request(first)) for token in delta.tokens]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(read(first) for first in range(2, 12)))

    assert asyncio.run(main()) == [said(engine, first) for first in range(2, 12)]


def test_asyncio_without_a_thread_makes_steps() -> None:
    engine = Engine(FakeRunner(vocabulary=tokenizer().vocabulary), tokenizer())

    async def main() -> list[int]:
        return [token async for delta in engine.submit(request()) for token in delta.tokens]

    assert asyncio.run(main()) == said(engine, 5)


def test_leaving_an_async_reader_cancels(engine: Engine) -> None:
    # The request must not end before it is left.
    engine.runner.before = lambda call: time.sleep(1e-3)  # type: ignore[attr-defined]

    async def main() -> str | None:
        stream = engine.submit(request(5, 900))
        deltas = aiter(stream)
        await anext(deltas)
        await deltas.aclose()  # type: ignore[attr-defined]
        for delta in stream:
            reason = delta.finish_reason
        return reason

    assert asyncio.run(main()) == "cancelled"


def test_cancelling_ends_all_choices(engine: Engine) -> None:
    stream = engine.submit(Request([5], GREEDY, ignore_eos=True, n=3))
    first = next(iter(stream))
    stream.cancel()
    assert [choice.finish_reason for choice in stream.collect()] == ["cancelled"] * 3 and len(
        first.tokens
    ) == 1
    stream.cancel()  # Has no effect on a stream that has ended.


def test_an_error_reaches_the_reader(engine: Engine) -> None:
    def before(call: str) -> None:
        if call == "decode":
            raise OSError("out of luck")

    engine.runner.before = before  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="out of luck"):
        engine.submit(request()).collect()

    async def main() -> None:
        async for _ in engine.submit(request()):
            pass

    with pytest.raises(EngineError, match="out of luck"):
        asyncio.run(main())


def test_stopping_fails_what_is_under_way_and_starting_again_serves(engine: Engine) -> None:
    streams = [engine.submit(request(first, 900)) for first in range(2, 22)]
    next(iter(streams[0]))
    engine.stop()
    with pytest.raises(EngineError, match="stopped before the request was finished"):
        streams[-1].collect()
    with pytest.raises(OverloadedError, match="being stopped"):
        engine.submit(request())
    with pytest.raises(OverloadedError, match="being stopped"):
        engine.embed([5])
    engine.start()
    assert engine.submit(request()).collect()[0].tokens == said(engine, 5)


def test_draining_finishes_what_is_under_way(engine: Engine) -> None:
    streams = [engine.submit(request(first, 50)) for first in range(2, 22)]
    engine.stop(drain=True)
    assert [stream.collect()[0].tokens for stream in streams] == [
        said(engine, first, 50) for first in range(2, 22)
    ]


def test_a_mistake_of_the_engine_fails_its_requests_and_the_thread_lives(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine._outputs, "_measure", lambda sequence, tokens: 1 / 0)
        with pytest.raises(EngineError, match="the engine failed: ZeroDivisionError"):
            engine.submit(request()).collect()
    assert engine.submit(request()).collect()[0].tokens == said(engine, 5)
