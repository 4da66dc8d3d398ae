"""Server-sent events, and detection of disconnected clients."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, dump
from .limits import Limits

DONE = b"data: [DONE]\n\n"


def event(content: object, name: str | None = None) -> bytes:
    """Make an event with JSON content."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + dump(content) + b"\n\n"


class TypedEvents(ABC):
    """An answer that consists of events with a type each, which also make up the answer in one piece."""

    @abstractmethod
    def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Generate; iterate over the events."""

    @abstractmethod
    def _result(self) -> dict[str, Any]:
        """Return the answer after all events."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Iterate over the events of a streamed answer."""
        async with aclosing(self._events()) as events:
            async for content in events:
                yield event(content, content["type"])

    async def whole(self) -> dict[str, Any]:
        """Return the answer in one piece."""
        async with aclosing(self._events()) as events:
            async for _ in events:
                pass
        return self._result()


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[anyio.CancelScope]:
    """Cancel the ``async with`` block when the client disconnects; the scope's ``cancelled_caught`` tells
    whether it did.

    The request's body must have been read.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    with anyio.CancelScope() as scope:
        watcher = asyncio.create_task(watch())
        try:
            yield scope
        finally:
            watcher.cancel()


class EventStream(Response):
    """A response that sends a stream of events.

    After `Limits.heartbeat` silent seconds a comment is sent, so that neither proxies nor clients time out.
    When the client disconnects, the generator is closed. An ApiError of the generator is sent as an event,
    because the status has been sent already.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        limits: Limits,
        finish: Callable[[], None],
        failed: Callable[[ApiError], bytes] | None = None,
    ) -> None:
        """Prepare the response.

        Args:
            events: the events.
            limits: the server's limits.
            finish: called at the end, also after an error.
            failed: makes the event for an error; None: the error's body.
        """
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._limits = limits
        self._finish = finish
        self._failed = failed or (lambda error: event(error.body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._run(receive, send)
        finally:
            self._finish()

    async def _run(self, receive: Receive, send: Send) -> None:
        async with while_connected(receive), aclosing(self._events) as events:
            last = time.monotonic()

            async def write(data: bytes) -> None:
                nonlocal last
                last = time.monotonic()
                await send({"type": "http.response.body", "body": data, "more_body": True})

            async def beat() -> None:
                while True:
                    await asyncio.sleep(max(0.01, last + self._limits.heartbeat - time.monotonic()))
                    if time.monotonic() - last >= self._limits.heartbeat:
                        await write(b": heartbeat\n\n")

            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            heart = asyncio.create_task(beat())
            try:
                async for data in events:
                    await write(data)
            except ApiError as error:
                await write(self._failed(error))
            finally:
                heart.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
