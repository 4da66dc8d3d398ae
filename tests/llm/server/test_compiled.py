"""The server with a compiled library of 4-bit weights: many clients, thousands of requests, and a process
that is killed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm.small_library import checkpoint, library
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, LibraryRunner, open_library, save_library
from tilewright.llm.weights import open_checkpoint

from .conftest import Running
from .echo import tokenizer
from .test_http import answers, until

CLIENTS = 64
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library, with its weights and tokenizer, in a folder of its own."""
    folder = checkpoint(tmp_path_factory.mktemp("llama"), vocabulary=tokenizer().vocabulary, layers=1)
    tokenizer().backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    path: Path = tmp_path_factory.mktemp("library") / "small.so"
    with library(folder, "int4_g32", LibraryOptions(context=256, chunk=64, max_batch=8)) as found:
        save_library(found, open_checkpoint(folder), path)
    return path


class Unhurried(LibraryRunner):
    """Slow enough for clients to leave during an answer."""

    def decode(self, *arguments: Any) -> Any:
        time.sleep(0.002)
        return super().decode(*arguments)


@pytest.fixture(scope="module")
def runner(path: Path) -> Iterator[LibraryRunner]:
    found, _, _ = open_library(path)
    with found.library:
        yield found


def requests() -> list[tuple[list[int], int]]:
    """Return prompts, and how many tokens follow each. Most begin alike, some repeat themselves so that
    lookup guesses more of them, and some are short with long answers.
    """
    draw = random.Random(3)
    shared = draw.choices(range(256), k=90)
    found = []
    for i in range(CLIENTS):
        prompt = shared[: draw.choice([0, 40, 64, 90])] + draw.choices(range(256), k=draw.randrange(1, 60))
        if i % 4 == 0:
            prompt = (prompt[:9] * 12)[:100]
        found.append((prompt[:15], 200) if i % 3 == 0 else (prompt, draw.choice([1, 5, 30, 90])))
    return found


@pytest.fixture(scope="module")
def alone(runner: LibraryRunner) -> list[str]:
    """The result of each request from an engine of its own."""
    greedy = SamplingParameters(temperature=0)
    asked = [Request(prompt, greedy, max_tokens=most, ignore_eos=True) for prompt, most in requests()]
    return [Engine(runner, tokenizer()).submit(request).collect()[0].text for request in asked]


@pytest.mark.parametrize("speculation", [None, Speculation(adaptive=False)], ids=["plain", "speculation"])
def test_64_clients_get_what_each_gets_alone(
    start: Callable[..., Running], runner: LibraryRunner, alone: list[str], speculation: Speculation | None
) -> None:
    """Each client gets the answer that its request gets alone. All of them stream at the same time and some
    leave during the answer; there is memory for few, so that the engine preempts and resumes.
    """
    server = start(
        runner=Unhurried(runner.library), options=EngineOptions(pages=12, speculation=speculation), queue=200
    )
    gone = set(random.Random(4).sample([i for i, (_, most) in enumerate(requests()) if most > 5], 12))

    async def talk(client: httpx.AsyncClient, index: int) -> str:
        prompt, most = requests()[index]
        body = {
            "model": "echo",
            "prompt": prompt,
            "max_tokens": most,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        said, count = "", 0
        async with client.stream("POST", COMPLETIONS, json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    said += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                    count += 1
                if index in gone and count == 3:
                    break
        return said

    async def everybody() -> list[str]:
        async with httpx.AsyncClient(
            base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=None)
        ) as client:
            return await asyncio.gather(*(talk(client, index) for index in range(CLIENTS)))

    for index, (said, text) in enumerate(zip(asyncio.run(everybody()), alone, strict=True)):
        assert text.startswith(said) if index in gone else said == text, index
    until(lambda: server.engine.stats().running == server.engine.stats().waiting == 0)
    stats = server.engine.stats()
    assert stats.preemptions > 0 and stats.cached_tokens > 0 and stats.finished["cancelled"] > 0
    assert (stats.accepted_tokens > 0) == (speculation is not None)
    until(lambda: server.engine.stats().pages_used == 0)  # replies are still being computed ahead
    assert answers(server)


@pytest.mark.slow
def test_nothing_is_left_of_5000_requests(start: Callable[..., Running], runner: LibraryRunner) -> None:
    """Streams left early, whole answers and refused requests leave nothing behind: memory, pages, threads and
    open files stay bounded.
    """
    server = start(runner=runner, queue=100)
    process = psutil.Process()

    async def one(client: httpx.AsyncClient, index: int) -> None:
        body: dict[str, Any] = {"model": "echo", "prompt": f"{index} " * (1 + index % 9), "max_tokens": 3}
        if index % 3 == 0:
            assert (await client.post(COMPLETIONS, json=body | {"ignore_eos": True})).status_code == 200
        elif index % 3 == 1:
            assert (await client.post(COMPLETIONS, json=body | {"max_tokens": 9999})).status_code == 400
        else:
            body |= {"max_tokens": 100, "stream": True, "ignore_eos": True}
            async with client.stream("POST", COMPLETIONS, json=body) as answer:
                async for _ in answer.aiter_raw():
                    break

    async def many(begin: int, end: int) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            for first in range(begin, end, 20):
                await asyncio.gather(*(one(client, i) for i in range(first, first + 20)))

    def held() -> tuple[int, int, int]:
        until(lambda: server.service.admission.inside == server.engine.stats().running == 0)
        until(lambda: not server.server.server_state.connections)
        gc.collect()
        return process.memory_info().rss, threading.active_count(), process.num_fds()

    asyncio.run(many(0, 1000))
    before = held()
    asyncio.run(many(1000, 5000))
    memory, threads, files = held()
    assert memory - before[0] < 16 << 20 and threads <= before[1] and files <= before[2]
    stats = server.engine.stats()
    assert stats.pages_used == 0 and stats.requests > 3000 and sum(stats.finished.values()) == stats.requests


async def kill_while_streaming(process: subprocess.Popen[str], url: str, body: dict[str, Any]) -> None:
    """Kill the server at the first piece of many answers. Together they take seconds, so that most of them
    break off.
    """

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", url + COMPLETIONS, json=body) as answer:
            async for _ in answer.aiter_raw():
                process.kill()

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        ends = await asyncio.gather(*(read(client) for _ in range(32)), return_exceptions=True)
    assert any(isinstance(end, httpx.TransportError) for end in ends), ends


def test_killed_and_started_again(path: Path, tmp_path: Path) -> None:
    """A server that was killed starts again on the same port with the same files. It gives the same answers
    as before, and stored responses are kept.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    files = sorted(path.parent.rglob("*"))
    body = {
        "model": "small",
        "prompt": "It was a dark night",
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
    }
    command = [
        sys.executable,
        "-m",
        "tilewright",
        "llm",
        "serve",
        str(path),
        "--port",
        str(port),
        "--log-level",
        "error",
        "--responses",
        str(tmp_path / "responses"),
    ]
    said, kept = [], []
    for _ in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None and url in process.stdout.readline(), process.communicate()
            said.append(httpx.post(url + COMPLETIONS, json=body, timeout=60).json()["choices"][0]["text"])
            asked = {"model": "small", "input": "Hi", "max_output_tokens": 16}
            kept.append(httpx.post(url + RESPONSES, json=asked, timeout=60).json())
            assert all(httpx.get(f"{url}{RESPONSES}/{one['id']}").json() == one for one in kept)
            asyncio.run(kill_while_streaming(process, url, body | {"stream": True, "max_tokens": 200}))
        finally:
            process.kill()
            process.communicate()
        assert sorted(path.parent.rglob("*")) == files
    assert said[0] == said[1] and said[0]
