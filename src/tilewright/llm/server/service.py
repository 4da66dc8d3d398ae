"""`Service`: a model as the server offers it, and everything that the server does with the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...errors import CompileError, OverloadedError, RequestError, TilewrightError
from ..engine.engine import Engine
from ..engine.grammar import Constraint, Grammars
from ..engine.sampling import SamplingParameters
from ..engine.stream import Delta, Request, Stream
from ..tokenizer import Tokenizer
from .errors import ApiError
from .http import Lifecycle
from .limits import Admission, Keys, Limits
from .metrics import Metrics
from .protocol import Penalized, Sampling

_LONG = 1 << 16  # characters


@dataclass
class Service:
    """A model, its engine (running) and what clients may do with it."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters of requests that name none, by `SamplingParameters`' names."""
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.admission = Admission(self.engine.options.max_batch or self.engine.runner.max_batch, self.limits.queue)
        self._long = asyncio.Semaphore()
        self.metrics = Metrics(self.engine.stats, lambda: self.admission.inside)

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.engine.limit

    async def encode(self, text: str, special: bool, param: str) -> list[int]:
        """The tokens of a prompt; `special`: with those that begin one. ApiError 400 where there are too many or none."""
        if (least := self.tokenizer.least_tokens(text)) > self._longest_prompt:
            raise self._too_long(f"{len(text.encode())} bytes, at least {least} tokens", param)
        # In a thread, for a long text keeps a core busy for a while; of such one at a time, for it takes much memory.
        async with self._long if len(text) > _LONG else nullcontext():
            tokens = await asyncio.to_thread(self.tokenizer.encode, text, special=special)
        self.check_prompt(tokens, param)
        return tokens

    def check_prompt(self, tokens: Sequence[int], param: str) -> None:
        """ApiError 400 unless the tokens are some, in the vocabulary, and not too many."""
        if not tokens:
            raise ApiError(400, "the prompt is empty", param=param, code="invalid_value")
        vocabulary = self.engine.runner.vocabulary
        if max(tokens) >= vocabulary:
            message = f"token {max(tokens)} is not in the model's vocabulary of {vocabulary}"
            raise ApiError(400, message, param=param, code="invalid_value")
        if len(tokens) > self._longest_prompt:
            raise self._too_long(f"{len(tokens)} tokens", param)

    @property
    def _longest_prompt(self) -> int:
        return min(self.limits.prompt_tokens or self.context, self.context)

    def _too_long(self, size: str, param: str) -> ApiError:
        limit = self._longest_prompt
        whose = "the model's context" if limit == self.context else "this server's limit"
        message = f"the prompt has {size}; {whose} is {limit} tokens"
        return ApiError(400, message, param=param, code="context_length_exceeded")

    def max_tokens(self, asked: int | None, prompt: int, param: str, default: int | None = None) -> int:
        """How many tokens an answer to `prompt` tokens may have. ApiError 400 where more were asked for than there can be."""
        room = self.context - prompt
        limit = self.limits.max_tokens or self.context
        if asked is None:
            if room < 1:
                message = f"the prompt's {prompt} tokens fill the model's context of {self.context}"
                raise ApiError(400, message, param=param, code="context_length_exceeded")
            return min(room, limit, default or room)
        if asked > limit and limit < self.context:
            message = f"{asked} tokens are more than this server's limit of {limit} for an answer"
            raise ApiError(400, message, param=param, code="invalid_value")
        if asked > room:
            message = (
                f"the model's context is {self.context} tokens; the prompt's {prompt} and the answer's {asked} are "
                f"{prompt + asked}: shorten the prompt or ask for fewer tokens"
            )
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        return asked

    def sampling(self, request: Sampling, logprobs: int | None = None) -> SamplingParameters:
        """How a request wants tokens to be chosen; what it does not say is the model's default."""
        values: dict[str, Any] = dict(self.defaults)
        names = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"]
        if isinstance(request, Penalized):
            names += ["frequency_penalty", "presence_penalty", "seed"]
            if request.logit_bias:
                values["logit_bias"] = self._logit_bias(request.logit_bias)
        values.update({name: value for name in names if (value := getattr(request, name)) is not None})
        values["top_k"] = max(0, values.get("top_k", 0))  # others write -1 for all
        return SamplingParameters(**values, logprobs=logprobs)

    def _logit_bias(self, biases: Mapping[str, float]) -> dict[int, float]:
        vocabulary = self.engine.runner.vocabulary
        for token in biases:
            if not (token.isascii() and token.isdigit() and len(token) < 12 and int(token) < vocabulary):
                message = f"'logit_bias': {token[:64]!r} is no token; tokens are numbers below {vocabulary}"
                raise ApiError(400, message, param="logit_bias", code="invalid_value")
        return {int(token): bias for token, bias in biases.items()}

    async def json_schema(self, schema: Mapping[str, Any], param: str) -> Constraint:
        """A constraint to JSON that a schema describes; ApiError 400 where the schema cannot be used."""
        # Blanks as json.dumps writes them: where a grammar allows any number, small models write blanks for ever.
        spaced = {**schema, "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
        try:
            return await asyncio.to_thread(self._grammars.json_schema, spaced)
        except RequestError as error:
            raise ApiError(400, str(error), param=param, code="invalid_schema") from None

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer)

    def generation(self, requests: Sequence[Request]) -> Generation:
        """The answers to `requests`, not yet begun."""
        return Generation(self, requests)

    async def embed(self, tokens: list[int]) -> Any:
        """The embedding [hidden] of a text; ApiError 400 where the model has none."""
        try:
            return await asyncio.wrap_future(self.engine.submit_embedding(tokens))
        except TilewrightError as error:
            raise _refusal(error) from error


class Generation:
    """The answers to some requests of equal `n`, and what they cost so far. Answer `i` is choice ``i % n`` of request ``i // n``."""

    def __init__(self, service: Service, requests: Sequence[Request]) -> None:
        self._service = service
        self.requests = requests
        self.count = sum(request.n for request in requests)
        self.prompt_tokens = sum(len(request.prompt) for request in requests)
        self.cached_tokens = 0
        self.generated_tokens = 0

    def usage(self) -> dict[str, Any]:
        """OpenAI's account."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """What comes, as it comes: (answer, delta). Closing the generator cancels what is not finished."""
        seconds = self._service.limits.request_timeout
        end = asyncio.get_running_loop().time() + seconds
        streams: list[Stream] = []
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
                async with asyncio.timeout_at(end):  # not around the yield, where others' code would be interrupted
                    found = await queue.get()
                if isinstance(found, Exception):
                    raise found
                if found[1].finish_reason == "cancelled":  # not by us: the engine is being stopped
                    raise OverloadedError("the answer was ended because the server stops")
                left -= found[1].finish_reason is not None
                self.generated_tokens += len(found[1].tokens)
                self.cached_tokens = sum(stream.cached_tokens for stream in streams)
                yield found
        except TimeoutError:
            raise ApiError(504, f"the answer was not complete within {seconds:g} s", code="timeout") from None
        except TilewrightError as error:
            raise _refusal(error) from error
        finally:
            for task in pumps:
                task.cancel()
            for stream in streams:
                stream.cancel()


def _refusal(error: TilewrightError) -> ApiError:
    """What the engine's error is to a client."""
    if isinstance(error, RequestError):
        return ApiError(400, str(error))
    if isinstance(error, OverloadedError):
        return ApiError(503, str(error), headers={"Retry-After": "5"})
    if isinstance(error.__cause__, CompileError):  # the model has no such function
        return ApiError(400, str(error.__cause__))
    return ApiError(500, str(error))
