"""`TextUse`: how a model takes texts that are not chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class TextUse:
    """How a model without a chat takes texts; stored in its library."""

    task: str = "generate"
    """As `LanguageModel.task`."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that precede the text to be embedded, by name."""
    default_prompt: str | None = None
    """The name of the prompt of requests that name none."""
    segments: bool = False
    """Whether the classifier reads the numbers of segments."""
    prompted: bool = False
    """Whether query and document are parts of a prompt, of which a decoder judges, and not a pair."""
    plain: bool = False
    """Whether scores are the classifier's logits, without a sigmoid."""

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> TextUse:
        """The use that a library's metadata describe; None: the defaults."""
        return cls(**(stored or {}))

    def stored(self) -> dict[str, Any]:
        return asdict(self)


__all__ = ["TextUse"]
