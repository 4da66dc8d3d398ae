"""`Request` and `Stream`: the input of an engine, and its output as it is produced."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...errors import EngineError, InternalError, RequestError, TilewrightError
from ..vision.given import Images
from .beam_search import BeamSearch
from .grammar import Constraint, LogitRules
from .reasoning_budget import ReasoningBudget
from .sampling import SamplingParameters, TokenLogprob

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Request:
    """A prompt to continue."""

    prompt: list[int]
    """Tokens, at least one."""
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    """How tokens are chosen."""
    stop: list[str] = field(default_factory=list)
    """Strings that end the output; they are not part of it."""
    stop_tokens: list[int] = field(default_factory=list)
    """Tokens that end the output, besides the tokenizer's end-of-text tokens."""
    max_tokens: int | None = None
    """The most tokens of an output; None: as many as fit into the context."""
    min_tokens: int = 0
    """Tokens of an output that come before an end-of-text token or one of `stop_tokens` may be chosen. A stop
    string or the end of a grammar ends it in any case.
    """
    ignore_eos: bool = False
    """Whether to continue after an end-of-text token."""
    prompt_logprobs: int | None = None
    """Number of most probable tokens that `Stream.prompt_logprobs` reports for each place of the prompt,
    besides the log-probability of the prompt's token itself; None: no report. The prompt is then computed as
    generated tokens are, several in a call, and not taken from the prefix cache.
    """
    grammar: Constraint | LogitRules | None = None
    """Constrains the output; made by `Grammars`, or rules of the caller's."""
    reasoning: ReasoningBudget | None = None
    """The most tokens of reasoning; None: no limit. Not together with a grammar."""
    source: np.ndarray[Any, Any] | None = None
    """The input of the encoder, of a model that has one beside its decoder: tokens [n], int32, or the
    normalized spectrogram [frames, mels], float32, of a recording. `prompt` is what the decoder begins with.
    """
    images: Images | None = None
    """The images of the prompt, of a model that takes images; `vision.reader.ImageReader` makes both."""
    shown: frozenset[int] = frozenset()
    """Special tokens whose text appears in the output, as that of others does not."""
    beams: BeamSearch | None = None
    """Search for the most probable outputs; None: tokens are chosen one by one as `sampling` says. The
    outputs arrive when the search has ended, the best first. Not together with stop strings or a budget of
    reasoning, nor with models that keep state besides pages.
    """
    adapter: str = ""
    """The name of one of `Engine.adapters`; empty: none."""
    n: int = 1
    """The number of outputs (choices); of a beam search, at most its width. If a grammar allows fewer, the
    other outputs are empty.
    """
    priority: int = 0
    """Lower values run first; requests of higher values are preempted for them if needed."""
    user: str = ""
    """The user for fair scheduling: users get equal service, however many requests each has."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """A name of the request for logs, by default a random one."""

    @property
    def sequences(self) -> int:
        """The number of sequences that are computed."""
        return self.n if self.beams is None else self.beams.width

    def length(self, limit: int) -> int:
        """The most tokens of prompt and output together, of a model that takes `limit`."""
        return limit if self.max_tokens is None else min(limit, len(self.prompt) + self.max_tokens)

    def ends(self, eos: Iterable[int]) -> frozenset[int]:
        """The tokens that end an output; `eos` are the tokenizer's end-of-text tokens."""
        return frozenset((*self.stop_tokens, *(() if self.ignore_eos else eos)))

    def check(self, vocabulary: int, limit: int, source: int = 0) -> None:
        """Check a request against a model.

        Args:
            vocabulary: The model's number of tokens.
            limit: The most tokens of prompt and output together.
            source: The most tokens, or half the frames, of the encoder's input; 0: there is no encoder.

        Raises:
            RequestError: The request can never be served.
        """
        self.sampling.check(vocabulary)
        if not self.prompt:
            raise RequestError("the prompt has no tokens")
        if len(self.prompt) >= limit:
            raise RequestError(
                f"the prompt has {len(self.prompt)} tokens; prompt and output may have {limit} "
                "together: shorten the prompt"
            )
        for name, tokens in (("prompt", self.prompt), ("stop_tokens", self.stop_tokens)):
            if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < vocabulary:
                raise RequestError(f"{name} has a token outside the model's 0 to {vocabulary - 1}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not 0 <= self.min_tokens <= (self.max_tokens or limit):
            most = f"max_tokens, {self.max_tokens}" if self.max_tokens else f"the model's context, {limit}"
            raise RequestError(f"min_tokens is {self.min_tokens}; it must be from 0 to {most}")
        if self.prompt_logprobs is not None and not 0 <= self.prompt_logprobs <= vocabulary:
            raise RequestError(
                f"prompt_logprobs is {self.prompt_logprobs}; the vocabulary allows 0 to {vocabulary}"
            )
        if self.n < 1:
            raise RequestError(f"n is {self.n}; it must be at least 1")
        if (self.source is None) != (source == 0):
            has, needs = ("an encoder, whose", "is needed") if source else ("no encoder:", "must be None")
            raise RequestError(f"the model has {has} input 'source' {needs}")
        if self.source is not None:
            size = len(self.source) // (self.source.ndim or 1)
            if not 0 < size <= source:
                raise RequestError(f"the source has a length of {size}; the encoder takes 1 to {source}")
            if self.source.ndim == 1 and not 0 <= self.source.min() <= self.source.max() < vocabulary:
                raise RequestError(f"source has a token outside the model's 0 to {vocabulary - 1}")
        if self.reasoning is not None:
            end = self.reasoning.end
            if self.grammar is not None:
                raise RequestError("a budget of reasoning and a grammar exclude each other")
            if self.reasoning.tokens < 0 or not 0 <= min(end, default=-1) <= max(end) < vocabulary:
                raise RequestError(
                    f"a budget of reasoning needs at least 0 tokens, and an end of tokens from 0 to "
                    f"{vocabulary - 1}"
                )
        if not all(self.stop):
            raise RequestError("stop must not contain an empty string")
        if self.beams is not None:
            if self.stop or self.reasoning is not None:
                what = "stop strings: use stop tokens" if self.stop else "a budget of reasoning"
                raise RequestError(f"a beam search has no {what}")
            if self.n > self.beams.width:
                raise RequestError(
                    f"n is {self.n}; a beam search gives at most its width, {self.beams.width}"
                )
        if self.images is not None and self.prompt_logprobs is not None:
            raise RequestError("log-probabilities of a prompt with images are not computed")


@dataclass(frozen=True, slots=True)
class Delta:
    """The output that one step adds to one choice."""

    text: str
    """May be empty while a character or a stop string is incomplete."""
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    """Log-probabilities of each of the tokens, if requested."""
    finish_reason: FinishReason | None = None
    """Set in a choice's last delta: "stop" at the end of the text, at a stop string, or where the grammar
    ends.
    """
    index: int = 0
    """The choice's index."""
    stop: str | int | None = None
    """In a choice's last delta, the stop string or the one of `Request.stop_tokens` that ended the output."""


@dataclass
class Completion:
    """The whole output of a choice."""

    text: str = ""
    """The text of the output."""
    tokens: list[int] = field(default_factory=list)
    """The tokens of the output."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of each of the tokens, if requested."""
    finish_reason: FinishReason | None = None
    """Why the output ended: "stop", "length" or "cancelled"."""


class Stream:
    """The deltas of a request, for one reader.

    Read it with ``for delta in stream`` in any thread or ``async for delta in stream``. If the engine has no
    thread, reading a stream runs the engine's steps. Leaving an ``async for`` early cancels the request.
    """

    def __init__(
        self, request: Request, cancel: Callable[[Stream], None], step: Callable[[], bool | None]
    ) -> None:
        """`Engine.submit` makes streams.

        Args:
            request: The request whose deltas the stream yields.
            cancel: Tells the engine to end the request of a stream.
            step: Runs one step of the engine and returns whether there was work; returns None if the engine
                has a thread, which then runs the steps.
        """
        self.request = request
        self.cached_tokens = 0
        """Prompt tokens that were found in the prefix cache."""
        self.prompt_logprobs: list[TokenLogprob] = []
        """Log-probabilities of the prompt's tokens after the first one, if the request asks for them. They
        are complete when the first delta arrives.
        """
        self.admitted: float | None = None
        """The time, of `time.perf_counter`, at which the first choice left the queue."""
        self._cancel = cancel
        self._step = step
        self._deltas: deque[Delta] = deque()
        self._left = request.n
        self._error: TilewrightError | None = None
        self._changed = threading.Condition()
        self._wake: Callable[[], object] | None = None

    @property
    def done(self) -> bool:
        """Whether the stream has ended."""
        return self._left == 0 or self._error is not None

    def cancel(self) -> None:
        """End the request soon; unfinished choices end with "cancelled"."""
        if not self.done:
            self._cancel(self)

    def __iter__(self) -> Iterator[Delta]:
        """Iterate over deltas until the request ends.

        Raises:
            EngineError: The request failed.
        """
        while (delta := self._next()) is not None:
            yield delta

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Iterate over deltas until the request ends.

        Raises:
            EngineError: The request failed.
        """
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so there is no reader
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
        """Wait for all choices and return them.

        Raises:
            EngineError: The request failed.
        """
        completions = [Completion() for _ in range(self.request.n)]
        for delta in self:
            whole = completions[delta.index]
            whole.text += delta.text
            whole.tokens += delta.tokens
            whole.logprobs += delta.logprobs or []
            whole.finish_reason = delta.finish_reason
        return completions

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
        """Hand a delta to the reader; only the engine calls this."""
        with self._changed:
            self._deltas.append(delta)
            self._left -= delta.finish_reason is not None
            self._changed.notify()
        if self._wake is not None:
            self._wake()

    def fail(self, error: TilewrightError) -> None:
        """End the stream with an error after the deltas so far; only the engine calls this."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify()
        if self._wake is not None:
            self._wake()


def failure(message: str, cause: BaseException) -> EngineError:
    """Make an `EngineError` with its cause in the message and in the reader's traceback."""
    error = EngineError(f"{message}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
