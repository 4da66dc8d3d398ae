"""The forms in which models of further families write tool calls, each a row of `FORMS`.

Sources: the chat templates and documentation of Mistral AI, DeepSeek, Z.ai (GLM), Qwen (Coder), Meta
(Llama 4), Cohere, and OpenAI (the harmony format of gpt-oss). `tools.py` has the forms of Hermes and Llama 3.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .call_reader import CallReader, Steps, is_text, typed
from .errors import ApiError
from .forms import Form, one_of
from .protocol import Function
from .reasoning import Thought
from .tools import (
    DEFINITIONS,
    HERMES,
    LLAMA,
    LLAMA_FORM,
    Convention,
    JsonEnd,
    answer_rule,
    json_rule,
    parameters,
)


@dataclass(frozen=True)
class CallForm:
    """A form of replies with calls."""

    name: str
    """Names the form on the command line."""
    reader: type[CallReader]
    """Parses replies."""
    opening: str
    """The text of a reply that begins the calls."""
    head: str
    """The text between `opening` and a call's arguments, with ``NAME`` for the function's name."""
    closing: str = ""
    """The text after the arguments."""
    rule: Callable[[Function], str] | None = None
    """Makes the rule of the arguments in Lark's notation; None: they are JSON."""
    rules: str = ""
    """Further rules that `rule` refers to."""
    markers: tuple[str, ...] = ()
    """Further texts that the reader needs to see, even if they are special tokens."""
    always: bool = False
    """Whether replies have this form also without tools."""
    answer_opening: str = ""
    """The text of a reply that begins an answer."""
    thought: str = "reasoning_content"
    """The name of a message's reasoning in the chat template."""

    def shown(self, special: Mapping[str, int]) -> frozenset[int]:
        """Return the special tokens whose text the reader needs to see."""
        texts = "".join((self.opening, self.head, self.closing, self.answer_opening, *self.markers))
        return frozenset(token for text, token in special.items() if text in texts)

    def prefix(self, function: str | None) -> str:
        """Return the beginning of a reply that must call; up to the arguments if the function is known."""
        return self.opening + ("" if function is None else self.head.replace("NAME", function))

    def rest(self, functions: Sequence[Function], named: Function | None, special: Mapping[str, int]) -> Form:
        """Return the form of a reply after `prefix`: the arguments of `named`, or a call of any function."""
        if named is not None:
            if self.rule is None:
                return Form("json", parameters(named))
            return Form(
                "grammar", f"start: {self._arguments(named)} {lark(self.closing, special)}\n{self.rules}"
            )
        return Form("grammar", f"start: {self._calls(functions, special)}\n{self.rules}")

    def or_call(
        self, form: Form, functions: Sequence[Function], parallel: bool, special: Mapping[str, int]
    ) -> Form:
        """Return the form of a reply that either has `form` or calls one of `functions`."""
        answer = f"{lark(self.answer_opening, special)} {answer_rule(form)}"
        call = f"{lark(self.opening, special)} ({self._calls(functions, special)})"
        return Form("grammar", f"start: answer | call\nanswer: {answer}\ncall: {call}\n{self.rules}")

    def parser(self, functions: Sequence[Function], begun: str | None, opened: str) -> CallReader:
        """Make the parser of a reply whose beginning `opened` the prompt has written."""
        parser = self.reader({f.name: f for f in functions})
        parser.open(opened)
        return parser

    def _calls(self, functions: Sequence[Function], special: Mapping[str, int]) -> str:
        end = lark(self.closing, special)
        heads = [lark(self.head.replace("NAME", f.name), special) for f in functions]
        return " | ".join(
            f"{head} {self._arguments(f)} {end}" for head, f in zip(heads, functions, strict=True)
        )

    def _arguments(self, function: Function) -> str:
        return self.rule(function) if self.rule else json_rule(parameters(function))


def lark(text: str, special: Mapping[str, int]) -> str:
    """Return the expression of a text in Lark's notation, with special tokens by their numbers."""
    if not text:
        return ""
    names = sorted((name for name in special if name in text), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return " ".join(f"<[{special[p]}]>" if p in special else json.dumps(p) for p in parts if p)


def _properties(function: Function) -> list[tuple[str, Any, bool]]:
    """The arguments of a function: name, schema, and whether it is required.

    A schema with references has the function's definitions, as its grammar stands alone.

    Raises:
        ApiError: 400: these copies of the definitions are too large.
    """
    whole = parameters(function)
    defined = {key: whole[key] for key in DEFINITIONS if key in whole}
    size, copied = len(json.dumps(defined)), 0
    found = []
    for name, schema in (whole.get("properties") or {}).items():
        if defined and isinstance(schema, Mapping) and '"$ref"' in json.dumps(schema):
            schema = {**schema, **defined}
            copied += size
        found.append((name, schema, name in (whole.get("required") or ())))
    if copied > _MAX_COPIED:
        message = (
            f"the parameters of {function.name!r} cannot be forced: their definitions, one copy for each "
            f"property with a reference, have {copied} characters, and {_MAX_COPIED} are the limit"
        )
        raise ApiError(400, message, param="tools", code="invalid_value")
    return found


_MAX_COPIED = 1 << 22


def tagged(before: str, between: str, after: str) -> Callable[[Function], str]:
    """Return what makes the rule of arguments each of which is between tags.

    Args:
        before: the tag before an argument's name.
        between: the tag between name and value.
        after: the tag after the value. The rule ``text``, of `text_rule`, is a text up to it.
    """

    def rule(function: Function) -> str:
        parts = []
        for name, schema, required in _properties(function):
            if not is_text(schema):
                value = f"{json_rule(schema)} {json.dumps(after)}"
            elif texts := _choices(schema):
                value = f"({one_of(texts)}) {json.dumps(after)}"
            else:
                value = "text"
            part = f"({json.dumps(before + name + between)} {value})"
            parts.append(part + ("" if required else "?"))
        return " ".join(parts) or '""'

    return rule


def _choices(schema: Any) -> list[str]:
    """The texts that a schema enumerates; none: it enumerates nothing."""
    if not isinstance(schema, Mapping):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def text_rule(after: str) -> str:
    """Return the rule of a text that ends with the tag `after`, which it does not contain before."""
    end = re.escape(after).replace("/", r"\/").replace("\n", "n")
    return f"text[lazy]: /(.|\\n)*{end}/\n"


def _keywords(function: Function) -> str:
    """The rule of the arguments of a call in Python's notation; the required ones come first."""
    parts = sorted(_properties(function), key=lambda part: not part[2])
    rules = [f"{json.dumps(name + '=')} {json_rule(schema)}" for name, schema, _ in parts]
    needed = [r for r, part in zip(rules, parts, strict=True) if part[2]]
    others = [r for r, part in zip(rules, parts, strict=True) if not part[2]]
    if needed:
        return " ".join([' ", " '.join(needed), *(f'(", " {rule})?' for rule in others)])
    return f"({' | '.join(others)})?" if others else '""'


class MistralReader(CallReader):
    """``[TOOL_CALLS] [{"name": ..., "arguments": ...}]``, or ``[TOOL_CALLS]name[ARGS]{...}`` for each."""

    def read(self) -> Steps[None]:
        while (yield from self.text_until(["[TOOL_CALLS]"])):
            if (yield from self.blank()) in "[{":
                yield from self.listed_calls()
                continue
            name, marker = yield from self.take_until(["[CALL_ID]", "[ARGS]", "{"])
            if marker == "[CALL_ID]":
                _, marker = yield from self.take_until(["[ARGS]", "{"])
            if marker is None:
                self.give_up()
            elif self.begin(name.strip()):
                yield from self.arguments()


class DeepSeekReader(CallReader):
    """Calls between ``<｜tool▁call▁begin｜>`` and ``<｜tool▁call▁end｜>``, all of them between two markers.

    R1 and V3 write the kind, ``function``, before the separator, and the name and fenced JSON after it; later
    models the name before it and JSON after it.
    """

    def read(self) -> Steps[None]:
        while (yield from self.text_until([_CALLS])):
            while True:
                _, marker = yield from self.take_until([_CALL, "<｜tool▁calls▁end｜>"])
                if marker != _CALL:
                    break
                name, marker = yield from self.take_until(["<｜tool▁sep｜>"])
                if name.strip() == "function" and marker:
                    name, marker = yield from self.take_until(["\n"])
                if marker is None:
                    self.give_up()
                    return
                if not self.begin(name.strip()):
                    break
                yield from self.take_until(["{", "<｜tool▁call▁end｜>"])
                yield from self.arguments()
                self._raw = ""


_CALLS, _CALL = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"


class TaggedReader(CallReader):
    """Calls whose arguments are texts between tags, which become JSON by the types of the schema."""

    def pairs(self, key: str, between: str, after: str, end: Sequence[str], found: str | None) -> Steps[None]:
        """Give out the arguments; `found` is the tag before the first one, if it is known to be there.

        Args:
            key: the tag before an argument's name.
            between: the tag between its name and its value.
            after: the tag after the value.
            end: the tags after all arguments.
            found: the tag that was read last.
        """
        function = self.functions[self._name]
        self.argue("{")
        separator = ""
        while True:
            if found is None:
                _, found = yield from self.take_until([key, *end])
            if found != key:
                break
            name, _ = yield from self.take_until([between])
            value, closed = yield from self.take_until([after])
            if closed is None:
                found = None
                break
            name = name.strip().removesuffix("</arg_key>")
            text = typed(function, name, self.value(value))
            self.argue(f"{separator}{json.dumps(name)}: {text}")
            separator, found = ", ", None
        if found is not None or not self._cut:
            self.argue("}")

    def value(self, text: str) -> str:
        """Return an argument's value without the layout around it."""
        return text

    def begin(self, name: str) -> bool:
        self._name = name
        return super().begin(name)


class GlmReader(TaggedReader):
    """``<tool_call>name`` and ``<arg_key>``, ``<arg_value>`` for each argument (GLM 4.5 and later)."""

    def read(self) -> Steps[None]:
        end = ["</tool_call>"]
        while (yield from self.text_until(["<tool_call>"])):
            name, marker = yield from self.take_until(["<arg_key>", *end])
            if marker is None and (self._cut or name.strip() not in self.functions):
                self.give_up()
            elif self.begin(name.strip()):
                yield from self.pairs("<arg_key>", "<arg_value>", "</arg_value>", end, marker or "")


class CoderReader(TaggedReader):
    """``<function=name>`` and ``<parameter=name>`` for each argument (Qwen Coder)."""

    def read(self) -> Steps[None]:
        while opened := (yield from self.text_until(["<tool_call>", "<function="])):
            if opened == "<tool_call>":
                _, marker = yield from self.take_until(["<function="])
                if marker is None:
                    self.give_up()
                    return
            name, marker = yield from self.take_until([">"])
            if marker is None:
                self.give_up()
            elif self.begin(name.strip()):
                yield from self.pairs(
                    "<parameter=", ">", "</parameter>", ["</function>", "</tool_call>"], None
                )
                if opened == "<tool_call>":
                    yield from self.skip("</tool_call>")
                    self._raw = ""

    def value(self, text: str) -> str:
        return text.removeprefix("\n").removesuffix("\n")


class PythonReader(CallReader):
    """A whole reply ``[name(argument=value), ...]`` (Llama 4 and 3.2)."""

    _HEAD = re.compile(r"\s*([\w.-]+)\s*(?=\(\s*(?:\w+\s*=|\)))")
    """A name before an argument's name or the end: in prose, as ``[name(it's``, something else follows."""
    _BEGUN = re.compile(r"\s*[\w.-]*\s*(?:\(\s*\w*\s*)?")
    """The beginning of a head."""

    def read(self) -> Steps[None]:
        yield from self.skip("<|python_start|>")
        sign = yield from self.blank()
        if sign == "[":
            self._raw += self._taken(1)
            if (yield from self._list()):
                return
        else:
            self._show(self._raw)
            self._raw = ""
        yield from self.text_until(["<|python_end|>"])

    def _list(self) -> Steps[bool]:
        while True:
            call = yield from self._call()
            if call is None:
                self.give_up()
                return False
            self.begin(call[0])
            self.argue(call[1])
            sign = yield from self.blank()
            self._raw += self._taken(1)
            if sign != ",":
                return sign in "]"

    def _call(self) -> Steps[tuple[str, str] | None]:
        """Consume a call; return its name and arguments. None: there is none, or the reply ends within it."""
        while (head := self._HEAD.match(self._buffer)) is None:
            if not self._BEGUN.fullmatch(self._buffer):
                return None
            if not (yield from self.more()):
                self._raw += self._taken(len(self._buffer))
                return None
        if head[1] not in self.functions:
            return None
        self._raw += self._taken(head.end())
        end = PythonEnd()
        while (length := end.within(self._buffer)) is None:
            if end.broken and not any(quotes in self._buffer for quotes in ('"""', "'''")):
                return None
            if not (yield from self.more()):
                self._raw += self._taken(len(self._buffer))
                return None
        try:
            node = ast.parse(f"f{self._buffer[:length]}", mode="eval").body
            assert isinstance(node, ast.Call)
            if node.args or any(k.arg is None for k in node.keywords):
                return None
            values = {str(k.arg): _literal(k.value) for k in node.keywords}
        except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
            return None
        self._taken(length)
        return head[1], json.dumps(values, ensure_ascii=False)


_NAMED = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr) -> Any:
    """The value of a literal of Python or JSON."""
    if isinstance(node, ast.Name) and node.id in _NAMED:
        return _NAMED[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_literal(key)): _literal(value) for key, value in pairs if key is not None}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("no value of JSON")
    return value


class PythonEnd(JsonEnd):
    """Finds the end of brackets in Python's notation, in which texts have quotes of either kind."""

    QUOTES, OPENING, CLOSING = "\"'", "([{", ")]}"


class CohereReader(CallReader):
    """``<|START_ACTION|>`` and a list of objects with ``tool_name`` and ``parameters`` (Command A)."""

    def read(self) -> Steps[None]:
        around = [f"<|{end}_{part}|>" for end in ("START", "END") for part in ("RESPONSE", "TEXT")]
        while marker := (yield from self.text_until(["<|START_ACTION|>", "<|START_THINKING|>"], around)):
            if marker == "<|START_THINKING|>":
                yield from self.text_until(["<|END_THINKING|>"], make=Thought)
                continue
            yield from self.listed_calls()
            yield from self.skip("<|END_ACTION|>")
            self._raw = ""


class HarmonyReader(CallReader):
    """Messages of several channels: reasoning in ``analysis``, calls and notes in ``commentary``, the answer
    in ``final`` (gpt-oss).
    """

    def read(self) -> Steps[None]:
        ends = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"]
        while True:
            header, marker = yield from self.take_until(["<|message|>"])
            if marker is None:
                self._raw = "" if self._cut and "<|" in header else self._raw
                self._show(self._raw if header.strip() else "")
                return
            channel = re.search(r"<\|channel\|>\s*(\w+)", header)
            recipient = re.search(r"to=functions\.([^\s<]+)", header)
            if recipient and recipient[1] in self.functions:
                self.begin(recipient[1])
                yield from self.arguments()
                yield from self.take_until(ends)
            else:
                thinks = channel is not None and channel[1] == "analysis"
                self._raw = ""
                yield from self.text_until(ends, make=Thought if thinks else str)
            self._raw = ""


class NameLineReader(CallReader):
    """A whole reply of a function's name in a line and its arguments as JSON (GLM 4)."""

    def read(self) -> Steps[None]:
        yield from self.blank()
        while "\n" not in self._buffer:
            begins = any(name.startswith(self._buffer.strip()) for name in self.functions)
            if not begins or not (yield from self.more()):
                break
        name, newline, _ = self._buffer.partition("\n")
        if newline and name.strip() in self.functions:
            self._taken(len(name) + 1)
            self.begin(name.strip())
            yield from self.arguments()
            yield from self.blank()
        elif self._over and self._cut and name:
            self._taken(len(self._buffer))
        yield from self.text_until([])


MISTRAL = CallForm("mistral", MistralReader, "[TOOL_CALLS]", '[{"name": "NAME", "arguments": ', "}]")
MISTRAL_ARGS = CallForm("mistral-args", MistralReader, "[TOOL_CALLS]", "NAME[ARGS]", markers=("[CALL_ID]",))
DEEPSEEK = CallForm(
    "deepseek", DeepSeekReader, _CALLS + _CALL, "function<｜tool▁sep｜>NAME\n```json\n",
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)  # fmt: skip
DEEPSEEK_PLAIN = CallForm(
    "deepseek-v3.1",
    DeepSeekReader,
    _CALLS + _CALL,
    "NAME<｜tool▁sep｜>",
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
GLM = CallForm(
    "glm", GlmReader, "<tool_call>", "NAME\n", "</tool_call>",
    tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"), text_rule("</arg_value>\n"),
    ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)  # fmt: skip
GLM_LINE = CallForm("glm-4", NameLineReader, "", "NAME\n")
CODER = CallForm(
    "qwen-coder", CoderReader, "<tool_call>\n", "<function=NAME>\n", "</function>\n</tool_call>",
    tagged("<parameter=", ">\n", "\n</parameter>\n"), text_rule("\n</parameter>\n"),
)  # fmt: skip
PYTHON = CallForm(
    "python", PythonReader, "[", "NAME(", ")]", _keywords, markers=("<|python_start|>", "<|python_end|>")
)
COHERE = CallForm(
    "cohere", CohereReader, "<|START_ACTION|>",
    '[\n    {"tool_call_id": "0", "tool_name": "NAME", "parameters": ', "}\n]<|END_ACTION|>",
    markers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>",
        "<|START_THINKING|>", "<|END_THINKING|>"), always=True,
    answer_opening="<|START_RESPONSE|>",
)  # fmt: skip
HARMONY = CallForm(
    "harmony", HarmonyReader, "<|channel|>commentary to=functions.", "NAME <|constrain|>json<|message|>",
    markers=("<|start|>", "<|end|>"), always=True, answer_opening="<|channel|>final<|message|>",
    thought="thinking",
)  # fmt: skip

ReplyForm = Convention | CallForm

FORMS: list[tuple[ReplyForm, Callable[[str], object]]] = [
    (HARMONY, lambda t: "<|channel|>" in t and "<|message|>" in t),
    (COHERE, lambda t: "<|START_ACTION|>" in t),
    (MISTRAL_ARGS, lambda t: "[TOOL_CALLS]" in t and "[ARGS]" in t),
    (MISTRAL, lambda t: "[TOOL_CALLS]" in t),
    (DEEPSEEK, lambda t: _CALLS in t and "```json" in t),
    (DEEPSEEK_PLAIN, lambda t: _CALLS in t),
    (GLM, lambda t: "<arg_key>" in t),
    (CODER, lambda t: "<function=" in t and "<parameter=" in t),
    (PYTHON, lambda t: "func_name1(" in t),
    (
        HERMES,
        lambda t: HERMES.opening in t and not any(other in t for other in ("<function=", "<|tool_call>")),
    ),
    (GLM_LINE, lambda t: "<|observation|>" in t and "tools" in t),
    (LLAMA, lambda t: "tools" in t and LLAMA_FORM.search(t)),
]
"""The forms, each with a test of chat templates; the first one that fits counts."""


def form_of(template: str) -> ReplyForm | None:
    """Return the form of the replies to a chat template; None if it is unknown."""
    return next((form for form, fits in FORMS if fits(template)), None)


def required_form(template: str) -> ReplyForm:
    """Return the form of the tool calls in replies to a chat template.

    Raises:
        ApiError: 400: it has none, or one that is not supported.
    """
    found = form_of(template)
    if found is not None:
        return found
    what = (
        "writes tool calls in a form that this server does not support"
        if "tools" in template
        else "does not support tools"
    )
    raise ApiError(400, f"this model's chat template {what}", param="tools", code="unsupported_parameter")


__all__ = ["FORMS", "CallForm", "ReplyForm", "form_of", "required_form"]
