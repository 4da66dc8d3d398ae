"""HTTP by uvicorn, with what it lacks against clients that are slow, many or broken, and a drain that finishes answers before it closes.

uvicorn bounds only how long an idle connection is kept after a response. Here a deadline runs whenever the next request's headers are due and whenever the
client reads nothing of what was sent, connections are counted when they are made, and what is no HTTP, or could be read in two ways (`framing.py`), is answered as JSON. How long a body may take
is the application's to bound (`limits.read_body`).
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from .errors import ApiError, dump
from .framing import strict
from .limits import Limits

_DRAINED = 1  # seconds that answers get to end when the time to drain is over


class Lifecycle:
    """Whether the server is on its way out. The application refuses new work then; set from a signal."""

    draining = False


class Protocol(H11Protocol):
    """A connection."""

    limits: Limits  # set by `protocol`

    _deadline: asyncio.TimerHandle | None = None  # for headers
    _unread: asyncio.TimerHandle | None = None  # for the client to read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.connections:
            self.transport = transport
            self._answer(ApiError(503, "too many connections; try again later", headers={"Retry-After": "1"}))
            return
        super().connection_made(transport)
        strict(self.conn)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_arrived()
        self._unset_keepalive_if_required()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Between two responses all that comes is the next request's head, or the rest of a body that nobody wants any more.
        if self.cycle is None or self.cycle.response_complete:
            self._expect_headers()
        else:
            self._headers_arrived()

    def _expect_headers(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.limits.header_timeout, self._too_slow)

    def _headers_arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            seconds = self.limits.header_timeout
            self._answer(ApiError(408, f"the request's headers did not arrive within {seconds:g} s"))
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.send_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self.flow is not None:
            super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # which waits for the client to read the rest
            self.loop.call_later(self.limits.send_timeout, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        if (
            self.cycle is not None and not self.cycle.response_complete
        ):  # in the midst of a body: its application is told that the client is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        fault = sys.exception()  # uvicorn's text tells nothing
        self._answer(ApiError(400, f"this is not HTTP/1.1: {fault or msg}", code="invalid_http"))

    def _answer(self, error: ApiError) -> None:
        """Send an error that no application made, and close."""
        body = dump(error.body)
        headers = {
            "Content-Type": "application/json",
            "Content-Length": len(body),
            "Connection": "close",
            **error.headers,
        }
        head = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
        status = f"HTTP/1.1 {error.status} ".encode() + STATUS_PHRASES[error.status]
        self.transport.write(status + b"\r\n" + head + b"\r\n" + body)
        self.transport.close()


def protocol(limits: Limits) -> type[Protocol]:
    """The protocol class for a server with these limits."""
    return type("LimitedProtocol", (Protocol,), {"limits": limits})


class Server(uvicorn.Server):
    """On SIGTERM or SIGINT: new requests get 503, answers in progress go on for up to `Limits.drain` seconds; a second signal ends them."""

    def __init__(
        self, config: uvicorn.Config, lifecycle: Lifecycle, limits: Limits, ready: Callable[[], None] = lambda: None
    ) -> None:
        """`ready` is called once connections are accepted."""
        super().__init__(config)
        self._ready = ready
        self._lifecycle = lifecycle
        self._limits = limits
        self._end = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._lifecycle.draining:
            self.force_exit = self.should_exit = True
        else:
            self.drain()

    def drain(self) -> None:
        """Refuse what is new, and end when what is there is answered."""
        self._end = time.monotonic() + self._limits.drain
        self._lifecycle.draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        if self._lifecycle.draining and (not self.server_state.tasks or time.monotonic() > self._end):
            self.should_exit = True
        return await super().on_tick(counter)


def make_server(
    app: ASGIApp,
    lifecycle: Lifecycle,
    limits: Limits,
    ready: Callable[[], None] = lambda: None,
    **options: Any,
) -> Server:
    """A server for `app`, not yet running; `options` are further ones of `uvicorn.Config`."""
    config = uvicorn.Config(
        app,
        http=protocol(limits),
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=_DRAINED,
        **options,
    )
    return Server(config, lifecycle, limits, ready)
