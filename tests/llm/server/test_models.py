"""A server of several models: the request's `model` chooses one, which is loaded when it is asked for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI

from tilewright.errors import ArtifactError, RequestError
from tilewright.llm.engine.adapters import Adapters
from tilewright.llm.engine.engine import Engine
from tilewright.llm.server.app import application
from tilewright.llm.server.http import Lifecycle, make_server
from tilewright.llm.server.limits import Keys, Limits
from tilewright.llm.server.models import Models, ServedModel
from tilewright.llm.server.service import Service

from .echo import EchoRunner, tokenizer


class Loud(EchoRunner):
    """Echoes, and counts its loads and ends. While `held` is cleared, decoding waits."""

    def __init__(self, log: list[str], name: str) -> None:
        super().__init__(context=len(name) * 512)
        self.log, self.name = log, name
        self.library = self
        self.held = threading.Event()
        self.held.set()
        log.append(f"load {name}")

    def close(self) -> None:
        self.log.append(f"close {self.name}")

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        self.held.wait()
        return super().decode(tokens, lengths, pages, slots)


class Several:
    """A server of models whose names are given, each of which needs 10 bytes."""

    def __init__(self, *names: str, memory: int | None = None, load_models: bool = False) -> None:
        self.log: list[str] = []
        self.runners: dict[str, Loud] = {}
        self.limits, self.keys, self.lifecycle = Limits(request_timeout=3), Keys(), Lifecycle()
        self.models = Models(
            [self.source(name) for name in names],
            self.limits, self.keys, self.lifecycle, None, memory,
            lambda name, path: self.source(name, path),
        )  # fmt: skip
        self.models.preload()
        ready = threading.Event()
        self.server = make_server(
            application(self.models, load_models=load_models),
            self.lifecycle, self.limits, ready.set, port=0, log_level="error",
        )  # fmt: skip
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        assert ready.wait(20)
        url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        self.http = httpx.Client(base_url=url, timeout=20)
        self.client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def source(self, name: str, path: Path | None = None) -> ServedModel:
        def opened() -> Service:
            if path is not None and path.name.startswith("bad"):
                raise ArtifactError(f"{path}: damaged")
            runner = self.runners[name] = Loud(self.log, name)
            engine = Engine(runner, tokenizer())
            return Service(name, engine, engine.tokenizer, self.limits, self.keys, lifecycle=self.lifecycle)

        return ServedModel(name, opened, 1000 if path is not None and path.name == "huge" else 10)

    def ask(self, model: str, text: str = "hello") -> str:
        answer = self.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}]
        )
        assert answer.model == model
        return str(answer.choices[0].message.content)

    def loaded(self) -> list[str]:
        data = self.http.get("/v1/models").json()["data"]
        return [model["id"] for model in data if model["loaded"]]

    def metric(self, name: str, model: str) -> float | None:
        found = [
            line.split()[-1]
            for line in self.http.get("/metrics").text.splitlines()
            if line.startswith(f'tilewright_{name}{{model="{model}"}}')
        ]
        return float(found[0]) if found else None

    def until(self, holds: Callable[[], bool], seconds: float = 20) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not so within {seconds} s"
            time.sleep(0.005)

    def close(self) -> None:
        for runner in self.runners.values():
            runner.held.set()
        self.server.force_exit = self.server.should_exit = True
        self._thread.join(20)
        self.models.close()


@pytest.fixture
def several() -> Iterator[Callable[..., Several]]:
    made: list[Several] = []

    def make(*names: str, **options: Any) -> Several:
        made.append(Several(*names, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


def test_the_request_chooses_the_model(several: Callable[..., Several]) -> None:
    server = several("a", "bb")
    assert server.log == ["load a", "load bb"]
    assert [m.id for m in server.client.models.list().data] == ["a", "bb"]
    assert server.ask("a") == server.ask("bb") == "hello"
    assert server.metric("engine_requests_total", "a") == server.metric("engine_requests_total", "bb") == 1
    lengths = [server.http.get(f"/v1/models/{name}").json()["max_model_len"] for name in ("a", "bb")]
    assert lengths == [512, 1024]
    with pytest.raises(APIStatusError, match="model 'c' does not exist; this server has 'a', 'bb'") as error:
        server.ask("c")
    assert error.value.status_code == 404
    unnamed = server.http.post("/tokenize", json={"prompt": "x"})
    assert unnamed.status_code == 400 and "'a', 'bb'" in unnamed.json()["error"]["message"]
    assert server.http.post("/tokenize", json={"prompt": "x", "model": "bb"}).json()["max_model_len"] == 1024


def test_the_least_recently_used_model_is_unloaded(several: Callable[..., Several]) -> None:
    server = several("a", "b", "c", memory=25)
    assert server.loaded() == ["a", "b"] and server.metric("model_loaded", "c") == 0
    assert server.ask("a") == "hello"
    assert server.ask("c") == "hello", "b was not used for the longest time"
    assert server.loaded() == ["a", "c"] and server.log[2:] == ["close b", "load c"]
    assert server.ask("b") == "hello"
    assert server.loaded() == ["b", "c"] and server.log[4:] == ["close a", "load b"]
    assert server.metric("model_loads_total", "b") == 2 and server.metric("model_evictions_total", "b") == 1
    assert server.metric("model_bytes", "a") == 10 and server.metric("engine_running", "a") is None


def test_a_model_that_answers_is_not_unloaded(several: Callable[..., Several]) -> None:
    """A request for another model waits, and gets 503 if it waits as long as an answer may take."""
    server = several("a", "b", memory=15)
    server.runners["a"].held.clear()
    chunks: list[str] = []

    def talk() -> None:
        stream = server.client.chat.completions.create(
            model="a", messages=[{"role": "user", "content": "long"}], stream=True
        )
        chunks.extend(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    talker = threading.Thread(target=talk)
    talker.start()
    server.until(lambda: server.metric("engine_running", "a") == 1)
    answers: list[str] = []
    asker = threading.Thread(target=lambda: answers.append(server.ask("b")))
    asker.start()
    asker.join(0.2)
    assert asker.is_alive() and server.log == ["load a"]
    server.runners["a"].held.set()
    talker.join(20)
    asker.join(20)
    assert "".join(chunks) == "long" and answers == ["hello"]
    assert server.log == ["load a", "close a", "load b"]


def test_many_requests_load_a_model_once(several: Callable[..., Several]) -> None:
    server = several("a", "b", memory=15)
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: answers.append(server.ask(name, name * 3)))
        for name in "bbbaabba"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["aaa"] * 3 + ["bbb"] * 5
    loads = [entry for entry in server.log if entry.startswith("load")]
    assert all(one != other for one, other in pairwise(loads)), "loads take turns"


def test_clients_load_and_unload_models(several: Callable[..., Several]) -> None:
    server = several("a", "b", memory=25, load_models=True)

    def post(what: str, **body: str) -> tuple[int, str]:
        response = server.http.post(f"/v1/{what}_model", json=body)
        return response.status_code, response.text

    assert post("unload", model="a")[0] == 200 and server.loaded() == ["b"]
    assert post("unload", model="a")[0] == 200
    assert post("load", model="a")[0] == 200 and server.loaded() == ["a", "b"]
    assert post("load", model="new", path="/models/new")[0] == 200 and server.loaded() == ["a", "new"]
    assert server.ask("new") == "hello"
    for body, code, message in (
        ({"model": "x"}, 404, "this server has 'a', 'b', 'new'"),
        ({"model": "a", "path": "/models/new"}, 400, "the name 'a' is taken"),
        ({"model": "y", "path": "/models/bad"}, 500, "model 'y' cannot be loaded: /models/bad: damaged"),
        ({"model": "z", "path": "/models/huge"}, 400, "more than the memory limit"),
    ):
        status, text = post("load", **body)
        assert status == code and message in text
    assert {m.id for m in server.client.models.list().data} == {"a", "b", "new"}
    server.ask("a")
    server.runners["a"].held.clear()
    talker = threading.Thread(target=lambda: server.ask("a"))
    talker.start()
    server.until(lambda: server.metric("engine_running", "a") == 1)
    status, text = post("unload", model="a")
    assert status == 409 and "is answering requests" in text
    server.runners["a"].held.set()
    talker.join(20)


def test_loading_models_must_be_allowed(several: Callable[..., Several]) -> None:
    response = several("a", "b").http.post("/v1/unload_model", json={"model": "a"})
    assert response.status_code == 403 and "--allow-model-loading" in response.text


def test_models_with_adapters_leave_no_room(
    several: Callable[..., Several], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that can never get room fails at once, so that others need not wait behind it."""
    server = several("a", "b", memory=15)
    monkeypatch.setattr(Adapters, "names", ["tuned"])
    server.models.limits = Limits(request_timeout=1000)
    with pytest.raises(APIStatusError, match="'a' have adapters and hold") as error:
        server.ask("b")
    assert error.value.status_code == 503 and server.ask("a") == "hello"


def test_waiting_requests_share_one_time_limit(several: Callable[..., Several]) -> None:
    """The time limit begins when a request arrives, not when it is the first of those that wait."""
    models = several("a", "b", "c", memory=15).models
    models.limits = Limits(request_timeout=0.3)

    async def ask() -> float:
        (await models.take("a")).used = 0
        begin = time.monotonic()
        found = await asyncio.gather(*map(models.take, "bcbc"), return_exceptions=True)
        assert [getattr(error, "status", None) for error in found] == [503] * 4
        return time.monotonic() - begin

    # a fresh lock belongs to this loop, apart from the server's
    models._turn = asyncio.Lock()
    assert asyncio.run(ask()) < 0.9, "four limits in a row are 1.2 s"


def test_a_model_that_failed_to_load_is_not_loaded_by_others(several: Callable[..., Several]) -> None:
    models = several("a", memory=15).models
    models.limits = Limits(request_timeout=0.1)
    models._turn = asyncio.Lock()

    async def ask() -> list[Any]:
        used = await models.take("a")
        loads = asyncio.create_task(models.load("new", Path("/models/new")))
        await asyncio.sleep(0)
        waits = asyncio.create_task(models.take("new"))
        found = await asyncio.gather(loads, waits, return_exceptions=True)
        used.release()
        return found

    assert [getattr(error, "status", None) for error in asyncio.run(ask())] == [503, 404]
    assert models.names == ["a"]


def test_models_must_differ_and_fit() -> None:
    source = ServedModel("a", lambda: pytest.fail("loaded"), 20)
    for models, memory, message in (
        ([source, source], None, "two models have the name 'a'"),
        ([source], 19, "more than the memory limit"),
    ):
        with pytest.raises(RequestError, match=message):
            Models(models, Limits(), Keys(), Lifecycle(), None, memory)


def test_a_client_that_leaves_does_not_wait_for_a_model(several: Callable[..., Several]) -> None:
    server = several("a", "b", memory=15)
    server.runners["a"].held.clear()
    talker = threading.Thread(target=lambda: server.ask("a"))
    talker.start()
    server.until(lambda: server.metric("engine_running", "a") == 1)
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/tokenize", json={"prompt": "x", "model": "b"}, timeout=0.3)
    server.until(lambda: server.models._queue == 0, 2)
    server.runners["a"].held.set()
    talker.join(20)
    assert server.log == ["load a"] and server.ask("a") == "hello"


def test_a_load_goes_on_when_its_client_leaves(several: Callable[..., Several]) -> None:
    server = several("a", "b", memory=15)
    go = threading.Event()
    model = server.models.find("b")
    opened = model.open

    def slowly() -> Service:
        go.wait(20)
        return opened()

    model.open = slowly
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/tokenize", json={"prompt": "x", "model": "b"}, timeout=0.3)
    assert server.models._turn.locked(), "nothing else is loaded before it has ended"
    go.set()
    server.until(lambda: server.loaded() == ["b"])
    assert server.ask("b") == "hello"
    server.until(lambda: model.users == 0)


def test_a_limited_number_of_requests_waits_for_models(several: Callable[..., Several]) -> None:
    models = several("a", "b", memory=15).models
    models.limits, models._turn = Limits(request_timeout=0.2, queue=2), asyncio.Lock()

    async def ask() -> list[Any]:
        used = await models.take("a")
        found = await asyncio.gather(*(models.take("b") for _ in range(4)), return_exceptions=True)
        used.release()
        return found

    assert sorted(getattr(error, "status", 0) for error in asyncio.run(ask())) == [429, 429, 503, 503]


def test_a_model_is_closed_although_its_engine_fails_to_stop() -> None:
    runner = Loud(log := [], "a")
    engine = Engine(runner, tokenizer())
    service = Service("a", engine, engine.tokenizer, Limits(), Keys(), lifecycle=Lifecycle())

    def broken() -> None:
        raise RuntimeError("broken")

    engine.stop = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        service.close()
    assert log == ["load a", "close a"]
