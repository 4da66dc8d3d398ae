"""`Service`: a served model, and the server's operations on the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...errors import CompileError, OverloadedError, RequestError, TilewrightError
from ..engine.beam_search import BeamSearch
from ..engine.engine import Engine
from ..engine.grammar import Constraint, Grammars
from ..engine.reasoning_budget import ReasoningBudget
from ..engine.sampling import SamplingParameters
from ..engine.stream import Delta, Request, Stream
from ..speech.transcription import Transcriber
from ..text_use import TextUse
from ..tokenizer import Tokenizer
from ..vision.given import Images
from ..vision.reader import ImageReader
from .call_forms import ReplyForm
from .errors import ApiError
from .forms import Form
from .http import Lifecycle
from .limits import Admission, Keys, Limits
from .protocol import Penalized, Sampling
from .tracing import RequestSpan, Tracing

_LONG = 1 << 16  # characters; longer texts are encoded one at a time
T = TypeVar("T")
ANY_NUMBER = 2**31
"""`EngineOptions.queue` of a server's engine: the server itself limits the requests that wait."""


@dataclass
class Service:
    """A served model: its running engine, and the limits for clients."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default sampling parameters, by `SamplingParameters`' names."""
    texts: TextUse = field(default_factory=TextUse)
    """How the model takes texts to embed and to score."""
    call_form: ReplyForm | None = None
    """The form of tool calls; None: that of the chat template."""
    tracing: Tracing | None = None
    """Makes spans of requests; None: there are none."""
    transcriber: Transcriber | None = None
    """Transcribes recordings, if the model takes audio."""
    images: ImageReader | None = None
    """Reads images, if the model takes images."""
    lifecycle: Lifecycle = field(default_factory=Lifecycle)

    def __post_init__(self) -> None:
        self.admission = Admission(
            self.engine.options.max_batch or self.engine.runner.max_batch, self.limits.queue
        )
        # For transcriptions, each of which waits in a thread; those of asyncio are for short work.
        self.threads = ThreadPoolExecutor(self.admission.concurrency, "tilewright-audio")
        self._long = asyncio.Semaphore()
        self.images_turn = asyncio.Semaphore()
        """Held while a request's images are decoded."""

    @property
    def context(self) -> int:
        """The most tokens of prompt and answer together."""
        return self.engine.limit

    @property
    def models(self) -> list[str]:
        """The names that requests may use: the model's own first, then those of its adapters."""
        return [self.name, *self.engine.adapters.names]

    @classmethod
    def of_library(cls, name: str, engine: Engine, library: str | Path, **others: Any) -> Service:
        """Serve a library, with all that its model takes: texts, recordings and images.

        Args:
            name: The name by which requests choose the model.
            engine: The library's engine.
            library: The library's file.
            others: The other attributes.
        """
        runner = engine.runner
        return cls(
            name,
            engine,
            engine.tokenizer,
            texts=getattr(runner, "texts", TextUse()),
            transcriber=Transcriber.of_library(engine, library) if runner.source_kind == "audio" else None,
            images=None if runner.sight is None else ImageReader.of_library(engine, library),
            **others,
        )

    def close(self) -> None:
        """Stop the engine and free the model's memory. There must be no answers in progress."""
        speculation = self.engine.options.speculation
        with ExitStack() as stack:  # each is closed although another one fails
            for runner in (self.engine.runner, speculation and speculation.draft):
                close = getattr(runner, "close", None)
                if close is not None:
                    stack.callback(close)
            stack.callback(self.threads.shutdown, wait=False)
            stack.callback(self.engine.stop)

    def load_adapter(self, name: str, folder: str | Path, replace: bool = False) -> None:
        """Load a low-rank adapter, which requests choose as their model.

        Raises:
            RequestError: The name is taken, there is no free place, or the model has none.
            WeightsError: A file is missing or damaged, or the adapter does not fit the model.
        """
        if name == self.name:
            raise RequestError(f"the name {name!r} is that of the model itself: give the adapter another one")
        self.engine.adapters.load(name, folder, replace)

    async def encode(self, text: str, special: bool, param: str, most: int | None = None) -> list[int]:
        """Encode a prompt; `special` adds the tokens that begin a text. A text is cut to `most` tokens.

        Raises:
            ApiError: 400: the prompt has no token, or too many.
        """
        if most is None:
            self.check_length(text, param)
        tokens = await self.encoding(
            len(text), lambda: self.tokenizer.encode(text, special=special, most=most)
        )
        self.check_prompt(tokens, param)
        return tokens

    async def encoding(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, which encodes texts of `size` characters.

        A thread keeps the event loop free. Long texts are encoded one at a time because each takes much
        memory.
        """
        async with self._long if size > _LONG else nullcontext():
            return await asyncio.to_thread(work)

    def check_length(self, text: str, param: str) -> None:
        """Check a text before it is encoded.

        Raises:
            ApiError: 400: its tokens are certainly too many for a prompt.
        """
        if (least := self.tokenizer.least_tokens(text)) > self.longest_prompt:
            raise self._too_long(f"{len(text.encode())} bytes, at least {least} tokens", param)

    def check_prompt(self, tokens: Sequence[int], param: str) -> None:
        """Check a prompt's tokens.

        Raises:
            ApiError: 400: there are none or too many, or one is not in the vocabulary.
        """
        if not tokens:
            raise ApiError(400, "the prompt is empty", param=param, code="invalid_value")
        self.check_tokens(tokens, param)
        if len(tokens) > self.longest_prompt:
            raise self._too_long(f"{len(tokens)} tokens", param)

    def check_tokens(self, tokens: Sequence[int], param: str) -> None:
        """Check tokens, at least one.

        Raises:
            ApiError: 400: one is not in the vocabulary.
        """
        vocabulary = self.engine.runner.vocabulary
        if max(tokens) >= vocabulary:
            message = f"token {max(tokens)} is not in the model's vocabulary of {vocabulary}"
            raise ApiError(400, message, param=param, code="invalid_value")

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt."""
        limit = self.engine.runner.source or self.context
        return min(self.limits.prompt_tokens or limit, limit)

    def _too_long(self, size: str, param: str) -> ApiError:
        limit = self.longest_prompt
        own = self.engine.runner.source or self.context
        whose = "the model's context" if limit == own else "this server's limit"
        message = f"the prompt has {size}; {whose} is {limit} tokens"
        return ApiError(400, message, param=param, code="context_length_exceeded")

    def max_tokens(self, requested: int | None, prompt: int, param: str, default: int | None = None) -> int:
        """Return the most tokens of an answer to `prompt` tokens.

        Raises:
            ApiError: 400: more were requested than are possible.
        """
        if (runner := self.engine.runner).source_kind is not None:
            prompt = len(runner.start)  # the prompt itself is the encoder's
        room = self.context - prompt
        limit = self.limits.max_tokens or self.context
        if requested is None:
            if room < 1:
                message = f"the prompt's {prompt} tokens fill the model's context of {self.context}"
                raise ApiError(400, message, param=param, code="context_length_exceeded")
            return min(room, limit, default or room)
        if requested > limit and limit < self.context:
            message = f"{requested} tokens are more than this server's limit of {limit} for an answer"
            raise ApiError(400, message, param=param, code="invalid_value")
        if requested > room:
            message = (
                f"the model's context is {self.context} tokens; the prompt's {prompt} and the answer's "
                f"{requested} are {prompt + requested}: shorten the prompt or ask for fewer tokens"
            )
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        return requested

    def sampling(self, request: Sampling, logprobs: int | None = None) -> SamplingParameters:
        """Return a request's sampling parameters; missing ones are the model's defaults."""
        values: dict[str, Any] = dict(self.defaults)
        names = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"]
        if isinstance(request, Penalized):
            names += ["frequency_penalty", "presence_penalty", "seed"]
            if request.logit_bias:
                values["logit_bias"] = self._logit_bias(request.logit_bias)
        values.update({name: value for name in names if (value := getattr(request, name)) is not None})
        values["top_k"] = max(0, values.get("top_k", 0))  # other servers use -1 for all tokens
        return SamplingParameters(**values, logprobs=logprobs)

    def _logit_bias(self, biases: Mapping[str, float]) -> dict[int, float]:
        vocabulary = self.engine.runner.vocabulary
        for token in biases:
            if not (token.isascii() and token.isdigit() and len(token) < 12 and int(token) < vocabulary):
                message = (
                    f"'logit_bias': {token[:64]!r} is not a token; tokens are numbers below {vocabulary}"
                )
                raise ApiError(400, message, param="logit_bias", code="invalid_value")
        return {int(token): bias for token, bias in biases.items()}

    def request(
        self,
        fields: Sampling,
        prompt: list[int],
        max_tokens: int,
        user: str,
        *,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        grammar: Constraint | None = None,
        shown: frozenset[int] = frozenset(),
        reasoning: ReasoningBudget | None = None,
        images: Images | None = None,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        width: int | None = None,
    ) -> Request:
        """Make the engine's request for one prompt.

        Args:
            fields: the fields of the client's request.
            prompt: tokens.
            max_tokens: the most tokens of the answer.
            user: identifies the client for fair scheduling.
            logprobs: as in `SamplingParameters`.
            prompt_logprobs: as in `tilewright.llm.engine.stream.Request`.
            grammar: constrains the answer.
            shown: special tokens whose text is part of the answer's.
            reasoning: the most tokens of reasoning.
            images: the images of the prompt.
            stop: further texts that end the answer.
            stop_tokens: further tokens that end the answer.
            width: the width of a beam search; None: the number of answers.
        """
        penalized = fields if isinstance(fields, Penalized) else None
        if penalized and penalized.stop_token_ids:
            self.check_tokens(penalized.stop_token_ids, "stop_token_ids")
            stop_tokens = [*stop_tokens, *penalized.stop_token_ids]
        least = (penalized and penalized.min_tokens) or 0
        if least > max_tokens:
            message = f"'min_tokens' is {least}; the answer may have {max_tokens} tokens"
            raise ApiError(400, message, param="min_tokens", code="invalid_value")
        source = None
        if (runner := self.engine.runner).source_kind == "audio":
            raise ApiError(400, "the model takes recordings: send them to /v1/audio/transcriptions")
        if runner.source_kind == "tokens":
            if prompt_logprobs is not None:
                raise ApiError(
                    400, "log-probabilities of a prompt are those of a decoder: the model's is encoded"
                )
            source, prompt = np.array(prompt, np.int32), list(runner.start)
        made = Request(
            prompt=prompt,
            source=source,
            sampling=self.sampling(fields, logprobs),
            stop=[*stop, *((penalized and penalized.stop) or ())],
            stop_tokens=list(stop_tokens),
            max_tokens=max_tokens,
            min_tokens=least,
            ignore_eos=fields.ignore_eos,
            prompt_logprobs=prompt_logprobs,
            grammar=grammar,
            images=images,
            shown=shown,
            reasoning=reasoning,
            adapter="" if fields.model == self.name else fields.model,
            n=(penalized and penalized.n) or 1,
            beams=None if penalized is None else _beams(penalized, width),
            user=user,
        )
        try:
            self.engine.check(made)
        except RequestError as error:
            raise refusal(error) from error
        return made

    async def constraint(self, form: Form, param: str) -> Constraint:
        """Make a constraint to a form of answers.

        Raises:
            ApiError: 400: the form cannot be used.
        """
        try:
            return await asyncio.to_thread(form.constraint, self._grammars)
        except RequestError as error:
            raise ApiError(400, str(error), param=param, code="invalid_schema") from None

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer)

    def generation(self, requests: Sequence[Request]) -> Generation:
        """Prepare the answers to `requests`; generation starts with `deltas`."""
        return Generation(self, requests)

    async def encode_pair(
        self, first: str, second: str, param: str, most: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Encode two texts, whose second is cut to `most` tokens with the first; return the tokens and the
        numbers of their segments.

        Raises:
            ApiError: 400: they have too many tokens.
        """
        self.check_length(first if most else max(first, second, key=len), param)
        try:
            tokens, types = await self.encoding(
                len(first) + len(second), lambda: self.tokenizer.encode_pair(first, second, most=most)
            )
        except RequestError as error:
            raise ApiError(400, str(error), param=param, code="context_length_exceeded") from None
        self.check_prompt(tokens, param)
        return tokens, types

    async def embed(self, tokens: list[int]) -> Any:
        """Return the embedding [hidden] of a text.

        Raises:
            ApiError: 400: the model has no embeddings.
        """
        return await self._computed(lambda: self.engine.submit_embedding(tokens))

    async def score(self, tokens: list[int], types: list[int]) -> Any:
        """Return the logits [labels] of a text in segments `types`.

        Raises:
            ApiError: 400: the model is no classifier.
        """
        return await self._computed(lambda: self.engine.submit_score(tokens, types))

    async def _computed(self, submit: Callable[[], Future[Any]]) -> Any:
        try:
            return await asyncio.wrap_future(submit())
        except TilewrightError as error:
            raise refusal(error) from error


def _beams(fields: Penalized, width: int | None) -> BeamSearch | None:
    """The beam search that a client asks for."""
    if fields.use_beam_search:
        penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
        return BeamSearch(width or fields.n or 1, penalty, bool(fields.early_stopping))
    for name in ("length_penalty", "early_stopping"):
        if getattr(fields, name) is not None:
            raise ApiError(400, f"'{name}' needs 'use_beam_search': true", param=name, code="invalid_value")
    return None


class Generation:
    """The answers to requests of equal `n`, and their token counts so far.

    Answer `i` is choice ``i % n`` of request ``i // n``.
    """

    def __init__(self, service: Service, requests: Sequence[Request]) -> None:
        self._service = service
        self.requests = requests
        self.count = sum(request.n for request in requests)
        self.prompt_tokens = sum(len(r.prompt if r.source is None else r.source) for r in requests)
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.streams: list[Stream] = []
        """The engine's streams of the requests, once generation has begun."""
        self.span: RequestSpan | None = None
        """Notes the course of the generation."""

    def usage(self) -> dict[str, Any]:
        """Return token counts in OpenAI's form."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Generate; iterate over (answer, delta) in the order of arrival.

        Closing the iterator cancels unfinished answers.
        """
        seconds = self._service.limits.request_timeout
        end = asyncio.get_running_loop().time() + seconds
        streams = self.streams
        queue: asyncio.Queue[tuple[int, Delta] | Exception] = asyncio.Queue()

        async def pump(first: int, stream: Stream) -> None:
            try:
                async for delta in stream:
                    queue.put_nowait((first + delta.index, delta))
            except Exception as error:
                queue.put_nowait(error)

        pumps: list[asyncio.Task[None]] = []
        try:
            for request in self.requests:
                streams.append(self._service.engine.submit(request))
            n = self.requests[0].n
            pumps += [asyncio.create_task(pump(i * n, stream)) for i, stream in enumerate(streams)]
            left = self.count
            while left:
                # not around the yield, where it would interrupt the caller's code
                async with asyncio.timeout_at(end):
                    item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item[1].finish_reason == "cancelled":  # by the engine's stop, not by this request
                    raise OverloadedError("the answer is incomplete because the server is stopping")
                left -= item[1].finish_reason is not None
                self.generated_tokens += len(item[1].tokens)
                self.cached_tokens = sum(stream.cached_tokens for stream in streams)
                if self.span is not None:
                    self.span.token(item[0], item[1].finish_reason)
                yield item
        except TimeoutError:
            message = f"the answer was not complete within {seconds:g} s"
            raise self._failed(ApiError(504, message, code="timeout")) from None
        except TilewrightError as error:
            raise self._failed(refusal(error)) from error
        finally:
            if self.span is not None:
                admitted = [s.admitted for s in streams if s.admitted is not None]
                self.span.generated(self.usage(), admitted)
            for task in pumps:
                task.cancel()
            for stream in streams:
                stream.cancel()

    def _failed(self, error: ApiError) -> ApiError:
        if self.span is not None:
            self.span.fail(error)
        return error


def refusal(error: TilewrightError) -> ApiError:
    """Convert the engine's error to a response."""
    if isinstance(error, RequestError):
        return ApiError(400, str(error))
    if isinstance(error, OverloadedError):
        return ApiError(503, str(error), headers={"Retry-After": "5"})
    if isinstance(error.__cause__, CompileError):  # the model lacks the function
        return ApiError(400, str(error.__cause__))
    return ApiError(500, str(error))
