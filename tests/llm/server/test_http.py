"""Clients that are slow, many, broken or gone, and how the server ends."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tilewright.llm.server.streaming import event

from .conftest import Running
from .echo import EchoRunner

Start = Callable[..., Running]


class Slow(EchoRunner):
    """Takes 10 ms for each token."""

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        time.sleep(0.01)
        return super().decode(tokens, lengths, pages, slots)


def connect(server: Running) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    return connection


def rest(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    found = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            return found
        if not part:
            return found
        found += part


def request(
    body: bytes, *headers: str, path: str = "/v1/chat/completions", length: int | None = None
) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chat(text: str, **more: Any) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}], **more}).encode()


def answers(server: Running) -> bool:
    return server.http.get("/health").status_code == 200


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def error_of(response: bytes) -> tuple[int, str]:
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def test_slow_headers(start: Start) -> None:
    server = start(header_timeout=0.3)
    silent, dribbling = connect(server), connect(server)
    dribbling.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    assert answers(server)
    for i in range(100):
        if select.select([dribbling], [], [], 0.05)[0]:
            break
        dribbling.sendall(b"X-%d: y\r\n" % i)
    assert error_of(rest(dribbling)) == (408, "the request's headers did not arrive within 0.3 s")
    assert rest(silent) == b""
    assert answers(server)


def test_slow_second_request(start: Start) -> None:
    """After an answered request, half a request or blank lines keep the connection no longer than a request
    that never began.
    """
    server = start(header_timeout=0.3, keep_alive=30)
    for trickle in (b"GET /health HT", b"\r\n"):
        connection = connect(server)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(trickle)
        rest(connection)
    assert answers(server)


def test_slow_body(start: Start) -> None:
    server = start(body_timeout=0.3)
    connection = connect(server)
    connection.sendall(request(b'{"model"', length=500))
    assert error_of(rest(connection)) == (408, "the request's body did not arrive within 0.3 s")
    assert answers(server)


def test_body_behind_an_answer(start: Start) -> None:
    """A request that is answered before its body has arrived does not keep the connection open for the rest
    of the body.
    """
    server = start(keys=("k",), header_timeout=0.3, keep_alive=30)
    connection = connect(server)
    connection.sendall(request(b"{", length=5000))
    assert rest(connection).startswith(b"HTTP/1.1 401")
    assert answers(server)


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        request(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"") + b"zz\r\n",
    ],
)
def test_malformed_http(server: Running, text: bytes) -> None:
    connection = connect(server)
    connection.sendall(text)
    status, message = error_of(rest(connection))
    assert status == 400 and "not HTTP/1.1" in message
    assert answers(server)


def test_too_many_connections(start: Start) -> None:
    server = start(connections=3)
    held = [connect(server) for _ in range(3)]
    until(lambda: len(server.server.server_state.connections) == 3)
    status, message = error_of(rest(connect(server)))
    assert status == 503 and "too many connections" in message
    for connection in held:
        connection.close()
    until(lambda: not server.server.server_state.connections)
    assert answers(server)


def test_a_full_queue(start: Start) -> None:
    server = start(runner=Slow(max_batch=2), queue=1)
    with (
        httpx.Client(timeout=20) as client,
        client.stream(
            "POST",
            f"{server.url}/v1/chat/completions",
            content=chat("x" * 500, stream=True, n=3),
            headers={"Content-Type": "application/json"},
        ) as held,
    ):
        parts = held.iter_bytes()  # The iterator is kept because its end would close the connection.
        next(parts)
        refused = client.post(f"{server.url}/v1/chat/completions", json=json.loads(chat("hi")))
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
    until(lambda: server.service.admission.inside == 0)
    assert server.http.post("/v1/chat/completions", json=json.loads(chat("hi"))).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away(start: Start, stream: bool) -> None:
    server = start(runner=Slow())
    connection = connect(server)
    connection.sendall(request(chat("x" * 1500, stream=stream)))
    until(lambda: server.engine.stats().generated_tokens > 3)
    connection.close()
    until(lambda: server.engine.stats().running == 0 and server.service.admission.inside == 0)
    assert server.engine.stats().finished["cancelled"] == 1
    assert server.engine.stats().generated_tokens < 1000
    assert answers(server)


def test_a_client_that_reads_nothing(start: Start) -> None:
    server = start(send_timeout=0.3)
    server.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    tokens = 1500
    connection.sendall(
        request(
            json.dumps(
                {"model": "echo", "prompt": "x", "max_tokens": tokens, "stream": True, "logprobs": 20}
            ).encode(),
            path="/v1/completions",
        )
    )
    until(lambda: server.engine.stats().generated_tokens > 3)
    until(lambda: not server.server.server_state.connections)
    until(lambda: server.engine.stats().running == 0)
    assert server.engine.stats().generated_tokens < tokens
    connection.close()


def test_heartbeats(start: Start) -> None:
    class Stuck(EchoRunner):
        def prefill(self, tokens: Any, start: int, pages: Any, slot: int) -> Any:
            time.sleep(0.5)
            return super().prefill(tokens, start, pages, slot)

    server = start(runner=Stuck(), heartbeat=0.1)
    connection = connect(server)
    connection.sendall(request(chat("ab", stream=True), "Connection: close"))
    text = rest(connection)
    assert text.count(b": heartbeat\n\n") >= 2 and b"data: [DONE]" in text
    stream = server.client().chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "ab"}], stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "ab", (
        "clients skip the comments that keep a connection alive"
    )


@pytest.mark.parametrize("stream", [True, False])
def test_request_timeout(start: Start, stream: bool) -> None:
    server = start(runner=Slow(), request_timeout=0.3)
    answer = server.http.post(
        "/v1/chat/completions", json=json.loads(chat("x" * 1500, stream=stream)), timeout=20
    )
    if stream:
        event = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data: "))
        assert event["error"]["code"] == "timeout" and "[DONE]" not in answer.text
    else:
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
    until(lambda: server.engine.stats().running == 0)


def test_drain(start: Start) -> None:
    """On shutdown, requests in progress are finished, new ones get 503, and then the server ends."""
    server = start(runner=Slow())
    texts: list[str] = []

    def talk() -> None:
        client = server.client()
        answer = client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "y" * 80}], stream=True
        )
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in answer))

    talker = threading.Thread(target=talk)
    talker.start()
    until(lambda: server.engine.stats().running == 1)
    server.server.drain()
    refused = server.http.post("/v1/chat/completions", json=json.loads(chat("hi")))
    assert refused.status_code == 503 and refused.headers["connection"] == "close"
    assert int(refused.headers["retry-after"]) >= 1
    assert server.http.get("/health").json() == {"status": "draining"}
    talker.join(20)
    assert texts == ["y" * 80]
    assert server.wait(), "the server ends when its last answer is complete"


def test_drain_ends(start: Start) -> None:
    server = start(runner=Slow(), drain=0.2)
    connection = connect(server)
    connection.sendall(request(chat("x" * 1800, stream=True)))
    until(lambda: server.engine.stats().generated_tokens > 3)
    idle = connect(server)
    server.server.drain()
    assert server.wait()
    assert b"[DONE]" not in rest(connection) and rest(idle) == b""


def test_an_event_is_one_line_for_every_reader() -> None:
    """Clients split streams with `str.splitlines`, for which Unicode's ends of lines count."""
    text = "a\x85b\u2028c\u2029d\n\x0be é 中"
    told = event({"text": text}).decode()
    assert told.splitlines()[1:] == [""]
    assert json.loads(told.removeprefix("data: ")) == {"text": text}
