"""/tokenize and /detokenize, with the fields of vLLM's and llama.cpp's servers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .chat import prepare, rendered
from .errors import ApiError
from .protocol import Message, Model, Token, Tool
from .service import Service


class TokenizeRequest(Model):
    """A text, or a chat."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    """llama.cpp's name for `prompt`."""
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    """llama.cpp's name for `add_special_tokens`."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Model):
    model: str | None = None
    tokens: list[Token]


async def tokenize(service: Service, request: TokenizeRequest) -> dict[str, Any]:
    """Answer a request to /tokenize."""
    text = request.content if request.prompt is None else request.prompt
    if (text is None) == (request.messages is None):
        raise ApiError(400, "send either 'prompt' or 'messages'", param="prompt", code="invalid_value")
    if request.messages is not None:
        turn = await prepare(
            service,
            [rendered(message, index) for index, message in enumerate(request.messages)],
            [tool.function for tool in request.tools or ()],
            open_answer=request.add_generation_prompt,
        )
        tokens = turn.prompt
    else:
        assert text is not None
        # vLLM adds them unless told otherwise, llama.cpp does not
        default = request.prompt is not None
        special = request.add_special if request.add_special_tokens is None else request.add_special_tokens
        tokens = await service.encode(text, special=default if special is None else special, param="prompt")
    texts = [service.tokenizer.bytes_of(token).decode(errors="replace") for token in tokens]
    found = {"count": len(tokens), "max_model_len": service.context, "tokens": tokens}
    return found | ({"token_strs": texts} if request.return_token_strs else {})


async def detokenize(service: Service, request: DetokenizeRequest) -> dict[str, Any]:
    """Answer a request to /detokenize."""
    if request.tokens:
        service.check_tokens(request.tokens, "tokens")
    text = service.tokenizer.decode(request.tokens, special=True)
    return {"prompt": text, "content": text}
