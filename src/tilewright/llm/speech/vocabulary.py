"""`SpeechVocabulary`: the tokens of Whisper that are no text, and `TimestampRules`, which tokens may follow.

The rules are those of Radford et al., 2022, section 4.5, and of the program that they published.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...errors import RequestError
from ..tokenizer import Tokenizer

Task = Literal["transcribe", "translate"]
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
Logits = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SpeechVocabulary:
    """The tokens with which a model of speech is told what to do, and says what it hears."""

    start: int
    end: int
    """The token that ends a text. All tokens of text are smaller."""
    previous: int | None
    """Begins the text before the recording."""
    no_speech: int | None
    """Its probability after `start` is that of a recording without speech."""
    no_timestamps: int
    first_time: int
    """The token of the beginning of a window; each one after it is 0.02 s later."""
    languages: Mapping[str, int]
    """Tokens by the language's code; empty in models of one language."""
    tasks: Mapping[str, int]
    suppressed: tuple[int, ...] = ()
    """Tokens that are never chosen."""
    not_first: tuple[int, ...] = ()
    """Tokens with which no text begins."""
    latest_begin: int | None = None
    """The most steps of 0.02 s before the first text of a window; None: any number."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> SpeechVocabulary:
        """Return the tokens of a tokenizer.

        Args:
            tokenizer: The model's tokenizer.
            settings: The content of generation_config.json, or of config.json.

        Raises:
            RequestError: The tokenizer is not one for speech.
        """
        find = tokenizer.backend.token_to_id
        start, none = find("<|startoftranscript|>"), find("<|notimestamps|>")
        if start is None or none is None or not tokenizer.eos:
            raise RequestError("the tokenizer has no <|startoftranscript|>, <|notimestamps|> or end of text")
        added = tokenizer.backend.get_added_tokens_decoder()
        languages = {
            match[1]: id for id, token in added.items() if (match := _LANGUAGE.fullmatch(token.content))
        }
        tasks = {task: find(f"<|{task}|>") for task in ("transcribe", "translate")}
        several = settings.get("is_multilingual", bool(languages)) and None not in tasks.values()
        return cls(
            start=start,
            end=tokenizer.eos[0],
            previous=find("<|startofprev|>"),
            no_speech=next(
                (id for name in ("<|nospeech|>", "<|nocaptions|>") if (id := find(name)) is not None), None
            ),
            no_timestamps=none,
            first_time=none + 1,
            languages=languages if several else {},
            tasks={task: id for task, id in tasks.items() if id is not None} if several else {},
            suppressed=tuple(t for t in settings.get("suppress_tokens") or () if t >= 0),
            not_first=tuple(t for t in settings.get("begin_suppress_tokens") or () if t >= 0),
            latest_begin=settings.get("max_initial_timestamp_index"),
        )

    def opening(self, language: str | None, task: Task, timestamps: bool) -> list[list[int]]:
        """Return the tokens of which one each follows `start`, before the text.

        Raises:
            RequestError: The model does not know the language, or has no tasks.
        """
        if not self.languages:
            if language not in (None, "en") or task != "transcribe":
                raise RequestError("the model knows one language, and transcribes only")
            chosen: list[list[int]] = []
        elif language is not None and language not in self.languages:
            raise RequestError(
                f"the model does not know the language {language!r}; known: "
                f"{', '.join(sorted(self.languages))}"
            )
        else:
            known = list(self.languages.values()) if language is None else [self.languages[language]]
            chosen = [known, [self.tasks[task]]]
        return chosen if timestamps else [*chosen, [self.no_timestamps]]


@dataclass
class Heard:
    """The result of the first choice of a window besides its token."""

    no_speech: float = 0.0
    """The probability of a window without speech."""


@dataclass
class TimestampRules:
    """The `LogitRules` of the text of a window: opening tokens; then text between pairs of timestamps that do
    not go back. If all timestamps together are more probable than any other token, one is chosen.
    """

    vocabulary: SpeechVocabulary
    opening: Sequence[Sequence[int]]
    timestamps: bool
    heard: Heard = field(default_factory=Heard)
    """Shared by all forks: they have the same prompt."""
    tokens: list[int] = field(default_factory=list)

    complete = False

    def fork(self) -> TimestampRules:
        return TimestampRules(self.vocabulary, self.opening, self.timestamps, self.heard, list(self.tokens))

    def accept(self, token: int) -> None:
        self.tokens.append(token)

    def adjust(self, logits: Logits) -> None:
        v, place = self.vocabulary, len(self.tokens)
        if place == 0 and v.no_speech is not None:
            self.heard.no_speech = math.exp(float(logits[v.no_speech]) - _log_sum(logits))
        if place < len(self.opening):
            allowed = list(self.opening[place])
            kept = logits[allowed]
            logits[:] = -np.inf
            logits[allowed] = kept
            return
        said = self.tokens[len(self.opening) :]
        logits[list(v.suppressed)] = -np.inf
        if not said:
            logits[list(v.not_first)] = -np.inf
        if self.timestamps:
            self._adjust_times(logits, said)

    def _adjust_times(self, logits: Logits, said: list[int]) -> None:
        v = self.vocabulary
        times = [token for token in said if token >= v.first_time]
        logits[v.no_timestamps] = -np.inf
        open_pair = False
        if said and said[-1] >= v.first_time:
            if len(said) < 2 or said[-2] >= v.first_time:
                logits[v.first_time :] = -np.inf  # text, or the end
            else:
                open_pair = True
                logits[: v.end] = -np.inf  # the beginning of the next text, or the end
        if times:
            logits[v.first_time : times[-1] + (0 if open_pair else 1)] = -np.inf
        if not said:
            logits[: v.first_time] = -np.inf
            if v.latest_begin is not None:
                logits[v.first_time + v.latest_begin + 1 :] = -np.inf
        if _log_sum(logits[v.first_time :]) > float(logits[: v.first_time].max()):
            logits[: v.first_time] = -np.inf


def _log_sum(logits: Logits) -> float:
    """The logarithm of the sum of exponentials; -inf if all are -inf."""
    best = float(logits.max()) if len(logits) else -math.inf
    if not math.isfinite(best):
        return best
    return best + math.log(float(np.exp(logits - np.float32(best)).sum()))


__all__ = ["Heard", "SpeechVocabulary", "Task", "TimestampRules"]
