"""What the server refuses: limits, keys, and the door to the engine."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from ...errors import TilewrightError
from .errors import ApiError

KEYS_VARIABLE = "TILEWRIGHT_API_KEYS"


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients may ask for. Times are in seconds, sizes in bytes; None: what the model allows."""

    body: int = 8 << 20
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    """Most tokens of one answer."""
    queue: int = 256
    """Most answers that wait for the engine, beside those that it works on; whoever comes then gets 429. `n` choices count as `n`."""
    connections: int = 1024
    header_timeout: float = 10
    """Until a request's headers are there, from the connection's or the request's first byte."""
    body_timeout: float = 30
    send_timeout: float = 60
    """How long a client may leave what was sent unread."""
    keep_alive: float = 30
    request_timeout: float = 600
    """Until the answer is complete."""
    heartbeat: float = 15
    """Between two signs of life in a stream."""
    drain: float = 60
    """How long answers in progress may take after SIGTERM."""


class Keys:
    """The API keys that are accepted; none: everybody is."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """ApiError 401 unless an Authorization header names a key. All keys are compared, in a time that depends on none."""
        if not self._digests:
            return
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(
                401,
                "this server wants an API key: send the header 'Authorization: Bearer KEY'",
                code="missing_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        if not sum([hmac.compare_digest(digest, known) for known in self._digests]):
            raise ApiError(401, "the API key is wrong", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def read_keys(path: str | Path | None) -> Keys:
    """The keys of a file (one a line, ``#`` begins a comment) and of the environment (TILEWRIGHT_API_KEYS, separated by commas)."""
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",")]
    if path is not None:
        found = [line.partition("#")[0].strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
        if not any(found):
            raise TilewrightError(f"{path}: no API key in it; write one a line")
        keys += found
    return Keys(key for key in keys if key)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The request's body; ApiError 413 where it is too large, 408 where it takes too long."""
    too_large = ApiError(
        413,
        f"the body is larger than this server's limit of {limits.body} bytes",
        code="body_too_large",
        headers={"Connection": "close"},
    )
    body = bytearray()
    if int(request.headers.get("content-length", 0)) > 8 * limits.body:
        raise too_large
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                # What is too large is read on, and dropped, up to a point: a client that is still writing when the connection closes
                # may never see the answer.
                body += chunk
                if len(body) > 8 * limits.body:
                    raise too_large
    except TimeoutError:
        message = f"the request's body did not arrive within {limits.body_timeout:g} s"
        raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "the client went away") from None
    if len(body) > limits.body:
        raise too_large
    return bytes(body)


class Admission:
    """The door to the engine, which has a queue of its own: so many answers in progress, and whoever comes then is sent away."""

    def __init__(self, concurrency: int, queue: int) -> None:
        self.concurrency = concurrency
        self.limit = concurrency + queue
        self.inside = 0
        self._seconds = 1.0  # how long an answer takes, averaged over the last ones

    def enter(self, count: int) -> Callable[[], None]:
        """Take `count` places; the result gives them back. ApiError where there are not so many."""
        if count > self.limit:
            message = f"{count} answers at once are more than this server's limit of {self.limit}"
            raise ApiError(400, message, param="n", code="invalid_value")
        if self.inside + count > self.limit:
            raise ApiError(
                429,
                f"{self.inside} answers are in progress or wait, and no more may; try again later",
                code="server_busy",
                headers={"Retry-After": str(self.retry_after)},
            )
        self.inside += count
        begin = time.monotonic()

        def leave() -> None:
            self._seconds += 0.1 * (time.monotonic() - begin - self._seconds)
            self.inside -= count

        return leave

    @property
    def retry_after(self) -> int:
        """Seconds until there should be a place."""
        return max(1, min(60, round(self._seconds / self.concurrency)))
