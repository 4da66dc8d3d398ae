"""`Drawn`: the tokens that a model draws beside its logits, for the sequences of a decoding step."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np

from ...errors import TilewrightError
from ..runner import UNDECIDED, Adjustments, Drawing, Draws, Floats
from .sampling import Sampler
from .sequence import Sequence


class Drawn:
    """The next tokens of a decoding step in which row i belongs to sequence i.

    The step itself draws for rows whose logits are not adjusted. Adjusted rows are drawn by a second call.
    """

    def __init__(self, drawing: Drawing, vocabulary: int) -> None:
        """Use `drawing`, of a model of `vocabulary` tokens."""
        self._drawing, self._vocabulary = drawing, vocabulary
        self.tokens = np.empty(0, np.int32)

    def fits(self, sequences: Several[Sequence]) -> bool:
        """Whether a step can draw for these sequences, with one row for each."""
        return len(sequences) <= self._drawing.rows

    def step(
        self, sequences: Several[Sequence], tokens: np.ndarray, lengths: np.ndarray, pages: np.ndarray
    ) -> None:
        """Decode a token of each sequence, and draw the next ones into `tokens`."""
        slots = np.array([s.slot for s in sequences], np.int32)
        draws = draws_of([(s.sampler, s.output) for s in sequences])
        self.tokens = np.asarray(self._drawing.step(tokens, lengths, pages, slots, draws))

    def decide(
        self, ready: Several[tuple[int, Sequence]]
    ) -> tuple[list[int], dict[Sequence, TilewrightError]]:
        """Finish the drawing for some rows, each with its sequence.

        Returns:
            The rows that the caller has to choose from their `logits`, and the sequences whose grammar
            failed.
        """
        failed: dict[Sequence, TilewrightError] = {}
        adjusted: list[tuple[int, Sequence, bytes | None]] = []
        host = []
        for row, s in ready:
            if s.request.sampling.logprobs is not None or s.forks or not self._takes(s.sampler):
                host.append(row)
            elif s.sampler.adjusts:
                constraint = s.sampler.constraint
                try:
                    adjusted.append((row, s, None if constraint is None else constraint.mask()))
                except TilewrightError as error:
                    failed[s] = error
        if adjusted:
            rows = np.array([row for row, _, _ in adjusted], np.int32)
            draws = draws_of([(s.sampler, s.output) for _, s, _ in adjusted])
            more = adjustments_of([(s.sampler, mask) for _, s, mask in adjusted], self._vocabulary)
            self.tokens = np.array(self.tokens)
            self.tokens[rows] = self._drawing.draw(rows, draws, more)
        undecided = (row for row, s in ready if s not in failed and self.tokens[row] == UNDECIDED)
        return sorted({*host, *undecided}), failed

    def _takes(self, sampler: Sampler) -> bool:
        """Whether the model can apply a sampler's adjustments."""
        if not sampler.adjusts:
            return True
        occurring, biased = len(sampler.occurrences()[0]), len(sampler.parameters.logit_bias)
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
