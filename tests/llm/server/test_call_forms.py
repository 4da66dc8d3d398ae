"""Calls in the forms of the families are found however the reply is divided, are written as templates want
them, and are forced by grammars.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tokenizers import AddedToken

from tilewright.llm.engine.grammar import Grammars
from tilewright.llm.server.call_forms import (
    CODER,
    COHERE,
    DEEPSEEK,
    DEEPSEEK_PLAIN,
    FORMS,
    GLM,
    GLM_LINE,
    HARMONY,
    MISTRAL,
    MISTRAL_ARGS,
    PYTHON,
    CallForm,
    ReplyForm,
    form_of,
)
from tilewright.llm.server.call_reader import typed
from tilewright.llm.server.errors import ApiError
from tilewright.llm.server.forms import Form
from tilewright.llm.server.protocol import Function
from tilewright.llm.server.reasoning import Thought
from tilewright.llm.server.tools import HERMES, LLAMA, CallArguments, CallBegins, JsonEnd
from tilewright.llm.tokenizer import Tokenizer

from .conftest import Running
from .echo import TEMPLATE, EchoRunner, tokenizer
from .test_api import ask

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "array"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ADD = Function(name="add", parameters=SCHEMA)
SAY = Function(name="say")
KNOWN = (ADD, SAY)
Calls = list[tuple[str, Any]]


def parse(
    form: CallForm, pieces: list[str], opened: str = "", cut: bool = False
) -> tuple[str, str, Calls, list[str]]:
    """The reasoning, the text, the calls with their parsed arguments, and these arguments' texts."""
    parser = form.parser(KNOWN, None, opened)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish(cut)
    thought, text, names, values = "", "", [], []
    for event in events:
        if isinstance(event, Thought):
            thought += event.text
        elif isinstance(event, str):
            text += event
        elif isinstance(event, CallBegins):
            assert event.index == len(names)
            names.append(event.name)
            values.append("")
        else:
            assert isinstance(event, CallArguments) and event.index == len(names) - 1
            values[-1] += event.text
    whole = [] if cut else [(name, json.loads(value)) for name, value in zip(names, values, strict=True)]
    return thought, text, whole, values


def divided(reply: str) -> list[list[str]]:
    draw = random.Random(1)
    cuts = [[reply], list(reply)]
    for _ in range(20):
        places = sorted(draw.sample(range(len(reply)), min(4, len(reply))))
        cuts.append([reply[a:b] for a, b in zip([0, *places], [*places, len(reply)], strict=True)])
    return cuts


A = {"a": 1, "b": 'x "<y>"'}
J = json.dumps(A)
DS, DE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def deepseek(name: str, arguments: str) -> str:
    inner = f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
    return f"<｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜>"


def deepseek_plain(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


GLM_CALL = (
    "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
    '<arg_value>x "<y>"</arg_value>\n</tool_call>'
)
CODER_CALL = (
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n"
    'x "<y>"\n</parameter>\n</function>\n</tool_call>'
)
THINKS = "<|channel|>analysis<|message|>I must add.<|end|><|start|>assistant"
HARMONY_CALL = f"<|channel|>commentary to=functions.add <|constrain|>json<|message|>{J}"
BOTH: Calls = [("add", A), ("say", {})]

REPLIES: list[tuple[CallForm, str, str, str, Calls]] = [
    (MISTRAL, "Hello, [TOOL me", "", "Hello, [TOOL me", []),
    (MISTRAL, f'[TOOL_CALLS] [{{"name": "add", "arguments": {J}, "id": "abc123xyz"}}]', "", "", BOTH[:1]),
    (
        MISTRAL,
        f'I will.\n[TOOL_CALLS][{{"name": "add", "arguments": {J}}}, {{"name": "say", "arguments": {{}}}}]',
        "",
        "I will.",
        BOTH,
    ),
    (MISTRAL, f'[TOOL_CALLS][{{"arguments": {J}, "name": "add"}}]', "", "", BOTH[:1]),
    (MISTRAL, "[TOOL_CALLS] nothing", "", "[TOOL_CALLS] nothing", []),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "rm", "arguments": {"x": 1}}]',
        "",
        '[TOOL_CALLS][{"name": "rm", "arguments": {"x": 1}}]',
        [],
    ),
    (MISTRAL_ARGS, f"[TOOL_CALLS]add[ARGS]{J}[TOOL_CALLS]say[ARGS]{{}}", "", "", BOTH),
    (MISTRAL_ARGS, f"Yes.[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{J}", "", "Yes.", BOTH[:1]),
    (DEEPSEEK, f"Yes.\n\n{DS}{deepseek('add', J)}\n{deepseek('say', '{}')}{DE}", "", "Yes.", BOTH),
    (DEEPSEEK, "no call <｜tool", "", "no call <｜tool", []),
    (DEEPSEEK_PLAIN, f"{DS}{deepseek_plain('add', J)}{deepseek_plain('say', '{}')}{DE}", "", "", BOTH),
    (GLM, f"I will.\n{GLM_CALL}\n<tool_call>say\n</tool_call>", "", "I will.", BOTH),
    (GLM, "<tool_call>rm\n</tool_call>", "", "<tool_call>rm\n</tool_call>", []),
    (
        GLM,
        "<tool_call>add<arg_key>c</arg_key><arg_value>[1, 2]</arg_value></tool_call>",
        "",
        "",
        [("add", {"c": [1, 2]})],
    ),
    (
        CODER,
        f"I will.\n{CODER_CALL}\n<tool_call>\n<function=say>\n</function>\n</tool_call>",
        "",
        "I will.",
        BOTH,
    ),
    (CODER, CODER_CALL[12:].replace("\n</tool_call>", ""), "", "", BOTH[:1]),
    (CODER, "a < b <function", "", "a < b <function", []),
    (PYTHON, "[add(a=1, b='x \"<y>\"'), say()]", "", "", BOTH),
    (PYTHON, '<|python_start|>[add(a=1, b="x \\"<y>\\"")]<|python_end|>', "", "", BOTH[:1]),
    (
        PYTHON,
        '[add(a=-2, b="(", c=[{"d": true}, None, 1.5])]',
        "",
        "",
        [("add", {"a": -2, "b": "(", "c": [{"d": True}, None, 1.5]})],
    ),
    (PYTHON, "[1, 2] is a list", "", "[1, 2] is a list", []),
    (PYTHON, "[rm(x=1)] or not", "", "[rm(x=1)] or not", []),
    (PYTHON, "Hello.", "", "Hello.", []),
    (
        COHERE,
        "<|START_THINKING|>I must add.<|END_THINKING|><|START_ACTION|>[\n"
        f'    {{"tool_call_id": "0", "tool_name": "add", "parameters": {J}}},\n'
        '    {"tool_call_id": "1", "tool_name": "say", "parameters": {}}\n]<|END_ACTION|>',
        "I must add.",
        "",
        BOTH,
    ),
    (COHERE, "<|START_RESPONSE|>Hello <b>.<|END_RESPONSE|>", "", "Hello <b>.", []),
    (HARMONY, f"{THINKS}{HARMONY_CALL}", "I must add.", "", BOTH[:1]),
    (HARMONY, f"{THINKS}<|channel|>final<|message|>Hello <b>.", "I must add.", "Hello <b>.", []),
    (
        HARMONY,
        f"{THINKS}<|channel|>commentary<|message|>First. <|end|><|start|>assistant{HARMONY_CALL}<|call|>",
        "I must add.",
        "First.",
        BOTH[:1],
    ),
    (
        HARMONY,
        f"<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{J}",
        "",
        "",
        BOTH[:1],
    ),
    (HARMONY, "Hello.", "", "Hello.", []),
    (GLM_LINE, f"add\n{J}", "", "", BOTH[:1]),
    (GLM_LINE, "address\nof it", "", "address\nof it", []),
]


@pytest.mark.parametrize(("form", "reply", "thought", "text", "calls"), REPLIES)
def test_however_the_reply_is_divided(
    form: CallForm, reply: str, thought: str, text: str, calls: Calls
) -> None:
    for pieces in divided(reply):
        assert parse(form, pieces)[:3] == (thought, text, calls), pieces


LONG = '{"b": "' + "word " * 400 + '", "a": 1}'


@pytest.mark.parametrize(
    ("form", "reply"),
    [
        (PYTHON, f"[add(b='{'word ' * 400}', a=1)]"),
        (MISTRAL, f'[TOOL_CALLS][{{"arguments": {LONG}, "name": "add"}}]'),
        (COHERE, f'<|START_ACTION|>[{{"parameters": {LONG}, "tool_name": "add"}}]<|END_ACTION|>'),
        (HERMES, f'<tool_call>{{"arguments": {LONG}, "name": "add"}}</tool_call>'),
        (LLAMA, f'{{"parameters": {LONG}, "name": "add"}}'),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_call_is_scanned_once(form: ReplyForm, reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is proportional to the reply's length, however it is divided."""
    scanned = 0
    find = JsonEnd.find

    def counted(self: JsonEnd, text: str) -> int | None:
        nonlocal scanned
        scanned += len(text)
        return find(self, text)

    monkeypatch.setattr(JsonEnd, "find", counted)
    parser = form.parser(KNOWN, None, "")
    events = [event for piece in reply for event in parser.feed(piece)] + parser.finish()
    assert parser.calls == 1 and isinstance(events[0], CallBegins)
    values = "".join(event.text for event in events if isinstance(event, CallArguments))
    assert json.loads(values) == json.loads(LONG)
    assert 0 < scanned <= len(reply)


@pytest.mark.parametrize(
    "prose", ["[add(it's", "[add(a='it\n", "[rm(x='it", "[add(a=1), rm(x='it", "[add(see"]
)
def test_prose_that_resembles_a_call_is_shown_as_it_arrives(prose: str) -> None:
    parser = PYTHON.parser(KNOWN, None, "")
    for character in prose:
        parser.feed(character)
    shown = "".join(e for e in parser.feed(" and so on") if isinstance(e, str))
    assert shown.endswith(" and so on")


def test_texts_of_several_lines_in_python() -> None:
    reply = "[add(a=1, b='''one\ntwo''')]"
    for pieces in divided(reply):
        assert parse(PYTHON, pieces)[1:3] == ("", [("add", {"a": 1, "b": "one\ntwo"})])


CUT: list[tuple[CallForm, str, str, list[str]]] = [
    (MISTRAL, "I will. [TOOL_CA", "I will. ", []),
    (MISTRAL, 'I will. [TOOL_CALLS] [{"na', "I will.", []),
    (MISTRAL, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1', "", ['{"a": 1']),
    (DEEPSEEK, f"{DS}<｜tool▁call▁begin｜>function<｜tool▁sep｜>ad", "", []),
    (DEEPSEEK, f'{DS}<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{{"a"', "", ['{"a"']),
    (GLM, "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1", "", ["{"]),
    (CODER, "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<para", "", ['{"a": 1']),
    (PYTHON, '[add(a=1, b="', "", []),
    (COHERE, '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "add", "para', "", []),
    (HARMONY, "<|channel|>commentary to=functions.add <|con", "", []),
    (HARMONY, HARMONY_CALL[:-4], "", [J[:-4]]),
    (HARMONY, "<|channel|>final<|message|>Hello <|", "Hello ", []),
    (GLM_LINE, "ad", "", []),
]


@pytest.mark.parametrize(("form", "reply", "text", "values"), CUT)
def test_a_reply_that_is_cut_off(form: CallForm, reply: str, text: str, values: list[str]) -> None:
    """Markup is not shown as text, and the incomplete arguments are returned."""
    for pieces in ([reply], list(reply)):
        thought, said, _, found = parse(form, pieces, cut=True)
        assert (thought, said.rstrip(), found) == ("", text.rstrip(), values), pieces


NEW = [form for form, _ in FORMS if isinstance(form, CallForm)]


def with_special(names: Iterable[str], template: str | None = None) -> Tokenizer:
    words = tokenizer(template)
    words.backend.add_special_tokens([AddedToken(name) for name in names])
    return Tokenizer(words.backend, eos=words.eos, chat_templates=words.chat_templates)


def accepts(form: Form, text: str, special: dict[str, int]) -> bool:
    """Whether a grammar accepts exactly a text, whose special tokens are single tokens."""
    words = with_special(special)
    assert {name: words.special_ids[name] for name in special} == special
    matcher = form.constraint(Grammars(words))
    tokens = words.encode(text, special=False)
    if matcher.allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.accept(token)
    return matcher.complete or bool(matcher.mask()[256 // 8] & 1)


@pytest.mark.parametrize("form", NEW, ids=lambda form: form.name)
def test_a_call_that_is_forced(form: CallForm) -> None:
    """The prompt begins a call, and the grammar allows what the parser takes for its arguments."""
    markers = [m for m in ("<|channel|>", "<|message|>", "<|constrain|>", "[TOOL_CALLS]", "[ARGS]")]
    special = {name: 259 + i for i, name in enumerate(markers)}
    values = json.dumps({"a": 1, "b": "x"})
    if form is GLM:
        values = (
            "<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>x</arg_value>\n"
        )
    elif form is CODER:
        values = "<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n</parameter>\n"
    elif form is PYTHON:
        values = 'a=1, b="x"'
    wanted = [("add", {"a": 1, "b": "x"})]
    rest = values + (form.closing if form.rule else "")
    named = form.rest(KNOWN, ADD, special)
    assert accepts(named, rest, special)
    assert not accepts(named, rest.replace("1", "y"), special)
    assert parse(form, [rest], form.prefix("add"))[2] == wanted
    head = form.prefix("add").removeprefix(form.prefix(None))
    any_of = form.rest(KNOWN, None, special)
    whole = head + values + form.closing
    assert accepts(any_of, whole, special)
    assert not accepts(any_of, whole.replace("add", "rm"), special)
    assert parse(form, [whole], form.prefix(None))[2] == wanted
    either = form.or_call(Form("json", {"type": "integer"}), KNOWN, True, special)
    assert accepts(either, form.prefix(None) + whole, special)
    assert accepts(either, f"{form.answer_opening}17", special)
    assert parse(form, ["17"], form.answer_opening)[1] == "17"


@pytest.mark.parametrize("form", [GLM, CODER], ids=lambda form: form.name)
def test_a_forced_text_may_have_tags(form: CallForm) -> None:
    between, end = (
        ("</arg_key>\n<arg_value>", "</arg_value>\n") if form is GLM else (">\n", "\n</parameter>\n")
    )
    begin = "<arg_key>" if form is GLM else "<parameter="
    reply = f"{begin}a{between}1{end}{begin}b{between}<i>x</i> </para{end}{form.closing}"
    assert accepts(form.rest(KNOWN, ADD, {}), reply, {})
    assert parse(form, [reply], form.prefix("add"))[2] == [("add", {"a": 1, "b": "<i>x</i> </para"})]


POINT = {"$ref": "#/$defs/Point"}
DEFINED = {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "many", "many"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"type": ["string", "null"]}, "NaN", "NaN"),
        ({"type": ["string", "integer"]}, "5", 5),
        (POINT, '{"x": 1}', {"x": 1}),
        (POINT, "NaN", "NaN"),
        ({"allOf": [POINT]}, '{"x": 1}', {"x": 1}),
        ({"oneOf": [POINT, {"type": "string"}]}, "x", "x"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": True}, "true", True),
        ({"anyOf": 5, "enum": 5, "type": 5}, "5", 5),
        ({"type": "string"}, "5", "5"),
        ({"description": "anything"}, "5", "5"),
        (True, "5", "5"),
    ],
)
def test_values_have_the_types_of_their_schemas(schema: Any, text: str, value: Any) -> None:
    """Alternatives, references and enumerations count, as Pydantic writes them, not a plain type alone."""
    function = Function(name="f", parameters={"properties": {"a": schema}, "$defs": DEFINED})
    assert json.loads(typed(function, "a", text)) == value
    assert json.loads(typed(function, "other", text)) == text


def argument(form: CallForm, text: str) -> str:
    """The text of an argument `a`, as a forced call of one of the tagged forms has it."""
    if form is GLM:
        return f"<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n"
    return f"<parameter=a>\n{text}\n</parameter>\n" if form is CODER else f"a={text}"


@pytest.mark.parametrize("form", [GLM, CODER, PYTHON], ids=lambda form: form.name)
def test_a_forced_optional_integer(form: CallForm) -> None:
    optional = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    f = Function(name="f", parameters={"properties": {"a": optional}, "required": ["a"]})
    rest = form.rest([f], f, {})
    for text, taken in (("5", True), ("null", True), ("many", False)):
        assert accepts(rest, argument(form, text) + form.closing, {}) == taken


@pytest.mark.parametrize("form", [GLM, CODER, PYTHON], ids=lambda form: form.name)
@pytest.mark.parametrize("key", ["$defs", "definitions"])
def test_a_forced_argument_with_references(form: CallForm, key: str) -> None:
    """The grammar of one argument finds the definitions of the whole schema."""
    schema = {"properties": {"a": {"$ref": f"#/{key}/Point"}}, "required": ["a"], key: DEFINED}
    f = Function(name="f", parameters=schema)
    rest = form.rest([f], f, {})
    for text, taken in (('{"x": 1}', True), ('{"x": "y"}', False)):
        assert accepts(rest, argument(form, text) + form.closing, {}) == taken
    many = {**schema, "properties": {f"a{i}": {"$ref": f"#/{key}/Point"} for i in range(50)}}
    many[key] = {**DEFINED, "Long": {"description": "x" * 100_000}}
    with pytest.raises(ApiError, match="the parameters of 'f' cannot be forced: their definitions"):
        form.rest([f], Function(name="f", parameters=many), {})


def test_calls_of_functions_with_references() -> None:
    """Each function's references name its own definitions within the schema of all calls."""
    text = {"Point": {"type": "string"}}
    functions = [
        Function(name=name, parameters={"type": "object", "properties": {"a": POINT}, "$defs": defined})
        for name, defined in (("f", DEFINED), ("g", text))
    ]
    rest = HERMES.rest(functions, None, ())
    for name, value, taken in (("f", '{"x": 1}', True), ("f", '"t"', False), ("g", '"t"', True)):
        assert accepts(rest, f'{{"name": "{name}", "arguments": {{"a": {value}}}}}', {}) == taken


@pytest.mark.parametrize("form", [GLM, CODER], ids=lambda form: form.name)
def test_a_forced_choice(form: CallForm) -> None:
    """Texts between tags, which follow no JSON, are those that the schema enumerates."""
    for named in ({"enum": ["red", "grün", "5"]}, {"const": "grün"}):
        schema = {"properties": {"a": {"type": "string", **named}}, "required": ["a"]}
        f = Function(name="f", parameters=schema)
        rest = form.rest([f], f, {})
        for text, taken in (("grün", True), ("5", "enum" in named), ("blue", False), ('"grün"', False)):
            assert accepts(rest, argument(form, text) + form.closing, {}) == taken


MARKS = {
    "mistral": "[TOOL_CALLS] [", "mistral-args": "[TOOL_CALLS]{{ name }}[ARGS]",
    "deepseek": f"{DS} function ```json", "deepseek-v3.1": DS, "glm": "<tool_call> <arg_key>",
    "qwen-coder": "<tool_call> <function= <parameter=", "python": "[func_name1(params_name1=1)]",
    "cohere": "<|START_ACTION|>", "harmony": "<|channel|>analysis<|message|>", "hermes": "<tool_call>",
    "glm-4": "{{ tools }} <|observation|>", "llama": '{% if tools %}{"name": x, "parameters": y}',
}  # fmt: skip


def test_forms_follow_from_templates() -> None:
    assert {form.name for form, _ in FORMS} == MARKS.keys()
    for name, template in MARKS.items():
        found = form_of(template)
        assert found is not None and found.name == name


CHOOSE: Any = {
    "type": "function",
    "function": {
        "name": "choose",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": ["x", "y"]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


class SpecialEcho(EchoRunner):
    """The echo model, whose tokenizer has more special tokens."""

    def __init__(self, words: Any) -> None:
        super().__init__()
        self._tokenizer = words
        self.vocabulary = words.vocabulary


@pytest.fixture
def harmony(start: Callable[..., Running]) -> Running:
    markers = ("<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>")
    words = with_special(markers, TEMPLATE + "{# <|channel|> <|message|> #}")
    return start(runner=SpecialEcho(words), words=words)


def test_harmony_over_http(harmony: Running) -> None:
    """Channels arrive as reasoning, calls and content, though their markers are special tokens."""
    client = harmony.client()
    answer = client.chat.completions.create(
        model="echo", messages=ask(f"{THINKS}<|channel|>final<|message|>Hello.")
    ).choices[0]
    assert (answer.message.content, answer.message.model_extra) == (
        "Hello.",
        {"reasoning_content": "I must add."},
    )
    tools: Any = [{"type": "function", "function": ADD.model_dump(exclude_none=True)}]
    asked = ask(f"{THINKS}{HARMONY_CALL}")
    answer = client.chat.completions.create(model="echo", messages=asked, tools=tools).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls or ()
    assert json.loads(call.function.arguments) == A  # type: ignore[union-attr]
    chunks = list(client.chat.completions.create(model="echo", messages=asked, tools=tools, stream=True))
    parts = [c.function.arguments for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
    assert len(parts) > 3 and json.loads("".join(part or "" for part in parts)) == A
    forced = client.chat.completions.create(
        model="echo", messages=ask("x"), tools=[CHOOSE], tool_choice="required", max_tokens=200
    ).choices[0]
    (call,) = forced.message.tool_calls or ()
    assert json.loads(call.function.arguments)["a"] in ("x", "y")  # type: ignore[union-attr]
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    answer = client.chat.completions.create(
        model="echo", messages=ask("17"), response_format=form, max_tokens=20
    ).choices[0]
    assert int(answer.message.content or "") >= 0
