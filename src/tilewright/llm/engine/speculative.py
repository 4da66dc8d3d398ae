"""Speculative decoding: cheap guesses of the next tokens, which the model checks in one call.

The output is the same as without speculation. Greedy outputs and those of a request with a seed have the same
tokens: a guess is accepted if it equals the model's choice with the same random number (a coupling, Daliri et
al. 2024). Other draws from a draft model are accepted or replaced by rejection sampling (Leviathan et al.
2023), which accepts more guesses and preserves the distribution.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

import numpy as np

from ...errors import RequestError
from ..runner import Runner
from .grammar import LogitRules
from .sampling import Floats, draw, probabilities
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

    def guess(self, sequences: abc.Sequence[Sequence], count: int) -> list[Guess]:
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


__all__ = ["PromptLookup", "Speculation", "accepted"]
