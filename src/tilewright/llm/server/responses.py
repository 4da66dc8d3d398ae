"""/v1/responses: OpenAI's newer chat API, implemented with the same preparation as /v1/chat/completions."""

from __future__ import annotations

import base64
import json
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ArtifactError
from .chat import Answer, Turn, call_for_template, prepare
from .errors import ApiError
from .forms import asked_format
from .images import Attached, from_url, only_users
from .protocol import (
    Function,
    InputCall,
    InputCallOutput,
    InputMessage,
    InputText,
    ResponseNamedTool,
    ResponsesRequest,
)
from .reasoning import Thought
from .service import Generation, Service
from .streaming import TypedEvents, event
from .tools import CallBegins, Event

Item = dict[str, Any]
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The type of the text within an item."""
_IDS = {"message": "msg", "reasoning": "rs"}


@dataclass(frozen=True)
class _Stored:
    response: dict[str, Any]
    messages: list[dict[str, Any]]
    """The chat up to and including this answer, without instructions, which apply to one response only."""


class ResponseStore:
    """Keeps the last responses for `previous_response_id`, in a file or in memory.

    At most `size` bytes are kept. A response is available only to the client that made it.

    Raises:
        ArtifactError: the file cannot be written, or has another content.
    """

    def __init__(self, size: int, path: Path | None = None) -> None:
        self._size = size
        try:
            if path is not None:  # chats are private to the file's owner
                path.touch(0o600)
            self._rows = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            # keeps the file consistent if the process is killed
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.execute(
                "CREATE TABLE IF NOT EXISTS responses"
                " (number INTEGER PRIMARY KEY, id TEXT UNIQUE, owner TEXT, size INTEGER, value TEXT)"
            )
            self._left = (
                size - self._rows.execute("SELECT coalesce(sum(size), 0) FROM responses").fetchone()[0]
            )
        except (OSError, sqlite3.Error) as error:
            raise ArtifactError(f"{path}: cannot be used to store responses: {error}") from error

    def put(self, response: dict[str, Any], messages: list[dict[str, Any]], owner: str) -> None:
        value = json.dumps([response, [_with_content(message, _written) for message in messages]])
        row = (response["id"], owner, len(value), value)
        self._rows.execute("INSERT INTO responses (id, owner, size, value) VALUES (?, ?, ?, ?)", row)
        self._left -= len(value)
        while self._left < 0:
            number, size = self._rows.execute(
                "SELECT number, size FROM responses ORDER BY number LIMIT 1"
            ).fetchone()
            self._drop(number, size)

    def get(self, id: str, owner: str, param: str | None = None) -> _Stored:
        """Return a stored response.

        Raises:
            ApiError: 404: there is none, or it belongs to another client.
        """
        response, messages = json.loads(self._find(id, owner, param)[2])
        return _Stored(response, [_with_content(message, _read) for message in messages])

    def remove(self, id: str, owner: str) -> None:
        self._drop(*self._find(id, owner)[:2])

    def _find(self, id: str, owner: str, param: str | None = None) -> tuple[int, int, str]:
        query = "SELECT number, size, value FROM responses WHERE id = ? AND owner = ?"
        row: tuple[int, int, str] | None = self._rows.execute(query, (id, owner)).fetchone()
        if row is None:
            message = (
                f"response {id!r} is not stored: the server stores only the most recent responses, and none "
                "made with store: false"
            )
            raise ApiError(404, message, param=param, code="response_not_found")
        return row

    def _drop(self, number: int, size: int) -> None:
        self._rows.execute("DELETE FROM responses WHERE number = ?", (number,))
        self._left += size


class Responses(TypedEvents):
    """One checked request to /v1/responses."""

    def __init__(
        self,
        service: Service,
        request: ResponsesRequest,
        turn: Turn,
        generation: Generation,
        messages: list[dict[str, Any]],
        store: ResponseStore,
        owner: str,
    ) -> None:
        self._service = service
        self._request = request
        self._turn = turn
        self.generation = generation
        self._messages = messages
        self._store = store
        self._owner = owner
        self._items: list[Item] = []
        self._sequence = -1
        sampling, text = (
            generation.requests[0].sampling,
            request.text.format if request.text and request.text.format else None,
        )
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": request.model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "store": request.store is not False,
            "temperature": sampling.temperature,
            "text": {"format": text.model_dump(by_alias=True) if text else {"type": "text"}},
            "tool_choice": _plain(request.tool_choice) or "auto",
            "tools": [{"strict": None, **tool.model_dump(exclude_none=True)} for tool in request.tools or ()],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _result(self) -> dict[str, Any]:
        return self._response

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a failed stream."""
        self._response |= {"status": "failed", "error": {"code": "server_error", "message": error.message}}
        return event(self._event("response.failed", response=self._response), "response.failed")

    def _event(self, type: str, **content: object) -> dict[str, Any]:
        self._sequence += 1
        return {"type": type, "sequence_number": self._sequence, **content}

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        answer = Answer(self._turn)
        yield self._event("response.created", response=dict(self._response))
        yield self._event("response.in_progress", response=dict(self._response))
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                for entry in answer.read(delta):
                    for content in self._add(entry):
                        yield content
        cut = answer.finish_reason == "length"
        for content in self._close("incomplete" if cut else "completed"):
            yield content
        usage = self.generation.usage()
        self._response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }
        if self._response["store"]:
            self._store.put(self._response, self._messages + _as_messages(self._items), self._owner)
        yield self._event(f"response.{self._response['status']}", response=self._response)

    def _add(self, entry: Thought | Event) -> list[dict[str, Any]]:
        """Return the events for an addition to an answer: a new item begins, or the open one grows."""
        events: list[dict[str, Any]] = []
        open = self._items[-1] if self._items and self._items[-1]["status"] == "in_progress" else None
        if isinstance(entry, str | Thought):
            text, kind = (entry, "message") if isinstance(entry, str) else (entry.text, "reasoning")
            if open is None or open["type"] != kind:
                events += self._close("completed")
                open = {"type": kind, "id": f"{_IDS[kind]}_{secrets.token_hex(12)}"}
                summary: Item = {"summary": []}
                open |= {"role": "assistant"} if kind == "message" else summary
                open |= {"status": "in_progress", "content": []}
                events.append(self._begin(open))
                part: Item = {"type": _PARTS[kind], "text": ""}
                part |= {"annotations": [], "logprobs": []} if kind == "message" else {}
                open["content"].append(part)
                where = self._where() | {"content_index": 0}
                events.append(self._event("response.content_part.added", part=dict(part), **where))
            open["content"][0]["text"] += text
            return [*events, self._text_event("delta", delta=text)]
        if isinstance(entry, CallBegins):
            events += self._close("completed")
            item = {
                "type": "function_call",
                "id": f"fc_{secrets.token_hex(12)}",
                "call_id": entry.id,
                "name": entry.name,
            }
            return [*events, self._begin(item | {"arguments": "", "status": "in_progress"})]
        self._items[-1]["arguments"] += entry.text
        return [self._event("response.function_call_arguments.delta", delta=entry.text, **self._where())]

    def _begin(self, item: Item) -> dict[str, Any]:
        self._items.append(item)
        shown = item | ({"content": []} if item["type"] in _PARTS else {})
        return self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _text_event(self, name: str, **content: str) -> dict[str, Any]:
        """Return an event about the text of the open item."""
        kind = _PARTS[self._items[-1]["type"]]
        more: Item = {"logprobs": []} if kind == "output_text" else {}
        return self._event(f"response.{kind}.{name}", **content, **more, **self._where(), content_index=0)

    def _close(self, status: str) -> list[dict[str, Any]]:
        """Return the events that end the open item."""
        if not self._items or self._items[-1]["status"] != "in_progress":
            return []
        item = self._items[-1]
        item["status"] = status
        if item["type"] in _PARTS:
            part = item["content"][0]
            where = self._where() | {"content_index": 0}
            events = [
                self._text_event("done", text=part["text"]),
                self._event("response.content_part.done", part=part, **where),
            ]
        else:
            names = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._event("response.function_call_arguments.done", **names, **self._where())]
        return [
            *events,
            self._event("response.output_item.done", output_index=len(self._items) - 1, item=item),
        ]


async def responses(
    service: Service, request: ResponsesRequest, store: ResponseStore, owner: str
) -> Responses:
    """Check and prepare a request to /v1/responses; `owner` identifies the client, whose responses it may
    continue.
    """
    messages: list[dict[str, Any]] = []
    if request.previous_response_id is not None:
        messages += store.get(request.previous_response_id, owner, "previous_response_id").messages
    messages = messages + _messages(request)
    instructions = [{"role": "system", "content": request.instructions}] if request.instructions else []
    choice = request.tool_choice
    turn = await prepare(
        service,
        instructions + messages,
        [
            Function(name=t.name, description=t.description, parameters=t.parameters)
            for t in request.tools or ()
        ],
        f"function:{choice.name}" if isinstance(choice, ResponseNamedTool) else choice,
        asked_format(request.text.format if request.text else None),
        request.parallel_tool_calls is not False,
        param="input",
    )
    limit = service.max_tokens(request.max_output_tokens, len(turn.prompt), "max_output_tokens")
    asked = service.request(
        request, turn.prompt, limit, owner, grammar=turn.grammar, shown=turn.shown, images=turn.images
    )
    return Responses(service, request, turn, service.generation([asked]), messages, store, owner)


def _messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    """Convert the input's items to messages for a chat template; calls are attached to the assistant's
    message before them.
    """
    if isinstance(request.input, str):
        return [{"role": "user", "content": request.input}]
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(request.input):
        if isinstance(item, InputMessage):
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _content(item, f"input.{index}")})
        elif isinstance(item, InputCall):
            call = call_for_template(item.call_id, item.name, item.arguments, f"input.{index}")
            _add_call(messages, call)
        elif isinstance(item, InputCallOutput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
        # reasoning of earlier answers is not given to the model, as in its own chats
    return messages


def _as_messages(items: list[Item]) -> list[dict[str, Any]]:
    """Convert an answer's items to messages for a chat template."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item["type"] == "message":
            messages.append({"role": "assistant", "content": item["content"][0]["text"]})
        elif item["type"] == "function_call":
            _add_call(messages, call_for_template(item["call_id"], item["name"], item["arguments"], "output"))
    return messages


def _add_call(messages: list[dict[str, Any]], call: dict[str, Any]) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(item: InputMessage, where: str) -> str | list[str | Attached]:
    """Return the text of a message, or its texts and images if it has images."""
    if isinstance(item.content, str):
        return item.content
    parts = [
        part.text
        if isinstance(part, InputText)
        else from_url(part.image_url, f"{where}.content.{place}.image_url")
        for place, part in enumerate(item.content)
    ]
    return only_users(parts, item.role, where)


def _with_content(message: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a message with each part of its content changed, if it has parts."""
    content = message["content"]
    return message | {"content": [change(part) for part in content]} if isinstance(content, list) else message


def _written(part: str | Attached) -> str | dict[str, str]:
    """A part of a message as JSON holds it."""
    return part if isinstance(part, str) else {"image": base64.b64encode(part.data).decode()}


def _read(part: str | dict[str, str]) -> str | Attached:
    """The part that `_written` wrote."""
    if isinstance(part, str):
        return part
    return Attached(base64.b64decode(part["image"]), "previous_response_id")


def _text(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _plain(value: object) -> Any:
    return value.model_dump() if isinstance(value, ResponseNamedTool) else value
