"""Replies are prefilled while the engine is idle, and pages are kept in files; neither changes an answer."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import RequestError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.page_store import PageStore
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.runner import PAGE

SIZE: dict[str, Any] = {"vocabulary": tokenizer().vocabulary, "uniform": False}
PROMPT = list(range(2, 90))


class FakePages:
    """The cells of a `FakeRunner` as bytes."""

    size = PAGE * 16

    def __init__(self, runner: FakeRunner, identity: bytes = b"one") -> None:
        self._runner, self._identity = runner, identity

    def identity(self) -> bytes:
        return self._identity

    def read(self, page: int) -> bytes:
        return self._runner.cells[page].tobytes() + self._runner.places[page].tobytes()

    def write(self, page: int, content: bytes) -> None:
        self._runner.cells[page] = np.frombuffer(content, np.uint64, PAGE)
        self._runner.places[page] = np.frombuffer(content, np.int64, PAGE, PAGE * 8)


def request(prompt: list[int], tokens: int = 100, **options: Any) -> Request:
    return Request(prompt, SamplingParameters(0), max_tokens=tokens, ignore_eos=True, **options)


def said(engine: Engine, prompt: list[int], **options: Any) -> list[int]:
    return engine.submit(request(prompt, **options)).collect()[0].tokens


def idle(engine: Engine) -> None:
    """Run the steps of an idle engine."""
    while engine.step():
        pass


@pytest.mark.parametrize("chunk", [128, 48, 16])
def test_the_next_turn_finds_the_reply(chunk: int) -> None:
    runner = FakeRunner(**SIZE)
    engine = Engine(runner, tokenizer(), EngineOptions(chunk=chunk))
    reply = said(engine, PROMPT)
    idle(engine)
    assert engine.stats().reply_tokens >= 100
    turn = [*PROMPT, *reply, 7, 8, 9]
    stream = engine.submit(request(turn, 20))
    assert stream.collect()[0].tokens == FakeRunner(**SIZE).greedy(turn, 20)
    assert stream.cached_tokens == len(PROMPT) + len(reply), "the whole reply was prefilled"
    assert not runner.misuses


def test_without_idle_time_the_answer_is_the_same() -> None:
    runner = FakeRunner(**SIZE)
    engine = Engine(runner, tokenizer(), EngineOptions(replies=False))
    turn = [*PROMPT, *said(engine, PROMPT), 7]
    idle(engine)
    stream = engine.submit(request(turn, 20))
    assert stream.collect()[0].tokens == FakeRunner(**SIZE).greedy(turn, 20)
    assert stream.cached_tokens <= len(PROMPT) and engine.stats().reply_tokens == 0


def test_a_request_interrupts_the_work_and_little_is_lost() -> None:
    runner = FakeRunner(**SIZE)
    engine = Engine(runner, tokenizer(), EngineOptions(chunk=64))
    reply = said(engine, PROMPT, tokens=300)
    assert engine.step(), "the first chunk"
    computed = engine.stats().reply_tokens
    assert 0 < computed < 200
    assert said(engine, [5, 6, 7], tokens=3) == FakeRunner(**SIZE).greedy([5, 6, 7], 3)
    idle(engine)
    assert engine.stats().reply_tokens < len(PROMPT) + len(reply) + PAGE, "pages are not computed twice"
    assert engine.submit(request([*PROMPT, *reply, 5], 2)).collect() and not runner.misuses


def test_replies_of_adapters_and_with_a_draft() -> None:
    runner = FakeRunner(**SIZE, adapters=2)
    draft = FakeRunner(**SIZE, draft=True, chunk=32)
    options = EngineOptions(speculation=Speculation(draft, adaptive=False))
    engine = Engine(runner, tokenizer(), options)
    engine.adapters.load("x", "/x")
    engine.adapters.load("y", "/y")
    turns = []
    for name in ("x", "", "y"):
        turns.append((name, [*PROMPT, *said(engine, PROMPT, adapter=name), 7]))
    engine.adapters.unload("y")
    idle(engine)
    for name, turn in turns[:2]:
        stream = engine.submit(request(turn, 20, adapter=name))
        expected = FakeRunner(**SIZE).greedy(turn, 20, f"/{name}" if name else "")
        assert stream.collect()[0].tokens[:1] == expected[:1], name
        assert stream.cached_tokens == len(turn) - 1
    assert not runner.misuses and not draft.misuses


def test_few_pages_and_a_failing_model() -> None:
    runner = FakeRunner(**SIZE, pages=4)
    engine = Engine(runner, tokenizer())
    said(engine, PROMPT, tokens=100)

    def before(call: str) -> None:
        raise OSError("out of luck")

    runner.before = before
    idle(engine)
    runner.before = lambda call: None
    assert engine.stats().reply_tokens == 0 and said(engine, PROMPT, tokens=5)
    idle(engine)
    scheduler = engine._scheduler
    scheduler.cache.clear()
    assert scheduler.pool.free == 4 and not runner.misuses


def test_an_engine_with_a_thread_works_ahead() -> None:
    engine = Engine(FakeRunner(**SIZE), tokenizer())
    engine.start()
    said(engine, PROMPT)
    end = time.monotonic() + 20
    while engine.stats().reply_tokens < 100 and time.monotonic() < end:
        time.sleep(0.01)
    assert engine.stats().reply_tokens >= 100
    engine.stop(drain=True)


def stored(folder: Path, identity: bytes = b"one", pages: int = 8, most: int = 10**9) -> Engine:
    runner = FakeRunner(**SIZE, pages=pages)
    runner.page_access = FakePages(runner, identity)  # type: ignore[assignment]
    return Engine(
        runner, tokenizer(), EngineOptions(page_folder=folder, page_folder_bytes=most, replies=False)
    )


def test_pages_survive_a_restart(tmp_path: Path) -> None:
    long = [*PROMPT, *range(2, 200)]
    first = stored(tmp_path)
    expected = said(first, long, tokens=10)
    first.stop()
    assert first.stats().pages_written == len(long) // PAGE
    again = stored(tmp_path)
    stream = again.submit(request(long, 10))
    assert stream.collect()[0].tokens == expected == FakeRunner(**SIZE).greedy(long, 10)
    assert stream.cached_tokens == again.stats().pages_read * PAGE == len(long) // PAGE * PAGE
    other = stored(tmp_path, b"two")
    assert said(other, long, tokens=10) == expected and other.stats().pages_read == 0, "another model"


def test_evicted_pages_come_back(tmp_path: Path) -> None:
    engine = stored(tmp_path, pages=5)
    prompts = [[i, *PROMPT, *PROMPT] for i in range(3, 9)]
    for prompt in prompts:
        said(engine, prompt, tokens=5)
    stream = engine.submit(request(prompts[0], 5))
    assert stream.collect()[0].tokens == FakeRunner(**SIZE).greedy(prompts[0], 5)
    assert stream.cached_tokens == 128 and engine.stats().pages_read == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "renamed", "empty"])
def test_damaged_and_foreign_files_are_refused(tmp_path: Path, damage: str) -> None:
    long = [*PROMPT, *range(2, 200)]
    first = stored(tmp_path)
    expected = said(first, long, tokens=10)
    first.stop()
    files = sorted(tmp_path.iterdir())
    contents = [file.read_bytes() for file in files]
    for file, content, other in zip(files, contents, contents[1:] + contents[:1], strict=True):
        file.write_bytes(
            {
                "cut": content[:-1],
                "changed": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
                "renamed": other,
                "empty": b"",
            }[damage]
        )
    (tmp_path / "notes.txt").write_text("mine")
    again = stored(tmp_path)
    assert said(again, long, tokens=10) == expected
    statistics = again.stats()
    assert statistics.pages_read == 0 and 1 <= statistics.pages_refused <= len(files)
    assert (tmp_path / "notes.txt").exists()


def test_the_folder_keeps_its_limit(tmp_path: Path) -> None:
    store = PageStore(tmp_path, 3 * (100 + 72))
    keys = [bytes([i]) * 32 for i in range(5)]
    for key in keys[:3]:
        assert store.put(key, bytes(100))
    assert store.get(keys[0], 100) == bytes(100) and not store.put(keys[0], bytes(100))
    assert store.put(keys[3], bytes(100))
    assert [key in store for key in keys] == [True, False, True, True, False], "the oldest one has gone"
    assert store.size == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert not store.put(keys[4], bytes(1000)), "larger than the whole folder"
    smaller = PageStore(tmp_path, 200)
    assert sum(key in smaller for key in keys) == 1 and len(list(tmp_path.iterdir())) == 1
    (tmp_path / f"{keys[4].hex()}.page").write_bytes(b"later")
    assert PageStore(tmp_path, 10**6).get(keys[4], 100) is None


def test_files_that_vanish_or_are_no_files_are_passed_over(tmp_path: Path) -> None:
    """Another server that shares the folder may remove a file between the listing and the look at it."""
    names = [f"{bytes([i] * 32).hex()}.page" for i in range(3)]
    (tmp_path / names[0]).symlink_to(tmp_path / "removed")
    (tmp_path / names[1]).mkdir()
    (tmp_path / names[2]).write_bytes(bytes(50))
    assert PageStore(tmp_path, 10**6).size == 50


def test_models_share_the_limit_of_a_folder(tmp_path: Path) -> None:
    one, other = (PageStore.shared(tmp_path / "x" / ".." / name, 2 * 172) for name in ("x", "x"))
    keys = [bytes([i]) * 32 for i in range(3)]
    for store, key in zip((one, other, one), keys, strict=True):
        assert store.put(key, bytes(100))
    assert one is other and len(list((tmp_path / "x").iterdir())) == 2
    assert PageStore.shared(tmp_path / "x", 1000) is not one


def test_unfinished_files_of_ended_processes_are_removed(tmp_path: Path) -> None:
    old, new = (tmp_path / f"{bytes([i] * 32).hex()}.page.{'ab' * 8}.part" for i in range(2))
    other = tmp_path / "mine.part"
    for file in (old, new, other):
        file.write_bytes(b"x")
    for file in (old, other):
        os.utime(file, (0, 0))
    assert PageStore(tmp_path, 1000).size == 0
    assert sorted(tmp_path.iterdir()) == sorted([new, other])


def test_a_page_whose_time_cannot_be_set_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, key = PageStore(tmp_path, 1000), bytes(32)
    assert store.put(key, b"content")

    def refused(path: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    assert store.get(key, 7) == b"content" and key in store


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    runner = FakeRunner(**SIZE)
    for options, message in (
        ({"page_folder": tmp_path}, "memory is not this process's own"),
        ({"page_folder": tmp_path, "prefix_cache": False}, "the prefix cache is off"),
    ):
        with pytest.raises(RequestError, match=message):
            Engine(runner, tokenizer(), EngineOptions(**options))
    with pytest.raises(RequestError, match="cannot be stored there"):
        stored(file)
    with pytest.raises(RequestError, match="at least 1"):
        PageStore(tmp_path, 0)
