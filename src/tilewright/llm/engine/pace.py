"""`Pace`: how many tokens speculation guesses in a step, decided by measured times and accepted guesses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

_PLAIN_FIRST = 3
"""Steps without guesses that are measured before the first guess."""
_PLAIN_AGAIN = 32
"""Steps with guesses after which one without is measured again."""
_WIDER = 16
"""Steps with guesses after which one guesses a token more, so that its acceptance is measured, too."""
_SHARE = 0.02
"""Largest share of the time that may be lost by guesses which did not pay."""
_LIMIT = 12
"""Lost time, in steps, at which guessing pauses although it is expected to win."""
_MEMORY = 0.97
"""Weight of past guesses in the shares of accepted ones, for each later guess."""


class _Times:
    """The last times of one kind of work, in seconds. The median is not moved by a step that had to wait."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=9)

    def __len__(self) -> int:
        return len(self._last)

    def add(self, seconds: float) -> None:
        self._last.append(seconds)

    @property
    def median(self) -> float:
        return median(self._last)


class Pace:
    """Chooses the number of guesses that is expected to give the most tokens in the least time.

    The expected tokens follow from the share of accepted guesses at each place, the time from medians of
    steps with as many sequences and guesses. Where no number of guesses is expected to win, steps are plain,
    and a step with guesses is tried again only when plain steps have earned its expected loss: losses are
    limited to a share of the time.
    """

    def __init__(self, most: int, adaptive: bool = True) -> None:
        """Start without measurements.

        Args:
            most: The largest number of guesses for a sequence.
            adaptive: Whether fewer are made where that is faster.
        """
        self._most, self._adaptive = most, adaptive
        self._plain: dict[int, _Times] = {}
        self._checked: dict[tuple[int, int], _Times] = {}  # by sequences and guesses, without drafting
        self._drafted: dict[int, _Times] = {}  # for a guess of each sequence
        self._since: dict[int, int] = {}
        self._wider = 0
        self._tried, self._right = [1.0] * most, [0.9] * most  # hopeful, so that the first steps try all
        self._lost = 0.0

    def guesses(self, sequences: int) -> int:
        """How many tokens to guess for each of this many sequences in the next step; 0: none."""
        if not self._adaptive:
            return self._most
        plain = self._plain.get(sequences)
        if plain is None or len(plain) < _PLAIN_FIRST or self._since.get(sequences, 0) >= _PLAIN_AGAIN:
            return 0
        step = plain.median
        count = max(range(1, self._most + 1), key=lambda k: self.gain(sequences, k))
        wins = self.gain(sequences, count) > 1 and self._lost <= _LIMIT * step
        if not wins and self._lost > 0:
            return 0
        if self._wider >= _WIDER and count < self._most:
            self._wider = 0
            return count + 1
        return count

    def gain(self, sequences: int, count: int) -> float:
        """The expected speed of steps with `count` guesses, relative to that of plain steps."""
        plain = self._plain[sequences].median
        drafted = self._drafted.get(sequences)
        seconds = self._check(sequences, count, plain) + (drafted.median if drafted else 0.0) * count
        tokens, share = 1.0, 1.0
        for right, tried in zip(self._right[:count], self._tried, strict=False):
            share *= right / tried
            tokens += share
        return tokens * plain / seconds

    def _check(self, sequences: int, count: int, plain: float) -> float:
        """The time of a step that checks `count` guesses: measured, or in proportion."""
        known = [k for n, k in self._checked if n == sequences]
        if not known:
            return plain
        nearest = min(known, key=lambda k: abs(k - count))
        measured = self._checked[sequences, nearest].median
        return max(plain, plain + (measured - plain) * count / nearest)

    def plain_step(self, sequences: int, seconds: float) -> None:
        """Record a step without guesses."""
        self._plain.setdefault(sequences, _Times()).add(seconds)
        self._since[sequences] = 0
        self._lost = max(0.0, self._lost - _SHARE * seconds)

    def step(
        self, results: Sequence[tuple[int, int]], seconds: float, drafting: float, catching_up: float
    ) -> None:
        """Record a step with guesses.

        Args:
            results: The numbers of guessed and of accepted tokens of each sequence.
            seconds: The time of the whole step.
            drafting: The part of it in which the draft model guessed.
            catching_up: The part in which the draft model computed tokens of earlier plain steps.
        """
        sequences = len(results)
        count = -(-sum(guessed for guessed, _ in results) // sequences)
        self._checked.setdefault((sequences, count), _Times()).add(seconds - drafting - catching_up)
        if drafting:
            self._drafted.setdefault(sequences, _Times()).add(drafting / max(g for g, _ in results))
        for guessed, accepted in results:
            for place in range(min(guessed, accepted + 1)):
                self._tried[place] = _MEMORY * self._tried[place] + 1
                self._right[place] = _MEMORY * self._right[place] + (place < accepted)
        self._wider += 1
        self._since[sequences] = self._since.get(sequences, 0) + 1
        if (plain := self._plain.get(sequences)) is not None:
            tokens = 1 + sum(accepted for _, accepted in results) / sequences
            usual = self._check(sequences, count, plain.median) + catching_up
            usual += self._drafted[sequences].median * count if drafting else 0.0
            # A step that had to wait for other programs is no sign that guesses lose.
            self._lost = max(0.0, self._lost + min(seconds, 1.5 * usual) - tokens * plain.median)


__all__ = ["Pace"]
