"""A prompt of some megabytes is refused without being tokenized if its size shows that it is too long.
Otherwise it is tokenized without delaying other clients.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from tokenizers import normalizers

from .conftest import Running
from .echo import tokenizer

Start = Callable[..., Running]


@pytest.fixture
def others(start: Start) -> Iterator[Callable[[Running], list[float]]]:
    """A function that starts a client which sends requests one after another until the test ends, and returns
    the list of its waiting times in seconds.
    """
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def watch(server: Running) -> list[float]:
        waits: list[float] = []

        def ask() -> None:
            while not ended.is_set():
                begin = time.perf_counter()
                server.http.get("/health")
                waits.append(time.perf_counter() - begin)

        threads.append(threading.Thread(target=ask))
        threads[-1].start()
        return waits

    yield watch
    ended.set()
    for thread in threads:
        thread.join()


def refused(server: Running, text: str) -> tuple[float, str]:
    begin = time.perf_counter()
    body = {"model": "echo", "messages": [{"role": "user", "content": text}]}
    answer = server.http.post("/v1/chat/completions", json=body)
    seconds = time.perf_counter() - begin
    error = answer.json()["error"]
    assert (
        answer.status_code == 400
        and error["code"] == "context_length_exceeded"
        and error["param"] == "messages"
    )
    return seconds, error["message"]


def test_by_its_size(start: Start) -> None:
    server = start()
    encoded: list[str] = []
    encode = server.service.tokenizer.encode
    server.service.tokenizer.encode = lambda text, **how: encoded.append(text) or encode(text, **how)  # type: ignore[method-assign,func-returns-value]
    _, message = refused(server, "hello " * 1_200_000)
    # The longest token, <|im_start|>, bounds the number of tokens from below.
    assert "bytes, at least 6000" in message and "context is 2048 tokens" in message and not encoded
    refused(server, "x" * 3000)
    assert len(encoded) == 1, "a prompt that might fit is tokenized"


def test_by_its_tokens(start: Start, others: Callable[[Running], list[float]]) -> None:
    """A tokenizer that drops letters gives no lower bound of the number of tokens, so the prompt is tokenized
    and refused by its tokens.
    """
    server = start()
    server.engine.tokenizer.backend.normalizer = normalizers.Lowercase()
    assert server.service.tokenizer.least_tokens("x" * 10**6) == 0
    refused(server, "x" * 3000)
    process = psutil.Process()
    before = process.memory_info().rss
    waits = others(server)
    seconds, message = refused(server, "hello " * 200_000)
    assert "1200" in message and "context is 2048 tokens" in message
    assert max(waits) < max(1.0, seconds / 3), (max(waits), seconds)
    assert process.memory_info().rss - before < 40 << 20
    assert tokenizer().least_tokens("x" * 24) == 2
