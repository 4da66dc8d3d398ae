"""Speculative decoding: cheap guesses of the next tokens, which the model checks all at once.

What comes out is what would have come without. Greedy outputs and those of a request with a seed are the same tokens: a guess is accepted if it is what the
model chooses with the same random number (a coupling, Daliri et al. 2024). Other draws from a draft model are accepted or replaced by rejection
sampling (Leviathan et al. 2023), which accepts more and keeps the distribution.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import RequestError
from ..runner import PAGE, Runner
from .sampling import Floats, choose, draw, probabilities
from .scheduler import Scheduler
from .sequence import Sequence


@dataclass(frozen=True)
class Speculation:
    """How to guess."""

    draft: Runner | None = None
    """A small model of the same vocabulary; None looks for the last tokens earlier in prompt and output (prompt lookup, Saxena 2023)."""
    tokens: int = 4
    """Most guesses of a step."""
    max_batch: int = 8
    """With more sequences than this the model has no time to spare for checking guesses."""


@dataclass
class Guess:
    """Tokens that may come next."""

    tokens: list[int]
    probabilities: list[Floats] = field(default_factory=list)
    """What each was drawn from, f64 [vocabulary], if it is to be accepted by rejection sampling."""


class PromptLookup:
    """Guesses what followed when the last tokens came before."""

    SIZES = (3, 2)

    def __init__(self) -> None:
        self._places: dict[
            Sequence, tuple[int, dict[tuple[int, ...], int]]
        ] = {}  # what has been seen; behind an n-gram

    def guess(self, sequences: List[Sequence], count: int, scheduler: Scheduler) -> list[Guess]:
        """For each sequence at most `count` tokens."""
        self._places = {s: self._places.get(s, (0, {})) for s in sequences}
        return [Guess(self._look(s, count)) for s in sequences]

    def _look(self, sequence: Sequence, count: int) -> list[int]:
        tokens, (seen, places) = sequence.tokens, self._places[sequence]
        for end in range(max(seen, 1), len(tokens)):  # the n-gram at the end is not entered before something follows it
            for n in self.SIZES:
                if end >= n:
                    places[tuple(tokens[end - n : end])] = end
        self._places[sequence] = len(tokens), places
        for n in self.SIZES:
            at = places.get(tuple(tokens[-n:])) if len(tokens) > n else None
            if at is not None:
                found = tokens[at : at + count]
                constraint = sequence.chooser.constraint
                return found if constraint is None else found[: constraint.allowed(found)]
        return []


class DraftModel:
    """Guesses what a small model would choose. Its cache has the same pages as the model's: every page of one has its like in the other."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def check(self, runner: Runner) -> None:
        """
        Raises:
            RequestError: this cannot be the draft model of `runner`.
        """
        draft = self.runner
        if draft.has_state:
            raise RequestError(
                "the draft model keeps state that cannot be taken back: choose one without, or prompt lookup"
            )
        if draft.vocabulary != runner.vocabulary:
            raise RequestError(f"the draft model has {draft.vocabulary} tokens, the model {runner.vocabulary}")
        for name in ("pages", "context", "max_batch"):
            if getattr(draft, name) < getattr(runner, name):
                raise RequestError(
                    f"the draft model is compiled for {name} = {getattr(draft, name)}, the model for {getattr(runner, name)}: it needs at least as many"
                )

    def prefill(self, tokens: list[int], start: int, scheduler: Scheduler, sequence: Sequence) -> None:
        """Let the draft model's cache hold these tokens, too."""
        for at in range(0, len(tokens), self.runner.chunk):
            part = np.array(tokens[at : at + self.runner.chunk], np.int32)
            pages = scheduler.pages_of([sequence])[0][: -(-(start + at + len(part)) // PAGE)]
            self.runner.prefill(part, start + at, pages, sequence.slot)

    def guess(self, sequences: List[Sequence], count: int, scheduler: Scheduler) -> list[Guess]:
        """For each sequence `count` tokens; there must be pages for them."""
        for s in sequences:
            if (missing := s.held - s.drafted) > 1:  # steps without speculation lie behind
                self.prefill(s.tokens[s.drafted : s.held - 1], s.drafted, scheduler, s)
                s.drafted += missing - 1
        late = [s for s in sequences if s.drafted < s.held]  # all guesses were right: the last one was never fed
        if late:
            self._decode(late, [s.tokens[-2] for s in late], -1, scheduler)
        guesses = [Guess([]) for _ in sequences]
        for s in sequences:
            s.chooser.look_ahead()
        try:
            for i in range(count):
                if not self._extend(sequences, guesses, i, scheduler):
                    break
        finally:
            for guess, s in zip(guesses, sequences, strict=True):
                s.chooser.look_back(guess.tokens)
                s.drafted = s.held + len(guess.tokens)
        return guesses

    def _extend(self, sequences: List[Sequence], guesses: list[Guess], i: int, scheduler: Scheduler) -> bool:
        """One more token for each guess; False where one cannot go on."""
        fed = [g.tokens[-1] if g.tokens else s.tokens[-1] for g, s in zip(guesses, sequences, strict=True)]
        logits = np.array(self._decode(sequences, fed, i, scheduler))
        for row, s in zip(logits, sequences, strict=True):
            s.chooser.adjust(row)
        chosen = choose(logits, [(s.chooser, s.output + i) for s in sequences]).tolist()
        if min(chosen) < 0:
            return False
        for row, token, guess, s in zip(logits, chosen, guesses, sequences, strict=True):
            if s.rejects:
                guess.probabilities.append(probabilities(row, s.chooser.parameters))
            s.chooser.accept(token)
            guess.tokens.append(token)
        return True

    def _decode(self, sequences: List[Sequence], tokens: list[int], ahead: int, scheduler: Scheduler) -> Any:
        lengths = np.array([s.held + ahead for s in sequences], np.int32)
        slots = np.array([s.slot for s in sequences], np.int32)
        return self.runner.decode(np.array(tokens, np.int32), lengths, scheduler.pages_of(sequences), slots)


def accepted(sequence: Sequence, guess: Guess, logits: Floats, chosen: list[int]) -> list[int]:
    """The tokens that come next: guesses as far as they are right, and one more.

    Args:
        sequence: as it was before the guesses.
        guess: k tokens.
        logits: f32 [k + 1, vocabulary], adjusted.
        chosen: of each row what the model itself chooses.
    """
    for i, token in enumerate(guess.tokens):
        if chosen[i] < 0 or (not guess.probabilities and token != chosen[i]):
            return [*guess.tokens[:i], chosen[i]]
        if guess.probabilities:
            step = sequence.output + i
            p, q = probabilities(logits[i], sequence.chooser.parameters), guess.probabilities[i]
            if sequence.chooser.uniform(step, 1) * q[token] >= p[token]:
                rest = np.maximum(p - q, 0)
                return [*guess.tokens[:i], draw(None, rest, sequence.chooser.uniform(step, 2))]
    return [*guess.tokens, chosen[len(guess.tokens)]]
