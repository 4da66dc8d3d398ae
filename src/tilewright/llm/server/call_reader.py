"""`CallReader`: the base of incremental parsers of replies that contain tool calls.

A parser is a generator, `read`, that consumes the text in order and waits for more with ``yield from``, so
that it reads as a program that has the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from .protocol import Function
from .reasoning import Thought
from .tools import LONGEST_HEAD, CallArguments, CallBegins, Event, JsonEnd, call_of, new_call

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A part of a parser: yields where it waits for text, and returns a result."""

_HEAD = re.compile(
    r'\s*\{\s*(?:"(?:tool_call_id|id|type)"\s*:\s*"[^"]*"\s*,\s*)*"(?:name|tool_name)"\s*:\s*'
    r'("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""The beginning of a call as an object, up to its arguments."""


class CallReader:
    """Splits a streamed reply into text, reasoning and calls of `functions`.

    Markup that turns out to be no call of a known function is text. A subclass defines `read`.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions
        self.calls = 0
        """The number of calls begun."""
        self._buffer = ""
        self._raw = ""  # markup since a marker, which is shown if it is no call
        self._over = self._cut = False
        self._events: list[Thought | Event] = []
        self._steps = self.read()
        self._advance()

    def read(self) -> Steps[None]:
        """Read the reply."""
        raise NotImplementedError

    def feed(self, text: str) -> list[Thought | Event]:
        """Return the events that `text` adds, and those that were not returned before."""
        self._buffer += text
        self._advance()
        events, self._events = self._events, []
        return events

    def open(self, text: str) -> None:
        """Read `text`, which the prompt has begun the reply with; its events come with the next ones."""
        self._buffer += text
        self._advance()

    def finish(self, cut: bool = False) -> list[Thought | Event]:
        """Return the remaining events at the end of the reply; `cut`: it was cut off, so that incomplete
        markup is dropped.
        """
        self._over, self._cut = True, cut
        return self.feed("")

    def _advance(self) -> None:
        next(self._steps, None)

    # Parts of parsers.

    def more(self) -> Steps[bool]:
        """Wait for text; False at the end of the reply."""
        if self._over:
            return False
        yield
        return True

    def text_until(
        self, markers: Sequence[str], dropped: Sequence[str] = (), make: Callable[[str], Thought | str] = str
    ) -> Steps[str | None]:
        """Give out text up to one of `markers`, which is consumed and returned; None at the end of the reply.

        Args:
            markers: texts that end the text; blanks before them are dropped.
            dropped: texts that are left out.
            make: makes the event of a text.
        """
        while True:
            found = self._first((*markers, *dropped))
            if found is not None:
                place, marker = found
                ends = marker in markers
                self._show(self._taken(place).rstrip() if ends else self._taken(place), make)
                self._taken(len(marker))
                if ends:
                    self._raw = marker
                    return marker
                continue
            held = self._partial((*markers, *dropped))
            self._show(self._taken(len(self._buffer[: len(self._buffer) - held].rstrip())), make)
            if not (yield from self.more()):
                # the beginning of a marker in a reply that was cut off is no text
                kept = len(self._buffer) - (held if self._cut and held > 1 else 0)
                self._show(self._taken(kept), make)
                return None

    def take_until(self, markers: Sequence[str]) -> Steps[tuple[str, str | None]]:
        """Consume text up to one of `markers`; return the text and the marker, None at the end of the reply.

        A marker of one character stays in the buffer if it begins an object.
        """
        while (found := self._first(markers)) is None:
            if not (yield from self.more()):
                self._raw += self._buffer
                return self._taken(len(self._buffer)), None
        place, marker = found
        text = self._taken(place)
        self._raw += text
        if marker != "{":
            self._raw += self._taken(len(marker))
        return text, marker

    def blank(self) -> Steps[str]:
        """Consume blanks; return the next character, "" at the end of the reply."""
        while True:
            stripped = self._buffer.lstrip()
            self._raw += self._buffer[: len(self._buffer) - len(stripped)]
            self._buffer = stripped
            if stripped:
                return stripped[0]
            if not (yield from self.more()):
                return ""

    def skip(self, marker: str) -> Steps[None]:
        """Consume blanks, and a marker if it follows them."""
        yield from self.blank()
        while self._buffer != marker and marker.startswith(self._buffer) and (yield from self.more()):
            pass
        if self._buffer.startswith(marker):
            self._raw += self._taken(len(marker))

    def begin(self, name: str) -> bool:
        """Begin a call of a function; if it is unknown, the markup so far is text."""
        if name not in self.functions:
            self.give_up()
            return False
        self._raw = ""
        self.calls += 1
        self._events.append(new_call(self.calls - 1, name))
        return True

    def argue(self, text: str) -> None:
        """Give out a part of the arguments of the last call."""
        if text:
            self._events.append(CallArguments(self.calls - 1, text))

    def give_up(self) -> None:
        """Show the markup so far, which is no call, unless the reply was cut off within it."""
        if not (self._over and self._cut and not self._buffer):
            self._show(self._raw)
        self._raw = ""

    def arguments(self) -> Steps[None]:
        """Give out the JSON object that follows as the last call's arguments; ``{}`` if there is none."""
        if (yield from self.blank()) != "{":
            self.argue("" if self._over and self._cut else "{}")
            return
        end = JsonEnd()
        while True:
            place = end.find(self._buffer)
            self.argue(self._taken(len(self._buffer) if place is None else place))
            if place is not None or not (yield from self.more()):
                return

    def object_call(self) -> Steps[bool]:
        """Read a call that is an object with a name and arguments; whether it was one."""
        end = JsonEnd()
        while True:
            if head := _HEAD.match(self._buffer, 0, LONGEST_HEAD):
                self._raw += self._taken(head.end())
                if not self.begin(json.loads(head[1])):
                    return False
                yield from self.arguments()
                yield from self._rest_of_object()
                return True
            place = end.within(self._buffer)
            if place is not None:
                text = self._taken(place)
                self._raw += text
                call = call_of(text)
                if call is None:
                    self.give_up()
                    return False
                if not self.begin(call[0]):
                    return False
                self.argue(call[1])
                return True
            if not (yield from self.more()):
                self._raw += self._taken(len(self._buffer))
                self.give_up()
                return False

    def listed_calls(self) -> Steps[None]:
        """Read calls as objects, one or a list of them."""
        while True:
            sign = yield from self.blank()
            if sign == "{":
                if not (yield from self.object_call()):
                    return
            elif sign and sign in "[,":
                self._raw += self._taken(1)
            else:
                self._taken(1 if sign == "]" else 0)
                return

    def _rest_of_object(self) -> Steps[None]:
        end = JsonEnd(1)
        while (place := end.find(self._buffer)) is None:
            self._taken(len(self._buffer))
            if not (yield from self.more()):
                return
        self._taken(place)

    def _first(self, markers: Sequence[str]) -> tuple[int, str] | None:
        """The place and the text of the first marker in the buffer."""
        found = [(place, marker) for marker in markers if (place := self._buffer.find(marker)) >= 0]
        return min(found, default=None)

    def _partial(self, markers: Sequence[str]) -> int:
        """The number of characters at the end of the buffer that may begin a marker."""
        ends = (n for m in markers for n in range(len(m) - 1, 0, -1) if self._buffer.endswith(m[:n]))
        return max(ends, default=0)

    def _taken(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _show(self, text: str, make: Callable[[str], Thought | str] = str) -> None:
        if text:
            self._events.append(make(text))


def is_text(schema: Any) -> bool:
    """Whether an argument that is written as text is this text, and not JSON of it: its schema names the type
    of texts, or neither a type nor anything that has one.
    """
    if not isinstance(schema, Mapping):
        return True
    kind = schema.get("type")
    return kind == "string" or (kind is None and not _TYPED & schema.keys())


_TYPED = {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"}


def typed(function: Function, name: str, text: str) -> str:
    """Return the JSON of an argument that is written as text, by the function's schema of it: the text itself
    if `is_text`, or if the schema admits it and not what it is as JSON; otherwise the latter, if it is JSON.
    """
    schema = ((function.parameters or {}).get("properties") or {}).get(name)
    if not is_text(schema):
        try:
            value = json.loads(text)
            if _admits(schema, value) or not _admits(schema, text):
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _admits(schema: Any, value: Any) -> bool:
    """Whether the types, values and alternatives that a schema names admit a value of JSON; what else it has
    is not read.
    """
    if not isinstance(schema, Mapping):
        return True
    if isinstance(values := schema.get("enum"), list):
        return value in values
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            return any(_admits(option, value) for option in options)
    kinds = schema.get("type")
    named = kinds if isinstance(kinds, list) else [kinds]
    return kinds is None or any(kind in named for kind in _KINDS[type(value)])


_KINDS: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number", "integer"),  # 1.0 is an integer
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
"""The types of JSON schemas that values of a Python type may have."""


__all__ = ["CallBegins", "CallReader", "Steps", "is_text", "typed"]
