"""HTTP by uvicorn, with additional limits for slow, numerous and broken clients, and a shutdown that finishes
answers.

uvicorn bounds only the time that an idle connection is kept after a response. Here a deadline also runs while
the next request's headers are due, and while the client does not read what was sent. Connections are counted
when they are made. Input that is not HTTP, or is ambiguous (`framing.py`), gets an error in JSON. The
application bounds the time for a body (`limits.read_body`).
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

_DRAINED = 1  # seconds that answers get to end after the drain time is over


class Lifecycle:
    """Whether the server is shutting down; set by a signal. The application then refuses new work."""

    draining = False


class Protocol(H11Protocol):
    """A connection with deadlines."""

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
        # Between two responses only the next request's head arrives, or the rest of a body that is no longer
        # needed.
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
        if self.transport.is_closing():  # the transport waits until the client has read the rest
            self.loop.call_later(self.limits.send_timeout, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        # within a body: tell its application that the client is gone
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        fault = sys.exception()  # uvicorn's message lacks the cause
        self._answer(ApiError(400, f"this is not HTTP/1.1: {fault or msg}", code="invalid_http"))

    def _answer(self, error: ApiError) -> None:
        """Send an error that does not come from the application, and close the connection."""
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
    """Make the protocol class for a server with these limits."""
    return type("LimitedProtocol", (Protocol,), {"limits": limits})


class Server(uvicorn.Server):
    """A uvicorn server that drains on SIGTERM or SIGINT.

    New requests then get 503, and answers in progress continue for up to `Limits.drain` seconds. A second
    signal ends them.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        lifecycle: Lifecycle,
        limits: Limits,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a server; `ready` is called once connections are accepted."""
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
        """Refuse new requests, and stop when the current ones are answered."""
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
    """Make a server for `app`; it does not run yet. `options` are passed to `uvicorn.Config`."""
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
