"""`Drawn`: the tokens that a model draws beside its logits, for the sequences of a step."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np

from ...errors import TilewrightError
from ..runner import UNDECIDED, Adjustments, Drawing, Draws, Floats, Ints
from ..vision.given import GivenRows
from .grammar import LogitRules
from .sampling import Sampler
from .sequence import Guess, Sequence


class Drawn:
    """The next tokens after the rows of a call of the model.

    The call itself gives the most probable tokens. Others are drawn by a second call, and those from adjusted
    logits by a third.
    """

    def __init__(self, drawing: Drawing, vocabulary: int) -> None:
        """Use `drawing`, of a model of `vocabulary` tokens."""
        self._drawing, self._vocabulary = drawing, vocabulary
        self.tokens = np.empty(0, np.int32)

    def prefill(
        self, tokens: Ints, start: int, pages: Ints, slot: int, given: GivenRows | None = None
    ) -> None:
        """Prefill tokens, and get the most probable token after them."""
        self.tokens = np.array(self._drawing.prefill(tokens, start, pages, slot, given))

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> None:
        """Decode tokens, and get the most probable ones after each of them."""
        self.tokens = np.array(self._drawing.decode(tokens, lengths, pages, slots))

    def draw(self, rows: Several[tuple[int, Sampler, int]]) -> None:
        """Draw the tokens of rows, each with its sampler and the number of the token in the output."""
        drawn = [(row, sampler, step) for row, sampler, step in rows if not sampler.parameters.greedy]
        if drawn:
            at = np.array([row for row, _, _ in drawn], np.int32)
            self.tokens[at] = self._drawing.draw(at, draws_of([(s, step) for _, s, step in drawn]))

    def decide(
        self, ready: Several[tuple[Sequence, Guess, int]]
    ) -> tuple[list[tuple[Sequence, Guess, int]], dict[Sequence, TilewrightError]]:
        """Choose the next tokens of sequences, each with guesses of them and the row after its last token,
        which the rows after each guess follow.

        Returns:
            The entries for which the caller has to choose from their `logits`, and the sequences whose
            grammar failed.
        """
        failed: dict[Sequence, TilewrightError] = {}
        here: list[tuple[Sequence, Guess, int]] = []
        adjusted: list[tuple[int, Sequence, bytes | None]] = []
        for s, guess, row in ready:
            apart = s.request.sampling.logprobs is not None or s.request.beams is not None
            if apart or s.forks or guess.probabilities:
                continue
            if s.sampler.adjusts:
                if guess.tokens or not self._takes(s.sampler):
                    continue
                constraint = s.sampler.constraint
                assert not isinstance(constraint, LogitRules)
                try:
                    adjusted.append((row, s, None if constraint is None else constraint.mask()))
                except TilewrightError as error:
                    failed[s] = error
                    continue
            here.append((s, guess, row))
        self.draw(
            [
                (row + j, s.sampler, s.output + j)
                for s, guess, row in here
                if not s.sampler.adjusts
                for j in range(len(guess.tokens) + 1)
            ]
        )
        if adjusted:
            rows = np.array([row for row, _, _ in adjusted], np.int32)
            draws = draws_of([(s.sampler, s.output) for _, s, _ in adjusted])
            more = adjustments_of([(s.sampler, mask) for _, s, mask in adjusted], self._vocabulary)
            self.tokens[rows] = self._drawing.draw(rows, draws, more)
        decided = {
            s for s, guess, row in here if UNDECIDED not in self.tokens[row : row + len(guess.tokens) + 1]
        }
        return [e for e in ready if e[0] not in decided and e[0] not in failed], failed

    def _takes(self, sampler: Sampler) -> bool:
        """Whether the model can apply a sampler's adjustments."""
        if not sampler.adjusts:
            return True
        if isinstance(sampler.constraint, LogitRules):
            return False
        occurring, biased = len(sampler.occurrences()[0]), len(sampler.bias()[0])
        return occurring <= self._drawing.occurring and biased <= self._drawing.biased

    def logits(self, rows: Several[int]) -> Floats:
        """The logits [n, vocabulary] of these rows."""
        return np.asarray(self._drawing.logits(np.array(rows, np.int32)))


def draws_of(rows: Several[tuple[Sampler, int]]) -> Draws:
    """How tokens are drawn by samplers, each with the number of the token in its output."""
    parameters = [sampler.parameters for sampler, _ in rows]
    return Draws(
        np.array([p.temperature for p in parameters], np.float32),
        np.array([p.top_k for p in parameters], np.int32),
        np.array([p.top_p for p in parameters], np.float32),
        np.array([p.min_p for p in parameters], np.float32),
        np.array([sampler.uniform(step) for sampler, step in rows], np.float64),
    )


def adjustments_of(rows: Several[tuple[Sampler, bytes | None]], vocabulary: int) -> Adjustments:
    """The adjustments of samplers, each with the mask of its grammar, for a model of `vocabulary` tokens."""
    occurring = [sampler.occurrences() for sampler, _ in rows]
    biases = [sampler.bias() for sampler, _ in rows]
    parameters = [sampler.parameters for sampler, _ in rows]
    masks = [mask for _, mask in rows if mask is not None]
    allowed = np.zeros((max(1, len(masks)), -(-vocabulary // 8)), np.uint8)
    for row, mask in zip(allowed, masks, strict=False):
        bits = np.frombuffer(mask, np.uint8)[: len(row)]
        row[: len(bits)] = bits
    numbers = np.cumsum([mask is not None for _, mask in rows], dtype=np.int32) - 1
    return Adjustments(
        _padded([ids for ids, _ in occurring], np.int32, vocabulary),
        _padded([counts for _, counts in occurring], np.int32, 0),
        np.array([p.repetition_penalty for p in parameters], np.float32),
        np.array([p.frequency_penalty for p in parameters], np.float32),
        np.array([p.presence_penalty for p in parameters], np.float32),
        _padded([ids for ids, _ in biases], np.int32, vocabulary),
        _padded([values for _, values in biases], np.float32, 0),
        allowed,
        np.where([mask is not None for _, mask in rows], numbers, -1).astype(np.int32),
    )


def _padded(rows: Several[np.ndarray], dtype: type, rest: float) -> np.ndarray:
    """Rows of different lengths as an array of at least one column."""
    result: np.ndarray = np.full((len(rows), max(1, *map(len, rows))), rest, dtype)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row
    return result


__all__ = ["Drawn", "adjustments_of", "draws_of"]
