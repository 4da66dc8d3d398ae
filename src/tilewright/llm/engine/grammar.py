"""Outputs that a grammar allows: which token may come next. The work is llguidance's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from ...errors import RequestError
from ..tokenizer import Tokenizer


class Constraint(Protocol):
    """How far one output has come in a grammar."""

    def mask(self) -> bytes:
        """Which tokens may come next: token t is bit ``t % 8`` of byte ``t // 8``. An end of text is one of them where the output may end."""
        ...

    def accept(self, token: int) -> None:
        """
        Raises:
            RequestError: the grammar does not allow the token here, or became too complex.
        """
        ...

    def allowed(self, tokens: list[int]) -> int:
        """How many of these tokens may come next, one after the other."""
        ...

    @property
    def complete(self) -> bool:
        """Whether nothing but the end of the text may follow."""
        ...

    def fork(self) -> Constraint:
        """The same state, to go on with on its own."""
        ...


class Grammars:
    """Makes constraints over a tokenizer's vocabulary. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """
        Raises:
            RequestError: the tokenizer has no token that ends a text, which a grammar needs.
        """
        from llguidance import LLTokenizer

        if not tokenizer.eos:
            raise RequestError("the tokenizer has no token that ends a text: outputs cannot follow a grammar")
        self._tokenizer = LLTokenizer(tokenizer.backend.to_str(), eos_token=list(tokenizer.eos))

    def json_schema(self, schema: Mapping[str, Any] | str) -> Constraint:
        """JSON that a schema describes.

        Raises:
            RequestError: it is no schema, or uses what is not supported.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            json.loads(text)
        except ValueError as error:
            raise RequestError(f"the JSON schema is no JSON: {error}") from error
        from llguidance import LLMatcher

        return self._compile(LLMatcher.grammar_from_json_schema(text), "JSON schema")

    def json(self) -> Constraint:
        """Any JSON object."""
        return self.json_schema({"type": "object"})

    def regex(self, pattern: str) -> Constraint:
        """Text that a regular expression matches from beginning to end (Rust's syntax: no look-around, no back references).

        Raises:
            RequestError: it is no such expression.
        """
        from llguidance import LLMatcher

        return self._compile(LLMatcher.grammar_from_regex(pattern), "regular expression")

    def lark(self, grammar: str) -> Constraint:
        """Text of a context-free grammar in Lark's notation, from its rule ``start``.

        Raises:
            RequestError: it is no such grammar.
        """
        from llguidance import LLMatcher

        return self._compile(LLMatcher.grammar_from_lark(grammar), "grammar")

    def _compile(self, grammar: str, what: str) -> Constraint:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(f"the {what} cannot be used: {_reason(matcher)}")
        begun = matcher.deep_copy()
        begun.compute_bitmask()
        if begun.is_error():
            raise RequestError(
                f"the {what} cannot be used: no text fits it, as where a definition is nothing but itself"
            )
        return _Guidance(matcher)


_ONE_OF = "oneOf constraints are not supported"  # which a text may fit twice


def _reason(matcher: Any) -> str:
    """llguidance's error, without the state of its parser and advice to those who call it."""
    text: str = matcher.get_error().partition("\n<state>")[0].strip()
    if text.startswith(_ONE_OF):
        return "oneOf is read where no value can fit two of its schemas; write anyOf in its place"
    return text


class _Guidance:
    """A `Constraint` by llguidance."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self) -> bytes:
        found: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise RequestError(f"the grammar cannot go on: {_reason(self._matcher)}")
        return found

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise RequestError(f"the grammar does not allow token {token}: {_reason(self._matcher)}")

    def allowed(self, tokens: list[int]) -> int:
        return int(self._matcher.validate_tokens(tokens))

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    def fork(self) -> Constraint:
        return _Guidance(self._matcher.deep_copy())
