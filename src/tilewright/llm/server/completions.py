"""/v1/completions and /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from ..engine.sampling import TokenLogprob
from ..engine.stream import Delta
from .errors import ApiError
from .forms import structured
from .infill import infill
from .protocol import CompletionRequest, EmbeddingRequest
from .service import Generation, Service
from .streaming import DONE, event

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for completions, in tokens
MAX_INPUTS = 2048


async def texts(
    service: Service,
    prompt: str | list[str] | list[int] | list[list[int]],
    param: str,
    *,
    before: str = "",
    most: int | None = None,
) -> list[list[int]]:
    """Return the tokens of one or several texts, which are cut to `most` tokens; `before` precedes each text.
    Lists of tokens are returned unchanged.
    """
    several: Any = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    if not 1 <= len(several) <= MAX_INPUTS:
        message = f"'{param}' has {len(several)} texts; it must have 1 to {MAX_INPUTS}"
        raise ApiError(400, message, param=param, code="invalid_value")
    prompts: list[list[int]] = []
    for text in several:
        if isinstance(text, str):
            prompts.append(await service.encode(before + text, special=True, param=param, most=most))
        else:
            service.check_prompt(text, param)
            prompts.append(text)
    return prompts


class TextCompletion:
    """One checked request to /v1/completions."""

    def __init__(
        self, service: Service, request: CompletionRequest, prompts: list[list[int]], generation: Generation
    ) -> None:
        self._service = service
        self._request = request
        self._prompts = prompts
        self.generation = generation
        self._base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }

    def _prompt(self, index: int) -> list[int]:
        return self._prompts[index // (self._request.n or 1)]

    def _echo(self, index: int) -> str:
        return self._service.tokenizer.decode(self._prompt(index)) if self._request.echo else ""

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Iterate over (choice, delta); without the one token that is generated in place of none."""
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                if self._request.max_tokens == 0:
                    self.generation.generated_tokens = 0
                    yield index, Delta("", [], [], delta.finish_reason and "length", delta.index)
                else:
                    yield index, delta

    def _log(self, logprobs: _Logprobs, index: int, delta: Delta) -> dict[str, list[Any]]:
        """Return the log-probabilities of a delta; with those of the prompt before the first one's."""
        if not self._request.echo or logprobs.begun:
            return logprobs.add(delta.logprobs or ())
        stream = self.generation.streams[index // (self._request.n or 1)]
        prompt = logprobs.begin(self._prompt(index)[0])
        return _joined(prompt, logprobs.add([*stream.prompt_logprobs, *(delta.logprobs or ())]))

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Iterate over the events of a streamed answer."""
        options = self._request.stream_options
        account = {"usage": None} if options and options.include_usage else {}
        logprobs = [_Logprobs(self._service) for _ in range(self.generation.count)]

        def chunk(index: int, text: str, delta: Delta | None) -> bytes:
            entry = None
            if delta and self._request.logprobs is not None:
                entry = self._log(logprobs[index], index, delta)
            choice = {
                "index": index,
                "text": text,
                "logprobs": entry,
                "finish_reason": delta.finish_reason if delta else None,
            }
            now = (
                {"usage": self.generation.usage()} if options and options.continuous_usage_stats else account
            )
            return event(self._base | {"choices": [choice]} | now)

        # a prompt with log-probabilities comes with the first token, before which they are not known
        late = self._request.logprobs is not None
        if self._request.echo and not late:
            for index in range(self.generation.count):
                yield chunk(index, self._echo(index), None)
        async with aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                text = self._echo(index) if late and not logprobs[index].begun else ""
                if text or delta.text or delta.finish_reason or (delta.logprobs and late):
                    yield chunk(index, text + delta.text, delta)
        if options and options.include_usage:
            yield event(self._base | {"choices": [], "usage": self.generation.usage()})
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """Return the answer in one piece."""
        choices: list[dict[str, Any]] = [
            {"index": i, "text": self._echo(i), "logprobs": None, "finish_reason": None}
            for i in range(self.generation.count)
        ]
        logprobs = [_Logprobs(self._service) for _ in range(self.generation.count)]
        async with aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                choices[index]["text"] += delta.text
                choices[index]["finish_reason"] = delta.finish_reason
                if self._request.logprobs is not None:
                    added, all = self._log(logprobs[index], index, delta), choices[index]["logprobs"]
                    choices[index]["logprobs"] = _joined(all, added) if all else added
        return self._base | {"choices": choices, "usage": self.generation.usage()}


class _Logprobs:
    """Log-probabilities of one completion in the form of /v1/completions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._offset = 0
        self.begun = False

    def begin(self, token: int) -> dict[str, list[Any]]:
        """Return the entry of a prompt's first token, which has no probability."""
        return self._columns([(token, None, None)])

    def add(self, entries: Sequence[TokenLogprob]) -> dict[str, list[Any]]:
        """Return further entries, as a list for each of the form's fields."""
        self.begun = True
        return self._columns([(entry.token, entry.logprob, entry.top) for entry in entries])

    def _columns(
        self, entries: Sequence[tuple[int, float | None, Sequence[tuple[int, float]] | None]]
    ) -> dict[str, list[Any]]:
        offsets = []
        for token, _, _ in entries:
            offsets.append(self._offset)
            if token not in self._service.tokenizer.special_tokens:  # which the text does not show
                self._offset += len(self._text(token))
        return {
            "tokens": [self._text(token) for token, _, _ in entries],
            "token_logprobs": [None if value is None else max(value, -9999.0) for _, value, _ in entries],
            "top_logprobs": [
                None if top is None else {self._text(token): max(value, -9999.0) for token, value in top}
                for _, _, top in entries
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        """Return a token's text; a token that is part of a character is written as its bytes, as OpenAI
        does.
        """
        data = self._service.tokenizer.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _joined(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: values + second[name] for name, values in first.items()}


async def completion(service: Service, request: CompletionRequest, user: str) -> TextCompletion:
    """Check and prepare a request to /v1/completions; `user` identifies the client for fair scheduling."""
    n = request.n or 1
    if request.best_of not in (None, n) and not (request.use_beam_search and request.best_of > n):
        message = "'best_of' other than 'n' is the width of a beam search ('use_beam_search'), at least 'n'"
        raise ApiError(400, message, param="best_of", code="unsupported_parameter")
    if request.max_tokens == 0 and not request.echo:
        message = "'max_tokens' is 0, which needs 'echo': true: there would be no answer"
        raise ApiError(400, message, param="max_tokens", code="invalid_value")
    ends: list[int] = []
    if request.suffix:
        if not isinstance(request.prompt, str) or request.echo:
            message = "'suffix' needs a prompt that is one text, without 'echo'"
            raise ApiError(400, message, param="suffix", code="invalid_value")
        service.check_length(request.prompt + request.suffix, "prompt")
        tokens, ends = await asyncio.to_thread(infill, service.tokenizer, request.prompt, request.suffix)
        prompts = await texts(service, tokens, "prompt")
    else:
        prompts = await texts(service, request.prompt, "prompt")
    form = structured(request)
    grammar = None if form is None else await service.constraint(form, "structured_outputs")
    wanted = None if request.max_tokens is None else max(1, request.max_tokens)
    requests = [
        service.request(
            request,
            prompt,
            service.max_tokens(wanted, len(prompt), "max_tokens", DEFAULT_MAX_TOKENS),
            user,
            logprobs=request.logprobs,
            prompt_logprobs=request.logprobs if request.echo else None,
            grammar=grammar,
            stop_tokens=ends,
            width=request.best_of,
        )
        for prompt in prompts
    ]
    return TextCompletion(service, request, prompts, service.generation(requests))


async def embeddings(service: Service, request: EmbeddingRequest) -> dict[str, Any]:
    """Answer a request to /v1/embeddings."""
    before = prompt_of(service, request.prompt_name)
    most = cut(service, request.truncate_prompt_tokens, service.tokenizer.added())
    prompts = await texts(service, request.input, "input", before=before, most=most)
    data = []
    for index, prompt in enumerate(prompts):
        vector = np.asarray(await service.embed(prompt), np.float32)
        if request.dimensions is not None:
            vector = _shortened(vector, request.dimensions)
        value: str | list[float] = vector.tolist()
        if request.encoding_format == "base64":
            value = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": value})
    count = sum(map(len, prompts))
    return {
        "object": "list",
        "data": data,
        "model": service.name,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def prompt_of(service: Service, name: str | None) -> str:
    """Return the text of a prompt of the model, by default that of its default prompt.

    Raises:
        ApiError: 400: the model has no prompt of that name.
    """
    known = service.texts.prompts
    name = service.texts.default_prompt if name is None else name
    if name is None:
        return ""
    if name not in known:
        message = f"the model has no prompt {name!r}; it has {', '.join(known) or 'none'}"
        raise ApiError(400, message, param="prompt_name", code="invalid_value")
    return known[name]


def cut(service: Service, wanted: int | None, added: int) -> int | None:
    """Return the number of tokens to which texts are cut: `wanted`, but not more than fit, which -1 asks for.

    Raises:
        ApiError: 400: it is smaller than `added`, the number of tokens that each text has besides its own.
    """
    if wanted is None:
        return None
    most = service.longest_prompt if wanted == -1 else min(wanted, service.longest_prompt)
    if most < added:
        message = f"texts cannot be cut to {most} tokens: each has {added} besides its own"
        raise ApiError(400, message, param="truncate_prompt_tokens", code="invalid_value")
    return most


def _shortened(vector: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` values, scaled to length 1 (Matryoshka embeddings, Kusupati et al. 2022)."""
    if size > len(vector):
        raise ApiError(
            400, f"the model's embeddings have {len(vector)} dimensions, not {size}", param="dimensions"
        )
    cut = vector[:size]
    return cut / max(float(np.linalg.norm(cut)), 1e-12)
