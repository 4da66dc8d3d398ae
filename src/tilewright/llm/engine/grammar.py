"""Outputs constrained by a grammar: which token may come next. llguidance does the matching."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ...errors import RequestError
from ..tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance


class Constraint(Protocol):
    """The state of one output in its grammar."""

    def mask(self) -> bytes:
        """Return which tokens may come next: token t is bit ``t % 8`` of byte ``t // 8``.

        Tokens that end a text are included where the output may end.
        """
        ...

    def accept(self, token: int) -> None:
        """Advance the state by a token.

        Raises:
            RequestError: The grammar does not allow the token here, or the state became too complex.
        """
        ...

    def allowed(self, tokens: list[int]) -> int:
        """Return how many of these tokens, in this order, may come next."""
        ...

    @property
    def complete(self) -> bool:
        """Whether only the end of the text may follow."""
        ...

    def fork(self) -> Constraint:
        """Return an independent copy of this state."""
        ...


@runtime_checkable
class LogitRules(Protocol):
    """The state of one output under rules that change its logits, also by the logits themselves."""

    def adjust(self, logits: np.ndarray[Any, Any]) -> None:
        """Change the logits of the next token, float32 [vocabulary], in place: -inf forbids a token."""
        ...

    def accept(self, token: int) -> None:
        """Advance the state by a token.

        Raises:
            RequestError: The rules do not allow the token here.
        """
        ...

    @property
    def complete(self) -> bool:
        """Whether the output ends here."""
        ...

    def fork(self) -> LogitRules:
        """Return an independent copy of this state."""
        ...


class Grammars:
    """Creates constraints over a tokenizer's vocabulary. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Prepare the tokenizer's vocabulary for matching.

        Raises:
            RequestError: The tokenizer has no token that ends a text, which a grammar needs.
        """
        from llguidance import LLTokenizer

        if not tokenizer.eos:
            raise RequestError("the tokenizer has no end-of-text token, which constrained decoding needs")
        self._tokenizer = LLTokenizer(tokenizer.backend.to_str(), eos_token=list(tokenizer.eos))

    def json_schema(self, schema: Mapping[str, Any] | str) -> Constraint:
        """Constrain an output to JSON that a schema describes.

        Raises:
            RequestError: It is not a valid schema, or uses an unsupported feature.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            json.loads(text)
        except ValueError as error:
            raise RequestError(f"the JSON schema is not JSON: {error}") from error
        from llguidance import LLMatcher

        return self._compile(LLMatcher.grammar_from_json_schema(text), "JSON schema")

    def json(self) -> Constraint:
        """Constrain an output to any JSON object.

        Raises:
            RequestError: The grammar cannot be compiled for the tokenizer's vocabulary.
        """
        return self.json_schema({"type": "object"})

    def regex(self, pattern: str) -> Constraint:
        """Constrain an output to text that `pattern`, a regular expression, matches from beginning to end.

        The syntax is Rust's: no look-around, no back references.

        Raises:
            RequestError: The expression is not valid.
        """
        from llguidance import LLMatcher

        return self._compile(LLMatcher.grammar_from_regex(pattern), "regular expression")

    def grammar(self, grammar: str) -> Constraint:
        """Constrain an output to a context-free grammar.

        It is either in Lark's notation, from its rule ``start``, or in GBNF (llama.cpp's), from ``root``.

        Raises:
            RequestError: The grammar is not valid.
        """
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

        try:
            lark = any_to_lark(grammar)
        except GbnfToLarkError as error:
            raise RequestError(f"the grammar cannot be used: {error}") from error
        return self._compile(LLMatcher.grammar_from_lark(lark), "grammar")

    def _compile(self, grammar: str, what: str) -> Constraint:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(f"the {what} cannot be used: {_reason(matcher)}")
        begun = matcher.deep_copy()
        begun.compute_bitmask()
        if begun.is_error():
            raise RequestError(
                f"the {what} cannot be used: no text matches it; for example, a definition may consist only "
                "of itself"
            )
        return _Guidance(matcher)


# llguidance's error for alternatives that a text may match twice
_ONE_OF = "oneOf constraints are not supported"


def _reason(matcher: llguidance.LLMatcher) -> str:
    """Return llguidance's error text, without its parser state and its advice to callers."""
    text: str = matcher.get_error().partition("\n<state>")[0].strip()
    if text.startswith(_ONE_OF):
        return "oneOf is supported only where no value fits two of its schemas; use anyOf instead"
    return text


class _Guidance:
    """A `Constraint` that llguidance checks."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self._mask: bytes | None = None  # of the current state

    def mask(self) -> bytes:
        if self._mask is None:
            self._mask = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                raise RequestError(f"the grammar cannot continue: {_reason(self._matcher)}")
        return self._mask

    def accept(self, token: int) -> None:
        self._mask = None
        if not self._matcher.consume_token(token):
            raise RequestError(f"the grammar does not allow token {token}: {_reason(self._matcher)}")

    def allowed(self, tokens: list[int]) -> int:
        return int(self._matcher.validate_tokens(tokens))

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    def fork(self) -> Constraint:
        return _Guidance(self._matcher.deep_copy())
