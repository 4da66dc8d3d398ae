"""`replicated`: a model served by several replicas on the machines of a Ray cluster, through Ray Serve.

Each replica is the application of one server, with an engine of its own. One router takes the requests. It
sends those that begin alike to the same replica, whose prefix cache has their beginning, by rendezvous
hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): if a replica is
lost, only its requests move.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...errors import CompileError
from ..engine.engine import Engine, EngineOptions
from ..parallel.launch import open_runner
from .app import application
from .errors import ApiError
from .service import ANY_NUMBER, Service
from .streaming import event

_PREFIX = 1024
"""Characters of a prompt that choose the replica. With more, conversations that share a long system prompt go
to different replicas; with fewer, unrelated ones to the same.
"""
_AHEAD = 8
"""The most requests by which a replica may be busier than another one before a request goes there instead. A
larger value keeps more prefixes together, and balances less.
"""


class Replica:
    """One replica: loads the model and answers requests.

    Args:
        path: The library, a file that exists on every machine.
        name: The name by which requests choose the model.
        options: The attributes of `EngineOptions`.
    """

    def __init__(self, path: str, name: str, options: Mapping[str, Any]) -> None:
        engine = Engine(*open_runner(path), EngineOptions(**{"queue": ANY_NUMBER, **options}))
        engine.start()
        self.service = Service.of_library(name, engine, path)
        self._application = application(self.service, hosts=["*"])

    def process(self) -> int:
        """The number of the replica's process."""
        return os.getpid()

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Any, None]:
        """Answer a request.

        Args:
            scope: The ASGI scope, without what belongs to the connection.
            body: The request's body.

        Yields:
            The status and the headers, then parts of the answer's body.
        """
        sent: asyncio.Queue[Any] = asyncio.Queue()
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if given:
                return given.pop()
            return await asyncio.Event().wait()  # a client that leaves cancels this generator

        async def run() -> None:
            try:
                await self._application(scope, receive, sent.put)
            finally:
                await sent.put(None)

        task = asyncio.create_task(run())
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    yield message["status"], message["headers"]
                elif message.get("body"):
                    yield message["body"]
            await task
        finally:
            task.cancel()

    def __del__(self) -> None:
        if hasattr(self, "service"):
            self.service.close()


class Router:
    """Sends each request to a replica, and to another one if that has ended before it began to answer.

    Args:
        replicas: Ray's handles of the replicas.
    """

    def __init__(self, *replicas: Any) -> None:
        self._replicas = replicas
        self._busy = [0] * len(replicas)
        self._lost: set[int] = set()
        self._probes: set[asyncio.Task[None]] = set()

    async def __call__(self, request: Request) -> Response:
        """Answer a request of Ray's proxy."""
        body = await request.body()
        scope = {
            key: request.scope[key]
            for key in ("type", "http_version", "method", "path", "raw_path", "query_string", "headers")
        }
        scope |= {
            "asgi": {"version": "3.0"},
            "root_path": "",
            "scheme": "http",
            "client": None,
            "server": None,
        }
        for k in order(prefix(body), self._busy, self._lost):
            parts = self._replicas[k].options(stream=True).answer.remote(scope, body)
            self._busy[k] += 1
            try:
                status, headers = await anext(parts)
            except BaseException as error:
                self._busy[k] -= 1
                if not self._is_loss(error):
                    raise
                self._lose(k)
                continue
            response = StreamingResponse(self._rest(k, parts, headers), status)
            response.raw_headers = [(bytes(a), bytes(b)) for a, b in headers]
            return response
        message = "no replica of the model runs"
        return ApiError(503, message, code="server_busy", headers={"Retry-After": "5"}).response()

    async def _rest(self, k: int, parts: Any, headers: Sequence[Any]) -> AsyncGenerator[bytes, None]:
        """The body of an answer; a stream of events of a lost replica ends with an error."""
        try:
            async for part in parts:
                yield part
        except Exception as error:
            if not self._is_loss(error):
                raise
            self._lose(k)
            if not any(b"text/event-stream" in bytes(value) for _, value in headers):
                raise
            yield event(ApiError(503, "the replica that answered has ended", code="replica_lost").body)
        finally:
            self._busy[k] -= 1

    @staticmethod
    def _is_loss(error: BaseException) -> bool:
        from ray.exceptions import RayActorError

        return isinstance(error, RayActorError)

    def _lose(self, k: int) -> None:
        """Use other replicas until Ray has replaced this one."""
        if k in self._lost:
            return
        self._lost.add(k)

        async def probe() -> None:
            while k in self._lost:
                try:
                    await self._replicas[k].process.remote()
                    self._lost.discard(k)
                except Exception:  # it is being replaced
                    await asyncio.sleep(0.5)

        task = asyncio.create_task(probe())
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)


def prefix(body: bytes) -> bytes:
    """The beginning of a request's prompt: its messages, input or text; the whole body if it has none."""
    try:
        fields = json.loads(body)
        prompt = next(fields[key] for key in ("messages", "prompt", "input") if key in fields)
        if isinstance(prompt, list) and "system" in fields:
            prompt = [fields["system"], *prompt]
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    except (ValueError, TypeError, StopIteration):
        return body[:_PREFIX]
    return text[:_PREFIX].encode(errors="replace")


def order(key: bytes, busy: Sequence[int], lost: set[int]) -> list[int]:
    """The replicas in the order in which a request tries them: those that run by rendezvous hashing, first
    one that is not much busier than the others; then those that are lost.

    Args:
        key: The beginning of the request's prompt.
        busy: The requests that each replica answers.
        lost: The replicas that have ended.
    """

    def weight(k: int) -> bytes:
        return hashlib.blake2b(key, digest_size=8, key=str(k).encode()).digest()

    runs = sorted((k for k in range(len(busy)) if k not in lost), key=weight, reverse=True)
    least = min((busy[k] for k in runs), default=0)
    runs.sort(key=lambda k: busy[k] > least + _AHEAD)
    return [*runs, *sorted(lost)]


def replicated(
    path: str | Path, replicas: int = 2, name: str | None = None, options: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Make an application for ``ray.serve.run``.

    Args:
        path: The library, a file that exists on every machine of the cluster.
        replicas: The number of replicas.
        name: The name by which requests choose the model; None: the file's.
        options: Attributes of `EngineOptions`.
        resources: Ray's options of each replica's actor, such as `num_cpus`.

    Raises:
        CompileError: Ray Serve is not installed, or there are fewer than 1 replicas.
    """
    if replicas < 1:
        raise CompileError(f"{replicas} replicas cannot serve: there must be at least 1")
    try:
        from ray import serve
    except ImportError:
        raise CompileError("replicas need Ray Serve: pip install 'ray[serve]'") from None
    path = Path(path).resolve()
    model = serve.deployment(Replica).options(
        max_ongoing_requests=1000,
        ray_actor_options=dict(resources or {"num_cpus": 1}),
        health_check_period_s=1,
    )
    parts = [
        model.options(name=f"replica-{k}").bind(str(path), name or path.stem, dict(options or {}))
        for k in range(replicas)
    ]
    router = serve.deployment(Router).options(max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0})
    return router.bind(*parts)


__all__ = ["Replica", "Router", "order", "prefix", "replicated"]
