"""Servers in threads, around the echo model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.server.app import application
from tilewright.llm.server.http import Server, make_server
from tilewright.llm.server.limits import Keys, Limits
from tilewright.llm.server.service import Service
from tilewright.llm.text_use import TextUse
from tilewright.llm.tokenizer import Tokenizer

from .echo import TEMPLATE, EchoRunner, tokenizer


class Running:
    """A listening server, on port `port`."""

    def __init__(
        self,
        keys: tuple[str, ...] = (),
        template: str | None = TEMPLATE,
        origins: Any = (),
        hosts: Any = (),
        runner: Any = None,
        options: EngineOptions | None = None,
        texts: TextUse | None = None,
        tracing: Any = None,
        words: Tokenizer | None = None,
        load_adapters: bool = False,
        **limits: Any,
    ) -> None:
        self.engine = Engine(runner or EchoRunner(), words or tokenizer(template), options)
        self.engine.start()
        self.service = Service(
            "echo", self.engine, self.engine.tokenizer, Limits(**limits), Keys(keys), {}, texts or TextUse()
        )
        self.service.tracing = tracing
        app = application(self.service, origins, hosts=hosts, load_adapters=load_adapters)
        ready = threading.Event()
        self.server: Server = make_server(
            app, self.service.lifecycle, self.service.limits, ready.set, port=0, log_level="error"
        )
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        assert ready.wait(20)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(
            base_url=self.url, timeout=20, limits=httpx.Limits(max_keepalive_connections=0)
        )

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def wait(self, seconds: float = 10) -> bool:
        """Return whether the server ends by itself."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.server.force_exit = self.server.should_exit = True
        assert self.wait()
        self.engine.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """A function that starts a server with given limits."""
    running: list[Running] = []

    def make(**options: Any) -> Running:
        running.append(Running(**options))
        return running[-1]

    yield make
    for server in running:
        server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with the usual limits."""
    running = Running()
    yield running
    running.close()


@pytest.fixture(scope="module")
def client(server: Running) -> OpenAI:
    return server.client()
