"""`Form`: the required shape of an answer, in one of the notations that requests use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..engine.grammar import Constraint, Grammars
from .errors import ApiError
from .protocol import ObjectFormat, Penalized, ResponseSchemaFormat, SchemaFormat, TextFormat

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

# Whitespace is fixed to that of json.dumps. If a grammar allows any amount, small models generate whitespace
# without end.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Form:
    """The required shape of an answer."""

    kind: Literal["json", "regex", "grammar"]
    value: Any
    """A JSON schema, as a mapping or its text; a regular expression; a grammar in Lark's notation or GBNF."""

    @classmethod
    def choice(cls, texts: list[str]) -> Form:
        """The form of an answer that is one of `texts`."""
        return cls("grammar", f"start: {one_of(texts)}")

    def constraint(self, grammars: Grammars) -> Constraint:
        """Compile the form.

        Raises:
            RequestError: it is not valid, or uses an unsupported feature.
        """
        if self.kind == "json":
            return grammars.json_schema(self.schema())
        return grammars.regex(self.value) if self.kind == "regex" else grammars.grammar(self.value)

    def schema(self) -> Any:
        """The JSON schema with the spacing of answers; text that is not JSON is returned as it is."""
        try:
            schema = json.loads(self.value) if isinstance(self.value, str) else self.value
        except ValueError:
            return self.value
        return {**schema, "x-guidance": _SPACING} if isinstance(schema, Mapping) else schema


def one_of(texts: list[str]) -> str:
    """Return the expression of alternative texts in Lark's notation."""
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def asked_format(
    format: TextFormat | ObjectFormat | SchemaFormat | ResponseSchemaFormat | None,
) -> Form | None:
    """Return the form that OpenAI's ``response_format``, or ``text.format``, asks for."""
    schema = format.json_schema if isinstance(format, SchemaFormat) else format
    if schema is None or isinstance(schema, TextFormat):
        return None
    wanted = None if isinstance(schema, ObjectFormat) else schema.schema_
    return Form("json", ANY_OBJECT if wanted is None else wanted)


def structured(request: Penalized) -> Form | None:
    """Return the form that ``structured_outputs``, or one of the older fields ``guided_...``, asks for.

    Raises:
        ApiError: 400: several forms are given, or none within ``structured_outputs``.
    """
    wanted = request.structured_outputs
    older = {kind: getattr(request, f"guided_{kind}") for kind in _KINDS}
    newer = {kind: getattr(wanted, "json_" if kind == "json" else kind, None) for kind in _KINDS}
    values = {f"guided_{kind}": (kind, value) for kind, value in older.items()}
    values |= {f"structured_outputs.{kind}": (kind, value) for kind, value in newer.items()}
    given = {name: _form(kind, value) for name, (kind, value) in values.items() if value is not None}
    if len(given) > 1 or (wanted is not None and not given):
        message = (
            f"{' and '.join(given)} give different forms of the answer: send one of them"
            if given
            else "'structured_outputs' needs one of json, regex, choice and grammar"
        )
        raise ApiError(400, message, param="structured_outputs", code="invalid_value")
    return next(iter(given.values()), None)


_KINDS = ("json", "regex", "choice", "grammar")


def _form(kind: Any, value: Any) -> Form:
    return Form.choice(value) if kind == "choice" else Form(kind, value)
