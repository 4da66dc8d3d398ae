"""Adapters over HTTP: listed, chosen by the model's name, loaded and unloaded by clients where that is
allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.llm.fake_runner import FakeAdapters

from .conftest import Running
from .echo import EchoRunner

Start = Callable[..., Running]


class Adapted(EchoRunner):
    """An echo model with two places for adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = FakeAdapters(2, self.max_batch)
        self.used: list[int] = []

    def prefill(self, tokens: Any, start: int, pages: Any, slot: int) -> Any:
        self.used.append(self.adapters.of_slot[slot])
        return super().prefill(tokens, start, pages, slot)


def names(client: OpenAI) -> list[str]:
    return [model.id for model in client.models.list()]


def test_loading_choosing_and_unloading(start: Start) -> None:
    runner = Adapted()
    server = start(runner=runner, load_adapters=True)
    client, http = server.client(), server.http
    answer = http.post("/v1/load_lora_adapter", json={"lora_name": "tuned", "lora_path": "/adapters/tuned"})
    assert answer.status_code == 200 and "'tuned' added successfully" in answer.text
    assert names(client) == ["echo", "tuned"]
    models = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert models["tuned"]["parent"] == "echo" and "parent" not in models["echo"]
    assert client.models.retrieve("tuned").id == "tuned"
    for name, number in (("tuned", 1), ("echo", 0)):
        runner.used.clear()
        reply = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "ab"}])
        assert reply.model == name and reply.choices[0].message.content == "ab"
        assert set(runner.used) == {number}
        assert client.completions.create(model=name, prompt="x", max_tokens=1).model == name
        assert client.responses.create(model=name, input="x").model == name
    body = {"model": "tuned", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 9}
    assert http.post("/v1/messages", json=body).json()["model"] == "tuned"
    with pytest.raises(BadRequestError, match="'tuned' is an adapter"):
        client.embeddings.create(model="tuned", input="x")
    texts: dict[str, dict[str, Any]] = {
        "/rerank": {"query": "a", "documents": ["b"]}, "/score": {"text_1": "a", "text_2": "b"}
    }  # fmt: skip
    for path, text in texts.items():
        assert http.post(path, json={"model": "echo", **text}).status_code == 200
        answer = http.post(path, json={"model": "tuned", **text})
        assert answer.status_code == 400 and "'tuned' is an adapter; scores are those of" in answer.text
    answer = http.post("/v1/unload_lora_adapter", json={"lora_name": "tuned"})
    assert answer.status_code == 200 and "'tuned' removed successfully" in answer.text
    assert names(client) == ["echo"]
    with pytest.raises(NotFoundError, match="'tuned' does not exist; this server has 'echo'"):
        client.completions.create(model="tuned", prompt="x")


def test_errors(start: Start) -> None:
    server = start(runner=Adapted(), load_adapters=True)

    def load(name: str, path: str, **more: Any) -> Any:
        body = {"lora_name": name, "lora_path": path, **more}
        answer = server.http.post("/v1/load_lora_adapter", json=body)
        param = answer.json()["error"]["param"] if answer.status_code == 400 else None
        return answer.status_code, answer.text, param

    status, text, param = load("broken", "/adapters/bad")
    assert status == 400 and "/adapters/bad: damaged" in text and param == "lora_path"
    assert load("tuned", "/adapters/tuned")[0] == 200
    status, text, param = load("tuned", "/adapters/tuned")
    assert status == 400 and "loaded already" in text and param == "lora_name"
    assert load("tuned", "/adapters/new", load_inplace=True)[0] == 200
    status, text, param = load("echo", "/adapters/tuned")
    assert status == 400 and "that of the model itself" in text and param == "lora_name"
    assert load("second", "/adapters/second")[0] == 200
    status, text, param = load("third", "/adapters/third")
    assert status == 400 and "all 2 places are in use by tuned, second" in text and param is None
    status, text, _ = load("", "/adapters/third")
    assert status == 400 and "lora_name" in text
    answer = server.http.post("/v1/unload_lora_adapter", json={"lora_name": "third"})
    assert answer.status_code == 404 and "loaded: tuned, second" in answer.text


def test_clients_may_not_load_unless_allowed(start: Start) -> None:
    runner = Adapted()
    server = start(runner=runner, keys=("secret",))
    body = {"lora_name": "tuned", "lora_path": "/adapters/tuned"}
    assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 401
    server.http.headers["Authorization"] = "Bearer secret"
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        answer = server.http.post(path, json=body)
        assert answer.status_code == 403 and "--allow-adapter-loading" in answer.text
    server.service.load_adapter("tuned", Path("/adapters/tuned"))
    assert names(server.client("secret")) == ["echo", "tuned"]
