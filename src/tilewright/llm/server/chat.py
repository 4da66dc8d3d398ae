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
from ..engine.reasoning_budget import ReasoningBudget
from ..engine.sampling import TokenLogprob
from ..engine.stream import Delta
from ..vision.given import Images
from .call_forms import ReplyForm, form_of, required_form
from .errors import ApiError
from .forms import Form, asked_format, structured
from .images import Attached, encode, from_url, only_users, seen
from .protocol import ChatRequest, Function, Message, NamedTool, TextPart
from .reasoning import TAGS, ReasoningParser, Thought, opened, tag_of
from .service import Generation, Service
from .streaming import DONE, event
from .tools import CallArguments, CallBegins, Event

_RESERVED = {"messages", "tools", "documents", "template", "add_generation_prompt"}


@dataclass
class Turn:
    """A prepared chat: the prompt, the grammar of the answer, and how to parse tool calls."""

    prompt: list[int]
    images: Images | None = None
    grammar: Constraint | None = None
    calls: ReplyForm | None = None
    functions: tuple[Function, ...] = ()
    begun: str | None = None
    """The part of a tool call that the prompt begins, as for `ToolCallParser`."""
    opened: str = ""
    """The part of the reply that the prompt begins."""
    parallel: bool = True
    reasoning: str | None = None
    """The tag that opens the model's reasoning; None: reasoning is not parted from the answer."""
    thinking: bool = False
    """Whether the prompt has opened the reasoning."""
    plain: bool = False
    """Whether reasoning that the parser of calls finds is shown as text."""
    shown: frozenset[int] = frozenset()
    """Special tokens whose text the parsers need to see."""
    budget: ReasoningBudget | None = None
    """The most tokens of reasoning."""


class Answer:
    """Parses one answer incrementally."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._parser = turn.calls.parser(turn.functions, turn.begun, turn.opened) if turn.calls else None
        self._reasoning = ReasoningParser(turn.reasoning, turn.thinking) if turn.reasoning else None
        self.finish_reason: str | None = None

    @property
    def calls(self) -> int:
        """The number of calls begun."""
        return self._parser.calls if self._parser else 0

    def read(self, delta: Delta) -> list[Thought | Event]:
        """Return the events that a delta adds, in order."""
        parts: list[Thought | str] = [delta.text] if delta.text else []
        if self._reasoning is not None:
            parts = self._reasoning.feed(delta.text)
            if delta.finish_reason:
                parts += self._reasoning.finish()
        events: list[Thought | Event] = []
        for part in parts:
            if self._parser is None or isinstance(part, Thought):
                events.append(part)
            else:
                events += self._parser.feed(part)
        if self._parser is not None:
            if delta.finish_reason:
                events += self._parser.finish(cut=delta.finish_reason == "length")
            if self._turn.plain:
                events = [e.text if isinstance(e, Thought) else e for e in events]
            if not self._turn.parallel:
                events = [e for e in events if isinstance(e, str | Thought) or e.index == 0]
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
    form: Form | None = None,
    parallel: bool = True,
    variables: Mapping[str, Any] | None = None,
    param: str = "messages",
    *,
    open_answer: bool = True,
    continued: bool = False,
    reasoning: bool = True,
    budget: int | None = None,
) -> Turn:
    """Prepare a chat.

    Args:
        service: the model.
        messages: the chat.
        functions: functions that the model may call.
        choice: "none", "auto" (or None), "required", or "function:" and the name of the function to call.
        form: the form of the answer. With `functions` the model may call one of them instead.
        parallel: whether the answer may have several calls.
        variables: further variables of the chat template.
        param: the request's field that errors name.
        open_answer: whether the prompt begins the assistant's answer.
        continued: whether the answer continues the last message.
        reasoning: whether the model's reasoning is parted from the answer.
        budget: the most tokens of reasoning.

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
    templates = "\n".join(service.tokenizer.chat_templates.values())
    style = service.call_form or (required_form(templates) if offered else form_of(templates))
    style = style if style is not None and (offered or style.always) else None
    special = service.tokenizer.special_ids
    forced = named is not None or choice == "required"
    if continued and (open_answer or forced):
        message = "the answer cannot both continue the last message and begin " + (
            "with a call: omit tool_choice" if forced else "a new one: send 'add_generation_prompt': false"
        )
        raise ApiError(400, message, param="continue_final_message", code="invalid_value")
    shown, images = seen(service, messages)
    try:
        text = await asyncio.to_thread(
            service.tokenizer.render,
            [_thinking(message, style) for message in shown],
            tools=[{"type": "function", "function": f.model_dump(exclude_none=True)} for f in offered]
            or None,
            add_generation_prompt=open_answer,
            **(variables or {}),
        )
    except RequestError as error:
        raise ApiError(400, str(error), param=param) from None
    if continued:
        text = _continued(text, messages[-1], param)
    tag = tag_of(templates, special)
    thinking = tag is not None and opened(tag, text)
    if tag and thinking and (forced or form):
        # a grammar begins with the answer itself, so nothing can be thought before it
        text, thinking = f"{text.rstrip()}\n\n{TAGS[tag]}\n\n", False
    if tag and thinking and budget == 0:
        text, thinking = f"{text.rstrip()}\n\n{TAGS[tag]}\n\n", False
    start = ""
    if style and forced:
        start = style.prefix(named)
        text += start
        chosen = next((f for f in functions if f.name == named), None)
        form = style.rest(offered, chosen, special)
    elif style and form and offered:
        form = style.or_call(form, offered, parallel, special)
    elif style and (form or continued):
        start = style.answer_opening
        text += "" if continued else start
    prompt, placed = await encode(service, text, images, param)
    # last, because it is the most expensive step
    grammar = None
    if form is not None:
        grammar = await service.constraint(form, "tools" if forced else "response_format")
    limit = None
    if tag and budget is not None and grammar is None:
        closing = f"\n{TAGS[tag]}\n\n"
        end = await service.encoding(len(closing), lambda: service.tokenizer.encode(closing, special=False))
        limit = ReasoningBudget(budget, tag, TAGS[tag], tuple(end), thinking)
    return Turn(
        prompt,
        placed,
        grammar,
        style,
        offered,
        (named or "") if forced else None,
        start,
        parallel,
        None if grammar or not reasoning else tag,
        thinking,
        not reasoning,
        frozenset() if style is None else style.shown(special),
        limit,
    )


def _thinking(message: Mapping[str, Any], style: ReplyForm | None) -> Mapping[str, Any]:
    """Return a message with its reasoning under the name that the chat template reads."""
    if style is None or style.thought == "reasoning_content" or "reasoning_content" not in message:
        return message
    return {**message, style.thought: message["reasoning_content"]}


def _continued(text: str, message: Mapping[str, Any], param: str) -> str:
    """Return a rendered chat up to the end of its last message's text, so that the answer continues it."""
    content = message.get("content") or ""
    said = (
        content if isinstance(content, str) else "".join(p for p in content if isinstance(p, str))
    ).strip()
    end = text.rfind(said)
    if not said or end < 0:
        what = "has no text" if not said else "does not appear in the chat template's output"
        refusal = f"the last message cannot be continued: it {what}"
        raise ApiError(400, refusal, param=param, code="invalid_value")
    return text[: end + len(said)]


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
        "content": _content(message, where),
    }
    if message.tool_calls:
        result["tool_calls"] = [
            call_for_template(c.id, c.function.name, c.function.arguments, where) for c in message.tool_calls
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            result[name] = value
    return result


def _content(message: Message, where: str) -> str | list[str | Attached]:
    """Return the text of a message, or its texts and images if it has images."""
    if not isinstance(message.content, list):
        return message.text or ""
    parts = [
        part.text
        if isinstance(part, TextPart)
        else from_url(part.image_url.url, f"{where}.content.{place}.image_url.url")
        for place, part in enumerate(message.content)
    ]
    return only_users(parts, message.role, where)


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
            "model": request.model,
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
                for part in ("content", "reasoning_content"):
                    if part in delta:
                        message[part] = (message.get(part) or "") + delta[part]
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


def _delta(entry: Thought | Event) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"content": entry}
    if isinstance(entry, Thought):
        return {"reasoning_content": entry.text}
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
    choice, form = request.tool_choice, asked_format(request.response_format)
    other = structured(request)
    if form and other:
        message = "response_format and structured_outputs both give the answer's form: send one of them"
        raise ApiError(400, message, param="response_format", code="invalid_value")
    turn = await prepare(
        service,
        [rendered(message, index) for index, message in enumerate(request.messages)],
        [tool.function for tool in request.tools or ()],
        f"function:{choice.function.name}" if isinstance(choice, NamedTool) else choice,
        form or other,
        request.parallel_tool_calls is not False,
        request.chat_template_kwargs,
        open_answer=not request.continue_final_message
        if request.add_generation_prompt is None
        else request.add_generation_prompt,
        continued=request.continue_final_message,
        reasoning=request.reasoning_format != "none",
        budget=request.max_reasoning_tokens,
    )
    limit = service.max_tokens(request.longest, len(turn.prompt), "messages")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    asked = service.request(
        request,
        turn.prompt,
        limit,
        user,
        logprobs=logprobs,
        grammar=turn.grammar,
        shown=turn.shown,
        images=turn.images,
        reasoning=turn.budget,
    )
    return Chat(service, request, turn, service.generation([asked]))
