"""Calls are found in a model's text however it is divided, and all other text stays text."""

from __future__ import annotations

import json
import random

import pytest

from tilewright.llm.server.call_forms import required_form
from tilewright.llm.server.errors import ApiError
from tilewright.llm.server.protocol import Function
from tilewright.llm.server.tools import (
    HERMES,
    LLAMA,
    CallArguments,
    CallBegins,
    Convention,
    ToolCallParser,
)

KNOWN = ("add", "say")


def parse(
    style: Convention, pieces: list[str], begun: str | None = None, cut: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls of a reply that arrives in `pieces`. `cut` tells that the reply ended
    early.
    """
    parser = ToolCallParser(style, KNOWN, begun)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish(cut)
    text, calls = "", []
    for event in events:
        if isinstance(event, str):
            text += event
        elif isinstance(event, CallBegins):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        else:
            assert isinstance(event, CallArguments) and event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return text, calls


ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": {"c": "}<\\"/tool_call>"}}}\n</tool_call>'
REPLIES = [
    (HERMES, "Hello, <tool> me", "Hello, <tool> me", []),
    (HERMES, "two blanks  \n", "two blanks  \n", []),
    (HERMES, ONE, "", [("add", '{"a": 1, "b": {"c": "}<\\"/tool_call>"}}')]),
    (
        HERMES,
        f"I will.\n\n{ONE}\n{ONE}",
        "I will.",
        [("add", '{"a": 1, "b": {"c": "}<\\"/tool_call>"}}')] * 2,
    ),
    (HERMES, '<tool_call>{"arguments": {"x": 2}, "name": "say"}</tool_call>', "", [("say", '{"x": 2}')]),
    (HERMES, '<tool_call>{"name": "say"}</tool_call>', "", [("say", "{}")]),
    (
        HERMES,
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>.',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>.',
        [],
    ),
    (HERMES, "<tool_call>not JSON</tool_call>", "<tool_call>not JSON</tool_call>", []),
    (HERMES, '<tool_call>{"name": "add", "argu', '<tool_call>{"name": "add", "argu', []),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1', "", [("add", '{"a": 1')]),
    (HERMES, ONE[:-3], "", [("add", '{"a": 1, "b": {"c": "}<\\"/tool_call>"}}')]),
    (LLAMA, '{"name": "add", "parameters": {"a": 1}}', "", [("add", '{"a": 1}')]),
    (
        LLAMA,
        ' {"name": "add", "parameters": {}}; {"name": "say", "parameters": {"b": "é"}}',
        "",
        [("add", "{}"), ("say", '{"b": "é"}')],
    ),
    (LLAMA, '{"name": "Bob", "age": 3} is JSON', '{"name": "Bob", "age": 3} is JSON', []),
    (LLAMA, 'See {"name": "add", "parameters": {}}', 'See {"name": "add", "parameters": {}}', []),
]


@pytest.mark.parametrize(("style", "reply", "text", "calls"), REPLIES)
def test_however_the_reply_is_cut(
    style: Convention, reply: str, text: str, calls: list[tuple[str, str]]
) -> None:
    draw = random.Random(1)
    cuts = [[reply], list(reply)]
    for _ in range(20):
        places = sorted(draw.sample(range(len(reply)), 4))
        cuts.append([reply[a:b] for a, b in zip([0, *places], [*places, len(reply)], strict=True)])
    for pieces in cuts:
        assert parse(style, pieces) == (text, calls), pieces


@pytest.mark.parametrize("style", [HERMES, LLAMA])
def test_a_reply_that_was_begun_for_the_model(style: Convention) -> None:
    for name in (None, "add"):
        whole = f'{style.prefix("add")}{{"a": 1}}}}{style.closing}'
        rest = whole.removeprefix(style.prefix(name))
        assert parse(style, list(rest), begun=name or "") == ("", [("add", '{"a": 1}')])
    assert parse(style, ['{"a": 1}'], begun="add") == ("", [("add", '{"a": 1}')]), (
        "with a grammar, the reply ends after the arguments"
    )


CUT = [
    (HERMES, "I will.\n<tool_call>", "I will.", []),
    (HERMES, "I will.\n<tool_call>\n", "I will.", []),
    (HERMES, "I will. <tool_c", "I will.", []),
    (HERMES, 'I will. <tool_call>\n{"na', "I will.", []),
    (HERMES, '<tool_call>\n{"name": "ad', "", []),
    (HERMES, '<tool_call>\n{"name": "add"', "", []),
    (HERMES, '<tool_call>\n{"name": "add", "argu', "", [("add", "")]),
    (HERMES, '<tool_call>\n{"name": "add", "arguments": ', "", [("add", "")]),
    (HERMES, '<tool_call>\n{"name": "add", "arguments": {"a": 1', "", [("add", '{"a": 1')]),
    (HERMES, ONE[:-12], "", [("add", '{"a": 1, "b": {"c": "}<\\"/tool_call>"}}')]),
    (HERMES, f"{ONE}\n<tool_call>", "", [("add", '{"a": 1, "b": {"c": "}<\\"/tool_call>"}}')]),
    (HERMES, '<tool_call>{"arguments": {"name": "add", "x', "", []),
    (HERMES, '<tool_call>{"name": "rm", "arg', '<tool_call>{"name": "rm", "arg', []),
    (HERMES, "a <", "a <", []),
    (HERMES, "a  ", "a  ", []),
    (LLAMA, '{"name": "ad', "", []),
    (LLAMA, '{"name": "add", "param', "", [("add", "")]),
    (LLAMA, '{"name": "add", "parameters": {}}; {"na', "", [("add", "{}")]),
    (LLAMA, '{"answer": [1, 2', '{"answer": [1, 2', []),
    (LLAMA, '{"name": "Bob", "a', '{"name": "Bob", "a', []),
]  # fmt: skip


@pytest.mark.parametrize(("style", "reply", "text", "calls"), CUT)
def test_a_reply_that_is_cut_in_a_call(
    style: Convention, reply: str, text: str, calls: list[tuple[str, str]]
) -> None:
    """In a reply that is cut off, no markup is shown as text, and the incomplete arguments are returned, as
    OpenAI does.
    """
    for pieces in ([reply], list(reply)):
        assert parse(style, pieces, cut=True) == (text, calls)


def test_conventions_of_templates() -> None:
    assert required_form("... <tool_call></tool_call> XML tags") is HERMES
    assert (
        required_form('{%- if tools %} Respond in the format {"name": function name, "parameters": dict}')
        is LLAMA
    )
    with pytest.raises(ApiError, match="does not support tools"):
        required_form("{{ messages }}")
    for other in ("<tool_call><function=name>", "<|tool_call>", "{{ tools | tojson }}"):
        with pytest.raises(ApiError, match="does not support"):
            required_form("{% if tools %}" + other)


def test_schema_of_calls() -> None:
    add = Function(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
    schema = LLAMA.schema([add, Function(name="say")])
    assert [s["properties"]["name"] for s in schema["anyOf"]] == [{"const": "add"}, {"const": "say"}]
    assert schema["anyOf"][0]["properties"]["parameters"] == add.parameters
    assert json.loads(HERMES.prefix("add").removeprefix("<tool_call>\n") + "{}}") == {
        "name": "add",
        "arguments": {},
    }
