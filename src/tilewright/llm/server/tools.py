"""Tool calls: the conventions in which models write them, and their incremental parser.

A chat template tells a model how to write a call. Hermes' and Qwen's use ``<tool_call>{"name": ...,
"arguments": {...}}</tool_call>``. With Llama 3's, the whole reply is ``{"name": ..., "parameters": {...}}``;
several calls are separated by semicolons.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .errors import ApiError
from .forms import Form
from .protocol import Function


@dataclass(frozen=True)
class Convention:
    """How a model writes calls: the text before and after each call, and the key of its arguments."""

    name: str
    """Names the form on the command line."""
    opening: str
    closing: str
    arguments: str
    always: ClassVar[bool] = False
    answer_opening: ClassVar[str] = ""
    thought: ClassVar[str] = "reasoning_content"

    def shown(self, special: Mapping[str, int]) -> frozenset[int]:
        """Return the special tokens whose text the parser needs to see."""
        return frozenset(special[text] for text in (self.opening, self.closing) if text in special)

    def prefix(self, function: str | None) -> str:
        """Return the beginning of a reply that must call; up to the arguments if the function is known."""
        begin = f"{self.opening}\n" if self.opening else ""
        return begin if function is None else f'{begin}{{"name": {json.dumps(function)}, "{self.arguments}": '

    def schema(self, functions: Sequence[Function]) -> dict[str, Any]:
        """Return the JSON schema of a call to any of `functions`, without opening and closing text."""
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": f.name}, self.arguments: _embedded(f)},
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for f in functions
        ]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}

    def or_call(
        self, form: Form, functions: Sequence[Function], parallel: bool, special: Collection[str]
    ) -> Form:
        """Return the form of a reply that either has `form` or calls `functions`.

        Args:
            form: of the answer.
            functions: those that may be called.
            parallel: whether there may be several calls.
            special: the texts of the tokenizer's special tokens, which grammars name without quotes.
        """

        def text(what: str) -> str:
            return what if what in special else json.dumps(what)

        call = json_rule(self.schema(functions))
        if self.opening:
            call = f'{text(self.opening)} "\\n" {call} "\\n" {text(self.closing)}'
            call += ' ("\\n" call)?' if parallel else ""
        return Form("grammar", f"start: answer | call\nanswer: {answer_rule(form)}\ncall: {call}\n")

    def rest(self, functions: Sequence[Function], named: Function | None, special: Collection[str]) -> Form:
        """Return the form of a reply after `prefix`: the arguments of `named`, or a call of any function."""
        return Form("json", self.schema(functions) if named is None else parameters(named))

    def parser(self, functions: Sequence[Function], begun: str | None, opened: str) -> ToolCallParser:
        """Make the parser of a reply; `begun` as for `ToolCallParser`."""
        return ToolCallParser(self, [f.name for f in functions], begun)


def answer_rule(form: Form) -> str:
    """Return the rule of a form in Lark's notation.

    Raises:
        ApiError: 400: it is a grammar, which cannot be a part of another one.
    """
    if form.kind == "grammar":
        message = "an answer of a given grammar or choice cannot call tools: set tool_choice to 'none'"
        raise ApiError(400, message, param="tools", code="unsupported_parameter")
    if form.kind == "regex":
        return f"/{form.value.replace('/', chr(92) + '/')}/"
    return json_rule(form.value)


def json_rule(schema: Any) -> str:
    """Return the expression of JSON of a schema in Lark's notation."""
    return f"%json {json.dumps(Form('json', schema).schema())}"


HERMES = Convention("hermes", "<tool_call>", "</tool_call>", "arguments")
LLAMA = Convention("llama", "", "", "parameters")


LLAMA_FORM = re.compile(r'\{"name": ?[^{}]*"parameters":')
"""The example of a call in chat templates of Llama 3."""


def parameters(function: Function) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments."""
    return function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


DEFINITIONS = ("$defs", "definitions")
"""The keys of the definitions that references in a JSON schema name."""


def _embedded(function: Function) -> dict[str, Any]:
    """Return the schema of a function's arguments as a part of another one: with definitions it needs an
    identifier, which makes its references begin at itself.
    """
    schema = parameters(function)
    if any(key in schema for key in DEFINITIONS):
        return {"$id": f"function:{function.name}", **schema}
    return schema


@dataclass(frozen=True)
class CallBegins:
    """The beginning of a call; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A further part of the JSON of a call's arguments."""

    index: int
    text: str


def new_call(index: int, name: str) -> CallBegins:
    """Return the beginning of a call, with a random id."""
    return CallBegins(index, f"call_{secrets.token_hex(12)}", name)


Event = str | CallBegins | CallArguments
"""Text to show, or a part of a call."""

LONGEST_HEAD = 1024
"""The number of characters within which a call's arguments begin, if they are given out as they arrive."""
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


# calls with the arguments before the name, without blanks
_ARGUMENTS_FIRST = ('{"arguments":', '{"parameters":')


class ToolCallParser:
    """Splits a streamed reply into text and calls of `functions`; text that only resembles a call stays text.

    `begun` is the part of a call that `Convention.prefix` has added to the prompt: ``""`` for the opening, a
    function's name for everything up to the arguments.
    """

    def __init__(self, convention: Convention, functions: Collection[str], begun: str | None = None) -> None:
        self._convention = convention
        self._functions = functions
        self.calls = 0
        """The number of calls begun."""
        self._buffer = ""
        self._state = self._text if begun is None else self._call
        self._end = JsonEnd()
        self._said = False  # whether there was text: a brace then begins no call in Llama's convention
        self._first: list[Event] = []
        if begun:
            self._first = [self._begin(begun)]
            self._state = self._arguments

    def feed(self, text: str) -> list[Event]:
        """Return the events that `text` adds."""
        self._buffer += text
        return self._run(final=False)

    def finish(self, cut: bool = False) -> list[Event]:
        """Return the remaining events at the end of the reply.

        If the reply was `cut` off, an incomplete call is not shown as text: it becomes a call with the
        arguments so far if its function is known, and is dropped otherwise.
        """
        if cut:
            events = self._run(final=False)
            return events + (self._beginning() if self._state in (self._text, self._call) else [])
        return self._run(final=True)

    def _beginning(self) -> list[Event]:
        """Return events for the held-back beginning of a call that was cut off."""
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
        return new_call(self.calls - 1, name)

    def _text(self, final: bool) -> Iterator[Event]:
        """Read text up to the opening of a call; blanks before a call are dropped."""
        opening = self._convention.opening
        if not opening:
            if not self._said and self._buffer.lstrip().startswith("{"):
                self._state, self._end = self._call, JsonEnd()
                return
            shown = len(self._buffer) if final or self._buffer.strip() else 0
        else:
            start = self._buffer.find(opening)
            if start >= 0:
                if text := self._take(start).rstrip():
                    yield text
                self._take(len(opening))
                self._state, self._end = self._call, JsonEnd()
                return
            shown = len(self._buffer)
            if not final:
                shown -= next(
                    (n for n in range(len(opening) - 1, 0, -1) if self._buffer.endswith(opening[:n])), 0
                )
                shown = len(self._buffer[:shown].rstrip())
        if shown:
            self._said = True
            yield self._take(shown)

    def _call(self, final: bool) -> Iterator[Event]:
        """Read after an opening; text is held back until it is certain to be a call."""
        if head := _HEAD.match(self._buffer, 0, LONGEST_HEAD):
            name = json.loads(head[1])
            if name in self._functions:
                self._take(head.end())
                yield self._begin(name)
                self._end = JsonEnd()
                self._state = self._arguments
                return
        end = self._end.within(self._buffer)
        if end is None:
            blank = not self._buffer.strip()
            if final or (not blank and not self._buffer.lstrip().startswith("{")):
                yield from self._no_call(len(self._buffer) if final else 0)
            return
        call = call_of(self._buffer[:end])
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
            self._end = JsonEnd()
            self._state = self._close

    def _close(self, final: bool) -> Iterator[Event]:
        """Read the brace that closes the call around its arguments."""
        rest = self._buffer.lstrip()
        if rest.startswith("}"):
            self._buffer = rest[1:]
        if rest:
            self._state = self._after
        yield from ()

    def _after(self, final: bool) -> Iterator[Event]:
        """Read after a call: its closing text, or another call."""
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


class JsonEnd:
    """Finds the end of a JSON object in streamed text."""

    QUOTES, OPENING, CLOSING = '"', "{[", "}]"

    def __init__(self, depth: int = 0) -> None:
        """Begin before an object, or within `depth` of them."""
        self.broken = False
        """Whether there was a line's end within quotes, which neither JSON nor Python allows."""
        self._depth = depth
        self._quote = ""
        self._escaped = False
        self._seen = 0

    def find(self, text: str) -> int | None:
        """Return the length of `text`, which continues the earlier ones, up to the object's end; None if the
        object continues.
        """
        for place, character in enumerate(text):
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == self._quote:
                    self._quote = ""
                elif character == "\n":
                    self.broken = True
            elif character in self.QUOTES:
                self._quote = character
            elif character in self.OPENING:
                self._depth += 1
            elif character in self.CLOSING:
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
        return None

    def within(self, buffer: str) -> int | None:
        """Return the length of `buffer` up to the object's end; None if the object continues.

        Only what earlier calls, with beginnings of the same buffer, have not seen is read.
        """
        seen, self._seen = self._seen, len(buffer)
        place = self.find(buffer[seen:])
        return None if place is None else seen + place


def call_of(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments' JSON of a call; None if the text is not a call."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if isinstance(call, dict) and "tool_name" in call:  # Cohere's key
        call["name"] = call["tool_name"]
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        return call["name"], arguments
    return (call["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
