"""A server without keys answers this machine, and not the web pages of other sites that its browser shows."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tilewright.llm.server.errors import ApiError
from tilewright.llm.server.hosts import Hosts

from .conftest import Running
from .test_http import chat, connect, error_of, request, rest

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


def ask(
    server: Running, host: str, origin: str | None = None, path: str = "/v1/chat/completions"
) -> tuple[int, str]:
    connection = connect(server)
    more = [] if origin is None else [f"Origin: {origin}"]
    text = request(chat("hi"), "Connection: close", *more, path=path)
    connection.sendall(text.replace(b"Host: localhost", f"Host: {host}".encode()))
    response = rest(connection)
    return (200, "") if response.startswith(b"HTTP/1.1 200") else error_of(response)


@pytest.mark.parametrize("path", PATHS)
def test_dns_rebinding(server: Running, path: str) -> None:
    """A page of evil.example whose name points to 127.0.0.1 is refused, although for the browser it asks its
    own site.
    """
    host = f"evil.example:{server.port}"
    status, message = ask(server, host, f"http://{host}", path)
    assert status == 421 and "--allowed-host" in message and host in message
    status, message = ask(server, f"localhost:{server.port}", "https://evil.example", path)
    assert status == 403 and "--cors-origin" in message and "https://evil.example" in message
    assert server.engine.stats().requests == 0


def test_reading_is_refused_too(server: Running) -> None:
    for path in ("/", "/v1/models", "/metrics", "/v1/responses/resp_0"):
        assert server.http.get(path, headers={"Host": "evil.example"}).status_code == 421
    assert server.http.get("/health", headers={"Host": "some.service"}).status_code == 200


def test_names_of_the_machine(server: Running) -> None:
    port = server.port
    for host in (
        f"localhost:{port}",
        "LOCALHOST.",
        f"127.0.0.1:{port}",
        "[::1]",
        f"a.localhost:{port}",
        f"{socket.gethostname()}:{port}",
        "192.168.1.7",
    ):
        assert ask(server, host)[0] == 200, host
        assert ask(server, host, f"http://{host}")[0] == 200, host
    assert ask(server, "localhost", "http://localhost:80")[0] == 200
    assert ask(server, "localhost:8000", "http://localhost:3000")[0] == 403
    for host in (
        "",
        "localhost.evil.example",
        "evil.example",
        "localhost@evil.example",
        "127.0.0.1.evil.example",
        "x localhost",
        "[evil]",
        "127.1",
    ):
        assert ask(server, host)[0] == 421, host
    for origin in ("null", "file://", "http://", "x", "http://[", f"http://127.0.0.1:{port}.evil.example"):
        assert ask(server, f"127.0.0.1:{port}", origin)[0] == 403, origin


def test_options_let_others_in(start: Callable[..., Running]) -> None:
    named = start(hosts=["Model.Example"], origins=["https://app.example/"])
    assert (
        ask(named, "model.example")[0] == ask(named, "model.example:99", "https://model.example:99")[0] == 200
    )
    assert ask(named, "model.example", "https://model.example")[0] == 200, "behind a proxy that speaks HTTPS"
    assert ask(named, "localhost", "https://app.example")[0] == 200
    assert ask(named, "localhost", "https://app.example.evil.example")[0] == 403
    assert ask(named, "app.example", "https://app.example")[0] == 421
    assert ask(start(origins=["*"]), "evil.example", "https://evil.example")[0] == 200
    assert ask(start(keys=["k"]), "evil.example", "https://evil.example")[0] == 401, (
        "a server with keys checks them instead of hosts"
    )


def test_http_1_0_needs_no_host() -> None:
    Hosts().check({})
    with pytest.raises(ApiError, match="foreign|origin .* is not allowed"):
        Hosts().check({"origin": "http://localhost"})
