"""The server's limits, API keys, and admission of requests to the engine."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from ...errors import TilewrightError
from .errors import ApiError

KEYS_VARIABLE = "TILEWRIGHT_API_KEYS"


@dataclass(frozen=True)
class Limits:
    """Limits for clients. Times are in seconds, sizes in bytes; None: the model's own limit."""

    body: int = 8 << 20
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    """The most tokens of one answer."""
    queue: int = 256
    """The most answers that wait, besides those that the engine works on; further requests get 429. `n`
    choices count as `n`.
    """
    connections: int = 1024
    header_timeout: float = 10
    """Time for a request's headers, from the first byte of the connection or the request."""
    body_timeout: float = 30
    send_timeout: float = 60
    """Time that a client may leave sent data unread."""
    keep_alive: float = 30
    request_timeout: float = 600
    """Time until an answer is complete."""
    heartbeat: float = 15
    """Time between comments in a stream that is otherwise silent."""
    drain: float = 60
    """Time that answers in progress may take after SIGTERM."""


class Keys:
    """The accepted API keys; if there are none, every request is accepted."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Mapping[str, str]) -> None:
        """Check the key in a request's headers: ``Authorization: Bearer KEY``, or Anthropic's ``x-api-key``.

        All keys are compared, so the time reveals nothing about them.

        Raises:
            ApiError: 401: they do not contain an accepted key.
        """
        if not self._digests:
            return
        key = key_of(headers)
        if not key:
            raise ApiError(
                401,
                "this server requires an API key: send the header 'Authorization: Bearer KEY'",
                code="missing_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        if not sum([hmac.compare_digest(digest, known) for known in self._digests]):
            raise ApiError(
                401,
                "the API key is not valid",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def key_of(headers: Mapping[str, str]) -> str:
    """Return the API key in a request's headers; "" if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def read_keys(path: str | Path | None) -> Keys:
    """Read keys from a file and from the environment variable TILEWRIGHT_API_KEYS.

    The file has one key a line, and ``#`` begins a comment; the variable is separated by commas.

    Raises:
        TilewrightError: the file has no key.
    """
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",")]
    if path is not None:
        file_keys = [
            line.partition("#")[0].strip() for line in Path(path).read_text(encoding="utf-8").splitlines()
        ]
        if not any(file_keys):
            raise TilewrightError(f"{path}: contains no API key; write one a line")
        keys += file_keys
    return Keys(key for key in keys if key)


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read a request's body.

    Raises:
        ApiError: 413: it is too large; 408: it takes too long.
    """
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
                # An excessive body is read and dropped up to a limit, because a client that still writes when
                # the connection closes may never see the answer.
                body += chunk
                if len(body) > 8 * limits.body:
                    raise too_large
    except TimeoutError:
        message = f"the request's body did not arrive within {limits.body_timeout:g} s"
        raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "the client disconnected") from None
    if len(body) > limits.body:
        raise too_large
    return bytes(body)


class Admission:
    """Counts answers in progress, and refuses requests beyond a limit. The engine has its own queue."""

    def __init__(self, concurrency: int, queue: int) -> None:
        self.concurrency = concurrency
        self.limit = concurrency + queue
        self.inside = 0
        self._seconds = 1.0  # duration of an answer, as a moving average

    def enter(self, count: int) -> Callable[[], None]:
        """Take `count` places; return a function that releases them.

        Raises:
            ApiError: 400: there are fewer places in total; 429: too few are free now.
        """
        if count > self.limit:
            message = f"{count} answers at once are more than this server's limit of {self.limit}"
            raise ApiError(400, message, param="n", code="invalid_value")
        if self.inside + count > self.limit:
            raise ApiError(
                429,
                f"{self.inside} answers are in progress or waiting, which is the limit; try again later",
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
        """Estimated seconds until a place is free."""
        return max(1, min(60, round(self._seconds / self.concurrency)))
