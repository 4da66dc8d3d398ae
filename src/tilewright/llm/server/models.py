"""`Models`: the models of a server, which are loaded when they are asked for and unloaded within a limit of
memory.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from ...errors import RequestError, TilewrightError
from .errors import ApiError
from .http import Lifecycle
from .limits import Keys, Limits
from .metrics import Metrics, ModelFigures
from .service import Service
from .tracing import Tracing

_POLL = 0.02  # seconds between looks for a model that has become idle


@dataclass
class ServedModel:
    """A model that the server knows, loaded or not."""

    name: str
    open: Callable[[], Service]
    """Loads the model; its engine is not yet started."""
    bytes: int = 0
    """Memory that it needs while it is loaded."""
    service: Service | None = None
    """The loaded model."""
    users: int = 0
    """Requests that have chosen it and are not answered."""
    used: int = 0
    """The number of the last request for it; larger ones are later."""
    loads: int = 0
    evictions: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> list[str]:
        """The names by which requests choose it: its own, then those of its adapters."""
        return [self.name] if self.service is None else self.service.models

    @property
    def idle(self) -> bool:
        """Whether it is loaded and could be unloaded: it answers nothing, and has no adapters to lose."""
        service = self.service
        return service is not None and not (self.users or service.admission.inside or len(self.names) > 1)

    def start(self) -> None:
        """Load it, and start its engine.

        Raises:
            TilewrightError: It cannot be loaded.
        """
        service = self.open()
        service.engine.start()
        self.service, self.loads = service, self.loads + 1

    def release(self) -> None:
        """End the use by a request."""
        self.users -= 1


class Models:
    """The models of a server. Its methods are called in the server's event loop."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        keys: Keys,
        lifecycle: Lifecycle,
        tracing: Tracing | None = None,
        memory: int | None = None,
        source: Callable[[str, Path], ServedModel] | None = None,
    ) -> None:
        """Know models without loading them.

        Args:
            models: At least one; names differ.
            limits: The server's limits for clients.
            keys: The accepted API keys.
            lifecycle: Whether the server is shutting down.
            tracing: Makes spans of requests; None: there are none.
            memory: Most bytes of the loaded models together; None: no limit.
            source: Makes a model of a name and a library's path, for clients that load models.

        Raises:
            RequestError: Two models have the same name, or one needs more than `memory`.
        """
        self.limits, self.keys, self.lifecycle, self.tracing = limits, keys, lifecycle, tracing
        self.memory, self._source = memory, source
        self._models: dict[str, ServedModel] = {}
        for model in models:
            self._add(model)
        self._turn = asyncio.Lock()
        self._waiting = False
        self._queue = 0
        self._numbers = itertools.count(1)
        self.metrics = Metrics(self._figures)

    @classmethod
    def of(cls, service: Service) -> Models:
        """The models of a server that has one, which is loaded."""
        model = ServedModel(service.name, lambda: service, service=service)
        return cls([model], service.limits, service.keys, service.lifecycle, service.tracing)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    @property
    def names(self) -> list[str]:
        """All names that requests may use."""
        return [name for model in self for name in model.names]

    @property
    def only(self) -> ServedModel | None:
        """The model of a server that has one."""
        return next(iter(self)) if len(self._models) == 1 else None

    def find(self, name: str | None) -> ServedModel:
        """The model that a request asks for, itself or by one of its adapters.

        Raises:
            ApiError: 404: there is none of this name; 400: none is named, and there are several.
        """
        if name is None:
            if self.only is not None:
                return self.only
            message = f"the request names no model; this server has {self._listed}"
            raise ApiError(400, message, param="model", code="missing_required_parameter")
        for model in self:
            if name in model.names:
                return model
        message = f"model {name!r} does not exist; this server has {self._listed}"
        raise ApiError(404, message, param="model", code="model_not_found")

    @property
    def _listed(self) -> str:
        return ", ".join(map(repr, self.names))

    async def take(self, name: str | None) -> ServedModel:
        """The model that a request asks for, loaded, until `ServedModel.release`.

        Requests for loaded models go first, except while a model waits for room: it would else wait as long
        as others are busy.

        Raises:
            ApiError: As for `find`; 429: too many requests wait for models; 500: it cannot be loaded; 503:
                models that are busy left no room for it in the time limit of an answer, or models with
                adapters never will.
        """
        model = self.find(name)
        if model.service is None or self._waiting:
            if self._queue >= self.limits.queue:
                message = (
                    f"{self._queue} requests wait for models to load, which is the limit; try again later"
                )
                raise ApiError(429, message, code="server_busy", headers={"Retry-After": "10"})
            end = asyncio.get_running_loop().time() + self.limits.request_timeout
            self._queue += 1
            try:
                async with self._turn:
                    model = self.find(name)  # a new model that could not be loaded is no longer known
                    if model.service is None:
                        await self._load(model, end)
                    model.users += 1
            finally:
                self._queue -= 1
        else:
            model.users += 1
        model.used = next(self._numbers)
        return model

    async def load(self, name: str, path: Path | None) -> None:
        """Load a model now, a new one if there is a `path`.

        Raises:
            ApiError: As for `take`; 400: the name is taken, or the model is larger than the memory limit.
        """
        if path is not None:
            if name in self.names:
                message = f"the name {name!r} is taken: this server has {self._listed}"
                raise ApiError(400, message, param="model", code="invalid_model")
            if self._source is None:
                raise ApiError(400, "this server loads no further models", param="path")
            try:
                self._add(self._source(name, path))
            except TilewrightError as error:
                raise ApiError(400, str(error), param="path", code="invalid_model") from None
        try:
            (await self.take(name)).release()
        except Exception:
            if path is not None:
                del self._models[name]
            raise

    async def unload(self, name: str) -> None:
        """Unload a model; a request for it loads it again.

        Raises:
            ApiError: 404: there is none of this name; 409: it is in use.
        """
        model = self.find(name)
        async with self._turn:
            if model.service is None:
                return
            if not model.idle:
                why = "has adapters: unload them first" if len(model.names) > 1 else "is answering requests"
                raise ApiError(409, f"model {model.name!r} {why}", param="model", code="model_in_use")
            await self._unload(model)

    def preload(self) -> None:
        """Load models in their order as long as they fit, before the server runs.

        Raises:
            TilewrightError: One cannot be loaded.
        """
        for model in self:
            if model.service is None and (self.memory is None or self._held + model.bytes <= self.memory):
                model.start()

    @property
    def loaded(self) -> list[Service]:
        """The models that are loaded."""
        return [model.service for model in self if model.service is not None]

    def close(self) -> None:
        """Stop all engines."""
        for service in self.loaded:
            service.engine.stop()

    def _add(self, model: ServedModel) -> None:
        if model.name in self._models:
            raise RequestError(f"two models have the name {model.name!r}: give them others with --name")
        if self.memory is not None and model.bytes > self.memory:
            raise RequestError(
                f"the model {model.name!r} needs {_size(model.bytes)}, more than the memory limit of "
                f"{_size(self.memory)}"
            )
        self._models[model.name] = model

    @property
    def _held(self) -> int:
        return sum(model.bytes for model in self if model.service is not None)

    async def _load(self, model: ServedModel, end: float) -> None:
        """Make room for a model until the time `end` and load it; `_turn` is held."""
        loop = asyncio.get_running_loop()
        self._waiting = True
        try:
            while not await self._make_room(model.bytes):
                # Models with adapters stay, and requests for loaded models must not wait behind this one.
                stays = [m for m in self if m.service is not None and len(m.names) > 1]
                never = sum(m.bytes for m in stays) + model.bytes > (self.memory or 0)
                if never or loop.time() > end:
                    holders = stays if never else [m for m in self if m.service is not None]
                    why = "have adapters" if never else "are busy"
                    message = (
                        f"model {model.name!r} needs {_size(model.bytes)}; "
                        f"{', '.join(repr(m.name) for m in holders)} {why} and hold "
                        f"{_size(sum(m.bytes for m in holders))} of {_size(self.memory or 0)}: "
                        + ("unload adapters" if never else "try again later")
                    )
                    raise ApiError(503, message, code="server_busy", headers={"Retry-After": "10"})
                await asyncio.sleep(_POLL)
        finally:
            self._waiting = False
        try:
            with anyio.CancelScope(shield=True):  # the thread goes on if the client leaves
                await asyncio.to_thread(model.start)
        except TilewrightError as error:
            raise ApiError(500, f"model {model.name!r} cannot be loaded: {error}") from error

    async def _make_room(self, size: int) -> bool:
        """Unload idle models, the least recently used first, until `size` bytes are free. Without enough
        idle ones none is unloaded.
        """
        if self.memory is None:
            return True
        idle = sorted((model for model in self if model.idle), key=lambda model: model.used)
        if self._held - sum(model.bytes for model in idle) + size > self.memory:
            return False
        for model in idle:
            if self._held + size <= self.memory:
                break
            model.evictions += 1
            await self._unload(model)
        return True

    async def _unload(self, model: ServedModel) -> None:
        service, model.service = model.service, None
        if service is not None:
            with anyio.CancelScope(shield=True):  # its memory is free only when the thread has ended
                await asyncio.to_thread(service.close)

    def _figures(self) -> list[ModelFigures]:
        return [
            ModelFigures(
                model.name,
                model.bytes,
                model.loads,
                model.evictions,
                None if model.service is None else model.service.engine.stats(),
                0 if model.service is None else model.service.admission.inside,
            )
            for model in self
        ]


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


__all__ = ["Models", "ServedModel"]
