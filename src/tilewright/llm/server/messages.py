"""/v1/messages and /v1/messages/count_tokens: Anthropic's chat API, over the same preparation as OpenAI's.

The content of a message is a list of blocks: text, calls of tools, their results, and reasoning.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .chat import Answer, Turn, prepare
from .errors import ApiError
from .image_parts import ImageSource
from .images import Attached, from_base64, from_url
from .protocol import Function, FunctionName, Model, ModelRequest, Parameters, Sampling
from .reasoning import Thought
from .service import Generation, Service
from .streaming import TypedEvents, event
from .tools import CallArguments, CallBegins, Event


class CacheControl(Model):
    type: Literal["ephemeral"]
    ttl: str | None = None


class Block(Model):
    cache_control: CacheControl | None = None  # prefixes are cached anyway

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        """Drop fields without a value: clients send an answer's blocks back with every field they know."""
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: None = None


class ImageBlock(Block):
    type: Literal["image"]
    source: ImageSource


class ThinkingBlock(Block):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


ContentBlock = Annotated[
    TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]


class MessageParam(Model):
    role: Literal["user", "assistant"]
    content: str | list[ContentBlock]


class AnthropicTool(Block):
    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None


class AnthropicChoice(Model):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Model):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=0)
    """Most tokens of reasoning, after which its end is written for the model."""
    display: str | None = None


class CountRequest(ModelRequest):
    """The fields that make up a prompt."""

    metadata: dict[str, Any] | None = None
    messages: list[MessageParam] = Field(min_length=1)
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = Field(None, max_length=128)
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None
    """Variable ``enable_thinking`` of the chat template, where it reads one."""


class MessagesRequest(CountRequest, Sampling):
    max_tokens: int = Field(ge=1)
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = Field(None, max_length=64)
    stream: bool | None = None


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Messages(TypedEvents):
    """One checked request to /v1/messages."""

    def __init__(self, model: str, turn: Turn, generation: Generation) -> None:
        self._turn = turn
        self.generation = generation
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _result(self) -> dict[str, Any]:
        return self._message | {"content": self._blocks, "usage": self._usage()}

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a failed stream."""
        return event(error_body(error), "error")

    def _usage(self) -> dict[str, int]:
        generation = self.generation
        return {
            "input_tokens": generation.prompt_tokens - generation.cached_tokens,
            "cache_read_input_tokens": generation.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": generation.generated_tokens,
        }

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        answer = Answer(self._turn)
        yield {"type": "message_start", "message": self._message | {"usage": self._usage()}}
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                for entry in answer.read(delta):
                    for content in self._add(entry):
                        yield content
                if delta.finish_reason:
                    reason = _REASONS[answer.finish_reason or "stop"]
                    if answer.calls and reason == "end_turn":
                        reason = "tool_use"  # also where the request named the tool
                    named = isinstance(delta.stop, str) and reason == "end_turn"
                    self._message["stop_reason"] = "stop_sequence" if named else reason
                    self._message["stop_sequence"] = delta.stop if named else None
        for content in self._close():
            yield content
        stopped = {name: self._message[name] for name in ("stop_reason", "stop_sequence")}
        yield {"type": "message_delta", "delta": stopped, "usage": self._usage()}
        yield {"type": "message_stop"}

    def _add(self, entry: Thought | Event) -> Iterator[dict[str, Any]]:
        """Iterate over the events for an addition: a new block begins, or the last one grows."""
        if isinstance(entry, CallBegins):
            yield from self._begin({"type": "tool_use", "id": entry.id, "name": entry.name, "input": {}})
            self._arguments = ""
            return
        if isinstance(entry, CallArguments):
            self._arguments += entry.text
            yield self._delta({"type": "input_json_delta", "partial_json": entry.text})
            return
        kind, text = ("text", entry) if isinstance(entry, str) else ("thinking", entry.text)
        if not self._blocks or self._blocks[-1]["type"] != kind:
            more = {"signature": ""} if kind == "thinking" else {}
            yield from self._begin({"type": kind, kind: "", **more})
        self._blocks[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._blocks.append(block)
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> Iterator[dict[str, Any]]:
        """End the last block; the arguments of a call that was cut short stay empty, as they are no JSON."""
        if not self._blocks:
            return
        if self._blocks[-1]["type"] == "tool_use":
            try:
                self._blocks[-1]["input"] = json.loads(self._arguments or "{}")
            except ValueError:
                self._blocks[-1]["input"] = {}
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}


def error_body(error: ApiError) -> dict[str, Any]:
    """Return an error in the form of Anthropic's API."""
    kinds = {429: "rate_limit_error", 413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
    kind = kinds.get(error.status, error.body["error"]["type"].replace("server_error", "api_error"))
    return {"type": "error", "error": {"type": kind, "message": error.message}}


async def messages(service: Service, request: MessagesRequest, user: str) -> Messages:
    """Check and prepare a request to /v1/messages; `user` identifies the client for fair scheduling."""
    turn = await _turn(service, request)
    limit = service.max_tokens(request.max_tokens, len(turn.prompt), "max_tokens")
    asked = service.request(
        request,
        turn.prompt,
        limit,
        user,
        grammar=turn.grammar,
        shown=turn.shown,
        reasoning=turn.budget,
        images=turn.images,
        stop=request.stop_sequences or (),
    )
    return Messages(request.model, turn, service.generation([asked]))


async def count_tokens(service: Service, request: CountRequest) -> dict[str, int]:
    """Answer a request to /v1/messages/count_tokens."""
    return {"input_tokens": len((await _turn(service, request)).prompt)}


async def _turn(service: Service, request: CountRequest) -> Turn:
    choice, thinking = request.tool_choice, request.thinking
    if choice and choice.type == "tool" and not choice.name:
        raise ApiError(400, "tool_choice of type 'tool' needs a name", param="tool_choice")
    names = {"any": "required", "tool": f"function:{choice.name if choice else ''}"}
    continued = request.messages[-1].role == "assistant"
    return await prepare(
        service,
        [
            *_system(request.system),
            *(m for k, message in enumerate(request.messages) for m in _rendered(message, f"messages.{k}")),
        ],
        [
            Function(name=t.name, description=t.description, parameters=t.input_schema)
            for t in request.tools or ()
        ],
        names.get(choice.type, choice.type) if choice else None,
        None,
        not (choice and choice.disable_parallel_tool_use),
        None if thinking is None else {"enable_thinking": thinking.type != "disabled"},
        open_answer=not continued,
        continued=continued,
        budget=None if thinking is None or thinking.type == "disabled" else thinking.budget_tokens,
    )


def _system(system: str | list[TextBlock] | None) -> list[dict[str, Any]]:
    return [{"role": "system", "content": _text(system)}] if system else []


def _rendered(message: MessageParam, where: str) -> list[dict[str, Any]]:
    """Convert a message for chat templates, in which each result of a tool is a message.

    Args:
        message: The message.
        where: The request's field, which errors name.
    """
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    rest: dict[str, Any] = {"role": message.role, "content": ""}
    results: list[dict[str, Any]] = []
    parts: list[str | Attached] = []
    for place, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            rest["content"] += block.text
            parts.append(block.text)
        elif isinstance(block, ImageBlock):
            source, field = block.source, f"{where}.content.{place}.source"
            parts.append(
                from_url(source.url, f"{field}.url")
                if source.type == "url"
                else from_base64(source.data, f"{field}.data")
            )
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            call = {"id": block.id, "type": "function", "function": function}
            rest.setdefault("tool_calls", []).append(call)
        elif isinstance(block, ToolResultBlock):
            text = _text(block.content or "")
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        else:
            rest["reasoning_content"] = rest.get("reasoning_content", "") + block.thinking
    if any(isinstance(part, Attached) for part in parts):
        rest["content"] = parts
    return [*results, rest] if len(rest) > 2 or rest["content"] or not results else results


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
