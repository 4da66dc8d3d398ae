"""/v1/completions and /v1/embeddings."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np

from ..engine.stream import Delta, Request
from .errors import ApiError
from .protocol import CompletionRequest, EmbeddingRequest
from .service import Generation, Service
from .streaming import DONE, event

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for completions, in tokens
MAX_INPUTS = 2048


async def texts(
    service: Service, prompt: str | list[str] | list[int] | list[list[int]], param: str
) -> list[list[int]]:
    """Return the tokens of one or several texts; lists of tokens are returned unchanged."""
    several: Any = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    if not 1 <= len(several) <= MAX_INPUTS:
        message = f"'{param}' has {len(several)} texts; it must have 1 to {MAX_INPUTS}"
        raise ApiError(400, message, param=param, code="invalid_value")
    prompts: list[list[int]] = []
    for text in several:
        if isinstance(text, str):
            prompts.append(await service.encode(text, special=True, param=param))
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
            "model": service.name,
        }

    def _echo(self, index: int) -> str:
        return (
            self._service.tokenizer.decode(self._prompts[index // (self._request.n or 1)])
            if self._request.echo
            else ""
        )

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Iterate over the events of a streamed answer."""
        options = self._request.stream_options
        account = {"usage": None} if options and options.include_usage else {}
        logprobs = [_Logprobs(self._service) for _ in range(self.generation.count)]

        def chunk(index: int, text: str, delta: Delta | None) -> bytes:
            entry = logprobs[index].add(delta) if delta and self._request.logprobs is not None else None
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

        if self._request.echo:
            for index in range(self.generation.count):
                yield chunk(index, self._echo(index), None)
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                if (
                    delta.text
                    or delta.finish_reason
                    or (delta.logprobs and self._request.logprobs is not None)
                ):
                    yield chunk(index, delta.text, delta)
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
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                choices[index]["text"] += delta.text
                choices[index]["finish_reason"] = delta.finish_reason
                if self._request.logprobs is not None:
                    added, all = logprobs[index].add(delta), choices[index]["logprobs"]
                    choices[index]["logprobs"] = (
                        {key: all[key] + added[key] for key in added} if all else added
                    )
        return self._base | {"choices": choices, "usage": self.generation.usage()}


class _Logprobs:
    """Log-probabilities of one completion in the form of /v1/completions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._offset = 0

    def add(self, delta: Delta) -> dict[str, list[Any]]:
        result: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for entry in delta.logprobs or ():
            text = self._text(entry.token)
            result["tokens"].append(text)
            result["token_logprobs"].append(max(entry.logprob, -9999.0))
            result["top_logprobs"].append(
                {self._text(token): max(logprob, -9999.0) for token, logprob in entry.top}
            )
            result["text_offset"].append(self._offset)
            self._offset += len(text)
        return result

    def _text(self, token: int) -> str:
        """Return a token's text; a token that is part of a character is written as its bytes, as OpenAI
        does.
        """
        data = self._service.tokenizer.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


async def completion(service: Service, request: CompletionRequest, user: str) -> TextCompletion:
    """Check and prepare a request to /v1/completions; `user` identifies the client for fair scheduling."""
    n = request.n or 1
    if request.best_of not in (None, n):
        raise ApiError(
            400, "best_of other than n is not supported", param="best_of", code="unsupported_parameter"
        )
    if request.echo and request.logprobs is not None:
        raise ApiError(
            400, "echo together with logprobs is not supported", param="echo", code="unsupported_parameter"
        )
    prompts = await texts(service, request.prompt, "prompt")
    sampling = service.sampling(request, request.logprobs)
    requests = [
        Request(
            prompt=prompt,
            sampling=sampling,
            stop=list(request.stop or ()),
            max_tokens=service.max_tokens(request.max_tokens, len(prompt), "max_tokens", DEFAULT_MAX_TOKENS),
            ignore_eos=request.ignore_eos,
            n=n,
            user=user,
        )
        for prompt in prompts
    ]
    return TextCompletion(service, request, prompts, service.generation(requests))


async def embeddings(service: Service, request: EmbeddingRequest) -> dict[str, Any]:
    """Answer a request to /v1/embeddings."""
    prompts = await texts(service, request.input, "input")
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


def _shortened(vector: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` values, scaled to length 1 (Matryoshka embeddings, Kusupati et al. 2022)."""
    if size > len(vector):
        raise ApiError(
            400, f"the model's embeddings have {len(vector)} dimensions, not {size}", param="dimensions"
        )
    cut = vector[:size]
    return cut / max(float(np.linalg.norm(cut)), 1e-12)
