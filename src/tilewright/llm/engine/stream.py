"""`Request`, and `Stream`: what an engine is asked, and the answer as it comes."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from ...errors import EngineError, InternalError, RequestError, TilewrightError
from .grammar import Constraint
from .sampling import SamplingParameters, TokenLogprob

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Request:
    """A prompt to continue."""

    prompt: list[int]
    """Tokens, at least one."""
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    stop: list[str] = field(default_factory=list)
    """Texts that end the output and are no part of it."""
    stop_tokens: list[int] = field(default_factory=list)
    """Tokens that end the output, beside those that end a text."""
    max_tokens: int | None = None
    """Most tokens of an output; None as many as the context has room for."""
    ignore_eos: bool = False
    """Whether to go on where the text ends."""
    grammar: Constraint | None = None
    """What the output must be, of `Grammars`."""
    n: int = 1
    """How many outputs (choices)."""
    priority: int = 0
    """Lower goes first; requests of higher numbers make room, if need be."""
    user: str = ""
    """Users share the engine fairly, however many requests each has."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def check(self, vocabulary: int, limit: int) -> None:
        """
        Args:
            vocabulary: of the model.
            limit: most tokens of prompt and output.

        Raises:
            RequestError: the request can never be served.
        """
        self.sampling.check(vocabulary)
        if not self.prompt:
            raise RequestError("the prompt has no token")
        if len(self.prompt) >= limit:
            raise RequestError(
                f"the prompt has {len(self.prompt)} tokens; prompt and output may have {limit} together: shorten the prompt"
            )
        for name, tokens in (("prompt", self.prompt), ("stop_tokens", self.stop_tokens)):
            if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < vocabulary:
                raise RequestError(f"{name} has a token that is none of the model's 0 to {vocabulary - 1}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if self.n < 1:
            raise RequestError(f"n is {self.n}; it must be at least 1")
        if not all(self.stop):
            raise RequestError("stop has an empty string")


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step adds to one choice."""

    text: str
    """May be empty while a character or a stop string is half there."""
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    """Of each of the tokens, if asked for."""
    finish_reason: FinishReason | None = None
    """Set in a choice's last delta: "stop" at the end of the text, a stop string, or where the grammar ends."""
    index: int = 0
    """Of the choice."""


@dataclass
class Completion:
    """A whole choice."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Stream:
    """The deltas of a request, for one reader: ``for delta in stream`` in any thread or ``async for delta in stream``.

    Where the engine has no thread, reading a stream makes the engine's steps. An ``async for`` that is left early cancels the request.
    """

    def __init__(self, request: Request, cancel: Callable[[Stream], None], step: Callable[[], bool | None]) -> None:
        self.request = request
        self.cached_tokens = 0
        """Of the prompt, found in the prefix cache."""
        self._cancel = cancel
        self._step = step
        self._deltas: deque[Delta] = deque()
        self._left = request.n
        self._error: TilewrightError | None = None
        self._changed = threading.Condition()
        self._wake: Callable[[], object] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self._left == 0 or self._error is not None

    def cancel(self) -> None:
        """End the request soon; choices that are not finished yet end with "cancelled"."""
        if not self.done:
            self._cancel(self)

    def __iter__(self) -> Iterator[Delta]:
        """
        Raises:
            EngineError: the request failed.
        """
        while (delta := self._next()) is not None:
            yield delta

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """
        Raises:
            EngineError: the request failed.
        """
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(event.set)

        self._wake = wake
        try:
            while True:
                event.clear()
                done = self.done
                while self._deltas:
                    yield self._deltas.popleft()
                if done:
                    break
                if self._step() is None:
                    await event.wait()
            if self._error is not None:
                raise self._error
        finally:
            self.cancel()

    def collect(self) -> list[Completion]:
        """Wait for all choices.

        Raises:
            EngineError: the request failed.
        """
        found = [Completion() for _ in range(self.request.n)]
        for delta in self:
            whole = found[delta.index]
            whole.text += delta.text
            whole.tokens += delta.tokens
            whole.logprobs += delta.logprobs or []
            whole.finish_reason = delta.finish_reason
        return found

    def _next(self) -> Delta | None:
        while True:
            with self._changed:
                if self._deltas:
                    return self._deltas.popleft()
                if self._error is not None:
                    raise self._error
                if self._left == 0:
                    return None
            worked = self._step()
            with self._changed:
                if worked is None:
                    self._changed.wait_for(lambda: self._deltas or self.done, timeout=1)
                elif not worked and not self._deltas and not self.done:
                    raise InternalError("a request waits for an engine that has nothing to do")

    def put(self, delta: Delta) -> None:
        """The engine's: hand a delta to the reader."""
        with self._changed:
            self._deltas.append(delta)
            self._left -= delta.finish_reason is not None
            self._changed.notify()
        if self._wake is not None:
            self._wake()

    def fail(self, error: TilewrightError) -> None:
        """The engine's: the request cannot be finished. The reader gets what came before, then `error`."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify()
        if self._wake is not None:
            self._wake()


def failure(message: str, cause: BaseException) -> EngineError:
    """An `EngineError` that tells of its cause, and of which the reader's traceback shows it."""
    error = EngineError(f"{message}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
