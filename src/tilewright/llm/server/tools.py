"""Tool calls: how a model writes them, and finding them in its text while it comes.

A chat template tells a model how to write a call. Hermes' and Qwen's say ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``; Llama 3's say that the reply
is nothing but ``{"name": ..., "parameters": {...}}``, several separated by semicolons.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ApiError
from .protocol import Function


@dataclass(frozen=True)
class Convention:
    """How a model writes calls: what stands before and after each, and the key of its arguments."""

    opening: str
    closing: str
    arguments: str

    def prefix(self, function: str | None) -> str:
        """How a reply that must call begins: up to the arguments if the function is known."""
        begin = f"{self.opening}\n" if self.opening else ""
        return begin if function is None else f'{begin}{{"name": {json.dumps(function)}, "{self.arguments}": '

    def schema(self, functions: Sequence[Function]) -> dict[str, Any]:
        """The JSON schema of a call of any of `functions`, without opening and closing."""
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": f.name}, self.arguments: parameters(f)},
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for f in functions
        ]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}


HERMES = Convention("<tool_call>", "</tool_call>", "arguments")
LLAMA = Convention("", "", "parameters")


_LLAMA_FORM = re.compile(r'\{"name": ?[^{}]*"parameters":')
_OTHER_FORMS = (
    "[TOOL_CALLS]",
    "<function=",
    "<arg_key>",
    "<｜tool",
    "<|tool_call>",
    "<|channel|>",
)  # Mistral, Qwen Coder, GLM, DeepSeek, ...


def convention(template: str) -> Convention:
    """The convention of a chat template; ApiError 400 where it has none, or one that is not read here."""
    if not any(form in template for form in _OTHER_FORMS):
        if HERMES.opening in template:
            return HERMES
        if "tools" in template and _LLAMA_FORM.search(template):
            return LLAMA
    known = "tools" in template
    what = "writes tool calls in a form that this server does not read" if known else "knows no tools"
    raise ApiError(400, f"this model's chat template {what}", param="tools", code="unsupported_parameter")


def parameters(function: Function) -> dict[str, Any]:
    """The JSON schema of a function's arguments."""
    return function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class CallBegins:
    """A call, of which the arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More text of the JSON of a call's arguments."""

    index: int
    text: str


Event = str | CallBegins | CallArguments
"""Text to show, or a part of a call."""

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


_ARGUMENTS_FIRST = ('{"arguments":', '{"parameters":')  # before the name, without blanks


class ToolCallParser:
    """Cuts a reply that comes in pieces into text and calls of `functions`; what looks like a call and is none stays text.

    `begun` is what `Convention.prefix` has put into the model's mouth: ``""`` for the opening, a function's name for all up to the arguments.
    """

    def __init__(self, convention: Convention, functions: Collection[str], begun: str | None = None) -> None:
        self._convention = convention
        self._functions = functions
        self.calls = 0
        """How many calls have begun."""
        self._buffer = ""
        self._state = self._text if begun is None else self._call
        self._end = _JsonEnd()
        self._said = False  # whether there was text: then a brace begins no call of Llama's
        self._first: list[Event] = []
        if begun:
            self._first = [self._begin(begun)]
            self._state = self._arguments

    def feed(self, text: str) -> list[Event]:
        """What `text` adds."""
        self._buffer += text
        return self._run(final=False)

    def finish(self, cut: bool = False) -> list[Event]:
        """What was held back, when there is no more. Of a reply that was `cut` the beginning of a call is no text: it is a call with what arguments there
        are once its function is known, and nothing before."""
        if cut:
            events = self._run(final=False)
            return events + (self._beginning() if self._state in (self._text, self._call) else [])
        return self._run(final=True)

    def _beginning(self) -> list[Event]:
        """The text held back as the beginning of a call, which nothing follows."""
        held, self._buffer = self._buffer, ""
        opening, begun = self._convention.opening, "".join(held.split())
        if self._state == self._text:
            opened = len(begun) > 1 and opening.startswith(begun)
            return [held] if held and not opened else []
        if opening and any(head.startswith(begun) or begun.startswith(head) for head in _ARGUMENTS_FIRST):
            return []
        for name in self._functions:
            head = f'{{"name":{json.dumps(name)},'
            if begun.startswith(head):
                return [self._begin(name)]
            if head.startswith(begun):
                return []
        return [opening + held]

    def _run(self, final: bool) -> list[Event]:
        events, self._first = self._first, []
        while True:
            state, length = self._state, len(self._buffer)
            events += state(final)
            if self._state == state and len(self._buffer) == length:
                return events

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _begin(self, name: str) -> CallBegins:
        self.calls += 1
        return CallBegins(self.calls - 1, f"call_{secrets.token_hex(12)}", name)

    def _text(self, final: bool) -> Iterator[Event]:
        """Text, up to where a call opens. Blanks before a call are no text."""
        opening = self._convention.opening
        if not opening:
            if not self._said and self._buffer.lstrip().startswith("{"):
                self._state = self._call
                return
            shown = len(self._buffer) if final or self._buffer.strip() else 0
        else:
            found = self._buffer.find(opening)
            if found >= 0:
                if text := self._take(found).rstrip():
                    yield text
                self._take(len(opening))
                self._state = self._call
                return
            shown = len(self._buffer)
            if not final:
                shown -= next((n for n in range(len(opening) - 1, 0, -1) if self._buffer.endswith(opening[:n])), 0)
                shown = len(self._buffer[:shown].rstrip())
        if shown:
            self._said = True
            yield self._take(shown)

    def _call(self, final: bool) -> Iterator[Event]:
        """Behind an opening: held back until it is sure to be a call."""
        if head := _HEAD.match(self._buffer):
            name = json.loads(head[1])
            if name in self._functions:
                self._take(head.end())
                yield self._begin(name)
                self._end = _JsonEnd()
                self._state = self._arguments
                return
        end = _JsonEnd().find(self._buffer)
        if end is None:
            blank = not self._buffer.strip()
            if final or (not blank and not self._buffer.lstrip().startswith("{")):
                yield from self._no_call(len(self._buffer) if final else 0)
            return
        call = _call_of(self._buffer[:end])
        if call is None or call[0] not in self._functions:
            yield from self._no_call(end)
            return
        self._take(end)
        begins = self._begin(call[0])
        yield begins
        yield CallArguments(begins.index, call[1])
        self._state = self._after

    def _no_call(self, count: int) -> Iterator[Event]:
        self._said = True
        self._state = self._text
        if text := self._convention.opening + self._take(count):
            yield text

    def _arguments(self, final: bool) -> Iterator[Event]:
        end = self._end.find(self._buffer)
        text = self._take(len(self._buffer) if end is None else end)
        if text:
            yield CallArguments(self.calls - 1, text)
        if end is not None:
            self._end = _JsonEnd()
            self._state = self._close

    def _close(self, final: bool) -> Iterator[Event]:
        """The brace that closes the call around its arguments."""
        rest = self._buffer.lstrip()
        if rest.startswith("}"):
            self._buffer = rest[1:]
        if rest:
            self._state = self._after
        yield from ()

    def _after(self, final: bool) -> Iterator[Event]:
        """Behind a call: its closing, or another one."""
        rest, closing = self._buffer.lstrip(), self._convention.closing
        if closing:
            if rest.startswith(closing):
                self._buffer = rest[len(closing) :]
            elif closing.startswith(rest):
                self._buffer = "" if final else self._buffer
                return
        else:
            self._buffer = rest.lstrip("; \n")
        if self._buffer or closing:
            self._state = self._text
        yield from ()


class _JsonEnd:
    """Finds where a JSON object ends in text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """The length of the part of `text` up to the object's end; None if it goes on."""
        for place, character in enumerate(text):
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._quoted = False
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
        return None


def _call_of(text: str) -> tuple[str, str] | None:
    """The name and the arguments' JSON of an object that is a call."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        return call["name"], arguments
    return (call["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
