"""Speculative decoding: cheap guesses of the next tokens, which the model checks in one call.

The output is the same as without speculation. Greedy outputs and those of a request with a seed have the same
tokens: a guess is accepted if it equals the model's choice with the same random number (a coupling, Daliri et
al. 2024). Other draws from a draft model are accepted or replaced by rejection sampling (Leviathan et al.
2023), which accepts more guesses and preserves the distribution.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import RequestError
from ..runner import PAGE, UNDECIDED, Ints, Runner
from .drawing import Drawn
from .grammar import LogitRules
from .sampling import Floats, choose, draw, probabilities
from .scheduler import Scheduler
from .sequence import Guess, Sequence


@dataclass(frozen=True)
class Speculation:
    """How tokens are guessed.

    Raises:
        RequestError: `tokens` or `max_batch` is below 1.
    """

    draft: Runner | None = None
    """A small model with the same vocabulary. None: guesses are looked up after earlier occurrences of the
    last tokens in prompt and output (prompt lookup, Saxena 2023).
    """
    tokens: int = 4
    """The most guesses in a step, for each sequence."""
    adaptive: bool = True
    """Whether fewer guesses, or none, are made where that is measured to be faster: see `Pace`."""
    max_batch: int = 8
    """The most running sequences with which guesses are made; with more, the model has no idle capacity to
    check them.
    """

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.max_batch < 1:
            raise RequestError(
                f"speculation with {self.tokens} tokens for at most {self.max_batch} sequences: both numbers "
                "must be at least 1"
            )


class PromptLookup:
    """Guesses the tokens that followed an earlier occurrence of the last tokens."""

    SIZES = (3, 2)

    def __init__(self) -> None:
        # the number of tokens that were indexed, and where each n-gram in them ends
        self._places: dict[Sequence, tuple[int, dict[tuple[int, ...], int]]] = {}

    def guess(self, sequences: abc.Sequence[Sequence], count: int, scheduler: Scheduler) -> list[Guess]:
        """Guess at most `count` tokens for each sequence."""
        self._places = {s: self._places.get(s, (0, {})) for s in sequences}
        return [Guess(self._look(s, count)) for s in sequences]

    def _look(self, sequence: Sequence, count: int) -> list[int]:
        tokens, (indexed, places) = sequence.tokens, self._places[sequence]
        # the last n-gram is indexed only once a token follows it
        for end in range(max(indexed, 1), len(tokens)):
            for n in self.SIZES:
                if end >= n:
                    places[tuple(tokens[end - n : end])] = end
        self._places[sequence] = len(tokens), places
        for n in self.SIZES:
            at = places.get(tuple(tokens[-n:])) if len(tokens) > n else None
            if at is not None:
                guesses = tokens[at : at + count]
                constraint = sequence.sampler.constraint
                if isinstance(constraint, LogitRules):
                    return []
                return guesses if constraint is None else guesses[: constraint.allowed(guesses)]
        return []


class DraftModel:
    """Guesses the tokens that a small model would choose.

    Its cache has the same page numbers as the model's: each page has a counterpart.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._drawn = None if runner.drawing is None else Drawn(runner.drawing, runner.vocabulary)

    def check(self, runner: Runner) -> None:
        """Check that this can be the draft model of `runner`.

        Raises:
            RequestError: It cannot.
        """
        draft = self.runner
        if draft.has_state:
            raise RequestError(
                "the draft model keeps state that cannot be rolled back: choose one without, or prompt lookup"
            )
        if draft.vocabulary != runner.vocabulary:
            raise RequestError(
                f"the draft model has {draft.vocabulary} tokens, the model {runner.vocabulary}"
            )
        for name in ("pages", "context", "max_batch"):
            if getattr(draft, name) < getattr(runner, name):
                raise RequestError(
                    f"the draft model is compiled for {name} = {getattr(draft, name)}, the model for "
                    f"{getattr(runner, name)}: compile the draft model for at least as many"
                )

    def prefill(self, tokens: list[int], start: int, pages: Ints, slot: int) -> None:
        """Store these tokens in the draft model's cache too; arguments as for `Runner.prefill`, for any
        number of tokens.
        """
        for at in range(0, len(tokens), self.runner.chunk):
            part = np.array(tokens[at : at + self.runner.chunk], np.int32)
            held = pages[: -(-(start + at + len(part)) // PAGE)]
            (self._drawn or self.runner).prefill(part, start + at, held, slot)

    def catch_up(self, sequences: abc.Sequence[Sequence], scheduler: Scheduler) -> None:
        """Compute what earlier steps without guesses have left out."""
        for s in sequences:
            if s.held - s.drafted > 1:
                self.prefill(s.tokens[s.drafted : s.held], s.drafted, scheduler.pages_of([s])[0], s.slot)
                s.drafted = s.held

    def guess(self, sequences: abc.Sequence[Sequence], count: int, scheduler: Scheduler) -> list[Guess]:
        """Guess `count` tokens for each sequence, after `catch_up`; the pages for them must be allocated."""
        # Where all guesses were accepted, the draft model never processed the last one.
        late = [s for s in sequences if s.drafted < s.held]
        if late and len(sequences) + len(late) > self.runner.rows:
            self._decode([(s, s.tokens[-2], s.held - 1) for s in late], scheduler)
            late = []
        guesses = [Guess([]) for _ in sequences]
        for s in sequences:
            s.sampler.look_ahead()
        try:
            for i in range(count):
                if not self._extend(sequences, guesses, i, scheduler, late):
                    break
                late = []
        finally:
            for guess, s in zip(guesses, sequences, strict=True):
                s.sampler.look_back(guess.tokens)
                s.drafted = s.held + len(guess.tokens)
        return guesses

    def _extend(
        self,
        sequences: abc.Sequence[Sequence],
        guesses: list[Guess],
        i: int,
        scheduler: Scheduler,
        late: abc.Sequence[Sequence],
    ) -> bool:
        """Append one token to each guess; return False if the draft model cannot continue.

        The call also computes the token before, of sequences that are `late`.
        """
        fed: list[tuple[Sequence, int, int]] = []
        last: list[int] = []
        for g, s in zip(guesses, sequences, strict=True):
            if s in late:
                fed.append((s, s.tokens[-2], s.held - 1))
            last.append(len(fed))
            fed.append((s, g.tokens[-1] if g.tokens else s.tokens[-1], s.held + i))
        found = self._decode(fed, scheduler)
        steps = [(s.sampler, s.output + i) for s in sequences]
        drawn, chosen, logits = self._drawn, [UNDECIDED], np.empty((0, 0))
        if drawn is not None and not any(s.rejects or s.sampler.adjusts for s in sequences):
            drawn.draw([(row, *how) for row, how in zip(last, steps, strict=True)])
            chosen = drawn.tokens[last].tolist()
        if UNDECIDED in chosen:
            logits = np.array(found)[last] if drawn is None else np.array(drawn.logits(last))
            for row, s in zip(logits, sequences, strict=True):
                s.sampler.adjust(row)
            chosen = choose(logits, steps).tolist()
        if min(chosen) < 0:
            return False
        for k, (token, guess, s) in enumerate(zip(chosen, guesses, sequences, strict=True)):
            if s.rejects:
                guess.probabilities.append(probabilities(logits[k], s.sampler.parameters))
            s.sampler.accept(token)
            guess.tokens.append(token)
        return True

    def _decode(self, fed: abc.Sequence[tuple[Sequence, int, int]], scheduler: Scheduler) -> Any:
        """Decode tokens of sequences, each with the number of tokens before it."""
        tokens = np.array([token for _, token, _ in fed], np.int32)
        lengths = np.array([length for _, _, length in fed], np.int32)
        slots = np.array([s.slot for s, _, _ in fed], np.int32)
        pages = scheduler.pages_of([s for s, _, _ in fed])
        return (self._drawn or self.runner).decode(tokens, lengths, pages, slots)


def accepted(sequence: Sequence, guess: Guess, logits: Floats | None, chosen: list[int]) -> list[int]:
    """Return the next tokens of the output: the accepted guesses, and one more token.

    Args:
        sequence: Its state before the guesses.
        guess: K tokens.
        logits: F32 [k + 1, vocabulary], adjusted; None where the guess has no `probabilities`.
        chosen: The model's own choice for each row.
    """
    for i, token in enumerate(guess.tokens):
        if chosen[i] < 0 or (not guess.probabilities and token != chosen[i]):
            return [*guess.tokens[:i], chosen[i]]
        if guess.probabilities:
            assert logits is not None
            step = sequence.output + i
            p, q = probabilities(logits[i], sequence.sampler.parameters), guess.probabilities[i]
            if sequence.sampler.uniform(step, 1) * q[token] >= p[token]:
                rest = np.maximum(p - q, 0)
                return [*guess.tokens[:i], draw(None, rest, sequence.sampler.uniform(step, 2))]
    return [*guess.tokens, chosen[len(guess.tokens)]]
