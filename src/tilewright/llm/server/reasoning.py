"""A model's reasoning, which precedes its answer between two tags, and its incremental parser."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

TAGS = {
    "<think>": "</think>",  # DeepSeek R1, Qwen 3, GLM 4.5, SmolLM 3
    "<thought>": "</thought>",  # EXAONE
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<reasoning>": "</reasoning>",
}
"""The closing tag of each opening one."""


@dataclass(frozen=True)
class Thought:
    """A further part of the model's reasoning."""

    text: str


def tag_of(template: str, special: Collection[str] = ()) -> str | None:
    """Return the tag that opens reasoning in replies to a chat template; None if it knows no reasoning.

    Tags that are `special` tokens do not appear in replies.
    """
    return next((t for t in TAGS if TAGS[t] in template and not {t, TAGS[t]} & set(special)), None)


def opened(tag: str, prompt: str) -> bool:
    """Return whether a prompt ends within reasoning."""
    return prompt.rfind(tag) > prompt.rfind(TAGS[tag])


class ReasoningParser:
    """Splits a streamed reply into reasoning, which can only be its beginning, and the answer.

    Blanks around both are dropped.
    """

    def __init__(self, tag: str, begun: bool) -> None:
        """Parse a reply.

        Args:
            tag: the opening tag.
            begun: whether the prompt has opened the reasoning, so that the reply begins within it.
        """
        self._tag = tag
        self._buffer = ""
        self._inside = begun
        self._blank = True  # whether nothing of the current part has been given out
        self._over = False  # whether the rest is the answer

    def feed(self, text: str) -> list[Thought | str]:
        """Return what `text` adds."""
        if self._over:
            return self._answer(text)
        self._buffer += text
        events: list[Thought | str] = []
        if not self._inside:
            begin = self._buffer.lstrip()
            if begin.startswith(self._tag):
                self._buffer, self._inside = begin.removeprefix(self._tag), True
            elif self._tag.startswith(begin):
                return []
            else:
                return self._rest()
        closing = TAGS[self._tag]
        end = self._buffer.find(closing)
        if end >= 0:
            rest = self._buffer[end + len(closing) :]
            self._buffer = self._buffer[:end].rstrip()
            events += self._thought(len(self._buffer))
            self._over, self._blank = True, True
            return events + self._answer(rest)
        kept = next((n for n in range(len(closing) - 1, 0, -1) if self._buffer.endswith(closing[:n])), 0)
        return self._thought(len(self._buffer[: len(self._buffer) - kept].rstrip()))

    def finish(self) -> list[Thought | str]:
        """Return what is left at the end of the reply."""
        if self._over:
            return []
        return self._thought(len(self._buffer.rstrip())) if self._inside else self._rest()

    def _rest(self) -> list[Thought | str]:
        """Return the buffer as the beginning of a reply without reasoning."""
        self._over, self._blank = True, False
        text, self._buffer = self._buffer, ""
        return [text] if text else []

    def _thought(self, length: int) -> list[Thought | str]:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        text = text.lstrip() if self._blank else text
        self._blank = self._blank and not text
        return [Thought(text)] if text else []

    def _answer(self, text: str) -> list[Thought | str]:
        text = text.lstrip() if self._blank else text
        self._blank = self._blank and not text
        return [text] if text else []
