"""/v1/chat/completions, and the code that it shares with /v1/responses.

The shared code turns messages into a prompt, and an answer's text into content and tool calls.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from ..engine.grammar import Constraint
from ..engine.sampling import TokenLogprob
from ..engine.stream import Delta, Request
from .errors import ApiError
from .protocol import ChatRequest, Function, Message, NamedTool, ObjectFormat, SchemaFormat, TextFormat
from .service import Generation, Service
from .streaming import DONE, event
from .tools import CallArguments, CallBegins, Convention, Event, ToolCallParser, convention, parameters

ANY_OBJECT = {"type": "object"}
_RESERVED = {"messages", "tools", "documents", "template", "add_generation_prompt"}


@dataclass
class Turn:
    """A prepared chat: the prompt, the grammar of the answer, and how to parse tool calls."""

    prompt: list[int]
    grammar: Constraint | None = None
    calls: Convention | None = None
    functions: tuple[str, ...] = ()
    begun: str | None = None
    """The part of a tool call that the prompt begins, as for `ToolCallParser`."""
    parallel: bool = True


class Answer:
    """Parses one answer incrementally."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._parser = ToolCallParser(turn.calls, turn.functions, turn.begun) if turn.calls else None
        self.finish_reason: str | None = None

    def read(self, delta: Delta) -> list[Event]:
        """Return the events that a delta adds, in order."""
        if self._parser is None:
            events: list[Event] = [delta.text] if delta.text else []
        else:
            events = self._parser.feed(delta.text)
            if delta.finish_reason:
                events += self._parser.finish(cut=delta.finish_reason == "length")
            if not self._turn.parallel:
                events = [e for e in events if isinstance(e, str) or e.index == 0]
        if delta.finish_reason:
            self.finish_reason = delta.finish_reason
            # As in OpenAI's API, a client that names the function gets "stop", since it knows that it is
            # called. An answer that was cut short gets its own reason in any case.
            if delta.finish_reason == "stop" and self._parser and self._parser.calls and not self._turn.begun:
                self.finish_reason = "tool_calls"
        return events


async def prepare(
    service: Service,
    messages: Sequence[Mapping[str, Any]],
    functions: Sequence[Function] = (),
    choice: str | None = None,
    schema: Mapping[str, Any] | None = None,
    parallel: bool = True,
    variables: Mapping[str, Any] | None = None,
    param: str = "messages",
) -> Turn:
    """Prepare a chat.

    Args:
        service: the model.
        messages: the chat.
        functions: functions that the model may call.
        choice: "none", "auto" (or None), "required", or "function:" and the name of the function to call.
        schema: the JSON schema of the answer.
        parallel: whether the answer may have several calls.
        variables: further variables of the chat template.
        param: the request's field that errors name.

    Raises:
        ApiError: 400: the request is contradictory, or the template rejects it.
    """
    if bad := _RESERVED & set(variables or {}):
        raise ApiError(
            400, f"chat_template_kwargs must not set {', '.join(sorted(bad))}", param="chat_template_kwargs"
        )
    named = choice.removeprefix("function:") if choice and choice.startswith("function:") else None
    if named is not None and named not in {f.name for f in functions}:
        raise ApiError(
            400, f"tool_choice names the function {named!r}, which is not among tools", param="tool_choice"
        )
    if choice == "required" and not functions:
        raise ApiError(400, "tool_choice is 'required', but there are no tools", param="tool_choice")
    offered = () if choice == "none" else tuple(functions)
    style = convention("\n".join(service.tokenizer.chat_templates.values())) if offered else None
    forced = named is not None or choice == "required"
    if style and schema is not None and not forced:
        message = (
            "an answer with response_format cannot call tools: set "
            "tool_choice to 'none', or omit response_format"
        )
        raise ApiError(400, message, param="response_format")
    try:
        text = await asyncio.to_thread(
            service.tokenizer.render,
            messages,
            tools=[{"type": "function", "function": f.model_dump(exclude_none=True)} for f in offered]
            or None,
            **(variables or {}),
        )
    except RequestError as error:
        raise ApiError(400, str(error), param=param) from None
    if style and forced:
        text += style.prefix(named)
        chosen = next((f for f in functions if f.name == named), None)
        schema = style.schema(offered) if chosen is None else parameters(chosen)
    prompt = await service.encode(text, special=False, param=param)
    # last, because it is the most expensive step
    grammar = (
        None
        if schema is None
        else await service.json_schema(schema, "tools" if forced else "response_format")
    )
    names = tuple(f.name for f in offered)
    return Turn(prompt, grammar, style, names, (named or "") if forced else None, parallel)


def rendered(message: Message, index: int) -> dict[str, Any]:
    """Convert a message for chat templates: arguments of calls as objects, the developer role as system."""
    where = f"messages.{index}"
    if message.role == "tool" and message.tool_call_id is None:
        raise ApiError(400, f"'{where}': a tool's message needs tool_call_id", param=where)
    if message.tool_calls and message.role != "assistant":
        raise ApiError(400, f"'{where}': only the assistant calls tools", param=where)
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise ApiError(400, f"'{where}.content': Field required", param=f"{where}.content")
    result: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.text or "",
    }
    if message.tool_calls:
        result["tool_calls"] = [
            call_for_template(c.id, c.function.name, c.function.arguments, where) for c in message.tool_calls
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            result[name] = value
    return result


def call_for_template(id: str, name: str, arguments: str, where: str) -> dict[str, Any]:
    """Convert a call by the model for chat templates, with its arguments as an object.

    Arguments that are not valid JSON (the answer was cut short) stay text.
    """
    try:
        parsed: Any = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        parsed = arguments
    except RecursionError:
        raise ApiError(400, f"'{where}': a call's arguments are nested too deeply", param=where) from None
    return {"id": id, "type": "function", "function": {"name": name, "arguments": parsed}}


def schema_of(format: TextFormat | ObjectFormat | SchemaFormat | None) -> Mapping[str, Any] | None:
    """Return the schema that a response_format asks for."""
    if isinstance(format, SchemaFormat):
        return format.json_schema.schema_ if format.json_schema.schema_ is not None else ANY_OBJECT
    return ANY_OBJECT if isinstance(format, ObjectFormat) else None


def token_logprobs(service: Service, entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Convert log-probabilities to the form of /v1/chat/completions."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = service.tokenizer.bytes_of(token)
        # JSON has no infinity; OpenAI writes -9999 for an impossible token.
        return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": max(logprob, -9999.0)}

    return [one(e.token, e.logprob) | {"top_logprobs": [one(*pair) for pair in e.top]} for e in entries]


class Chat:
    """One checked request to /v1/chat/completions."""

    def __init__(self, service: Service, request: ChatRequest, turn: Turn, generation: Generation) -> None:
        self._service = service
        self._request = request
        self._turn = turn
        self.generation = generation
        self._base = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": service.name,
        }

    async def _deltas(self) -> AsyncGenerator[tuple[int, dict[str, Any], list[Any], str | None], None]:
        """Iterate over (index, OpenAI's delta, logprobs, finish reason)."""
        answers = [Answer(self._turn) for _ in range(self.generation.count)]
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                logprobs = (
                    token_logprobs(self._service, delta.logprobs or ()) if self._request.logprobs else []
                )
                for entry in answers[index].read(delta):
                    yield index, _delta(entry), logprobs, None
                    logprobs = []
                if delta.finish_reason or logprobs:
                    yield index, {}, logprobs, answers[index].finish_reason

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Iterate over the events of a streamed answer."""
        options = self._request.stream_options
        base = self._base | {"object": "chat.completion.chunk"}
        account = {"usage": None} if options and options.include_usage else {}

        def chunk(index: int, delta: dict[str, Any], logprobs: list[Any], reason: str | None) -> bytes:
            choice = {"index": index, "delta": delta, "logprobs": {"content": logprobs} if logprobs else None}
            now = (
                {"usage": self.generation.usage()} if options and options.continuous_usage_stats else account
            )
            return event(base | {"choices": [choice | {"finish_reason": reason}]} | now)

        for index in range(self.generation.count):
            yield chunk(index, {"role": "assistant", "content": ""}, [], None)
        async with aclosing(self._deltas()) as deltas:
            async for index, delta, logprobs, reason in deltas:
                yield chunk(index, delta, logprobs, reason)
        if options and options.include_usage:
            yield event(base | {"choices": [], "usage": self.generation.usage()})
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """Return the answer in one piece, assembled from the same deltas."""
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": None, "refusal": None},
                "logprobs": {"content": [], "refusal": None} if self._request.logprobs else None,
                "finish_reason": None,
            }
            for index in range(self.generation.count)
        ]
        async with aclosing(self._deltas()) as deltas:
            async for index, delta, logprobs, reason in deltas:
                choice, message = choices[index], choices[index]["message"]
                if self._request.logprobs:
                    choice["logprobs"]["content"] += logprobs
                if "content" in delta:
                    message["content"] = (message["content"] or "") + delta["content"]
                for call in delta.get("tool_calls", ()):
                    _add_call(message, call)
                choice["finish_reason"] = reason or choice["finish_reason"]
        for choice in choices:
            if choice["message"]["content"] is None and "tool_calls" not in choice["message"]:
                choice["message"]["content"] = ""
        return self._base | {
            "object": "chat.completion",
            "choices": choices,
            "usage": self.generation.usage(),
        }


def _delta(entry: Event) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"content": entry}
    if isinstance(entry, CallBegins):
        function = {"name": entry.name, "arguments": ""}
        return {
            "tool_calls": [{"index": entry.index, "id": entry.id, "type": "function", "function": function}]
        }
    assert isinstance(entry, CallArguments)
    return {"tool_calls": [{"index": entry.index, "function": {"arguments": entry.text}}]}


def _add_call(message: dict[str, Any], call: dict[str, Any]) -> None:
    calls = message.setdefault("tool_calls", [])
    if "id" in call:
        calls.append({key: value for key, value in call.items() if key != "index"})
    else:
        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]


async def chat(service: Service, request: ChatRequest, user: str) -> Chat:
    """Check and prepare a request to /v1/chat/completions; `user` identifies the client for fair
    scheduling.
    """
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    choice = request.tool_choice
    turn = await prepare(
        service,
        [rendered(message, index) for index, message in enumerate(request.messages)],
        [tool.function for tool in request.tools or ()],
        f"function:{choice.function.name}" if isinstance(choice, NamedTool) else choice,
        schema_of(request.response_format),
        request.parallel_tool_calls is not False,
        request.chat_template_kwargs,
    )
    limit = service.max_tokens(request.longest, len(turn.prompt), "messages")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    sampling = service.sampling(request, logprobs)
    generation = service.generation(
        [
            Request(
                prompt=turn.prompt,
                sampling=sampling,
                stop=list(request.stop or ()),
                max_tokens=limit,
                ignore_eos=request.ignore_eos,
                grammar=turn.grammar,
                n=request.n or 1,
                user=user,
            )
        ]
    )
    return Chat(service, request, turn, generation)
