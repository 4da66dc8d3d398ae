"""`Pace`: how many tokens speculation guesses in a step, decided by measured times and accepted guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SHARE = 0.025
"""Largest share of the time of plain steps that guesses may lose beyond what they have saved."""
_MOST = 12.0
"""Largest budget, in plain steps."""
_TRIED = 8.0
"""Budget, in plain steps, at which guesses that are expected to lose are tried."""
_RESUMED = 2.5
"""Budget, in plain steps, at which guesses that are expected to win are made again."""
_LONGEST = 5.0
"""Times longer than this many times the mean count as that."""
_PLAIN_FIRST = 3
"""Steps without guesses that are measured before the first guess."""
_PLAIN_AGAIN = 32
"""Steps with guesses after which one without is measured again."""
_WIDER = 16
"""Steps with guesses after which one guesses a token more, so that its acceptance is measured, too."""
_MEMORY = 0.97
"""Weight of past guesses in the shares of accepted ones, for each later guess."""


class _Time:
    """The last times of one kind of work, in seconds.

    A step that had to wait for other programs takes many times as long. It counts in full in neither of two
    means: `usual`, by which the fastest way is chosen, hardly sees it; `mean`, by which losses are added up,
    sees most of it.
    """

    __slots__ = ("_first", "mean", "usual")

    def __init__(self) -> None:
        self.mean = self.usual = 0.0
        self._first: list[float] = []

    def __bool__(self) -> bool:
        """Whether enough steps were measured."""
        return len(self._first) >= _PLAIN_FIRST

    @property
    def least(self) -> float:
        """The mean, or less if steps seem to have become faster."""
        return min(self.mean, 1.5 * self.usual)

    def limited(self, seconds: float) -> float:
        return min(seconds, _LONGEST * self.mean) if self._first else seconds

    def add(self, seconds: float) -> None:
        if len(self._first) < _PLAIN_FIRST:  # the first step may have waited for memory: the median
            self._first.append(seconds)
            self.mean = self.usual = sorted(self._first)[(len(self._first) - 1) // 2]
        else:
            self.mean += (self.limited(seconds) - self.mean) / 16
            self.usual += (min(seconds, 1.5 * self.usual) - self.usual) / 8


class Pace:
    """Chooses the number of guesses that is expected to give the most tokens in the least time, within a
    budget.

    The budget bounds the loss whatever the expectation is: plain steps add a small share of their time to it,
    steps with guesses add the plain steps that they have saved and take their own time. Guesses are made only
    while the budget covers their expected loss, so all steps so far have lost that share at most. The draft
    model's time to read the text before its first guess counts as well.

    Where no number of guesses is expected to win, the budget is saved until it pays for a series of guesses:
    only one of the tries has to read the text.
    """

    def __init__(self, most: int, adaptive: bool = True) -> None:
        """Start without measurements.

        Args:
            most: The largest number of guesses for a sequence.
            adaptive: Whether fewer are made where that is faster.
        """
        self._most, self._adaptive = most, adaptive
        self._plain: dict[int, _Time] = {}
        self._checked: dict[tuple[int, int], _Time] = {}  # by sequences and guesses, without drafting
        self._drafted: dict[int, _Time] = {}  # for a guess of each sequence
        self._reading, self._read = 0.0, 0.0  # seconds and tokens, of which earlier ones weigh less
        self._since: dict[int, int] = {}
        self._wider = 0
        self._tried, self._right = [1.0] * most, [0.9] * most  # hopeful, so that the first steps try all
        self._budget = 0.0  # seconds
        self._least = _RESUMED  # the budget, in plain steps, from which guesses are considered
        self._after = False  # whether the last step had guesses
        self._first = True  # whether no step had guesses; the first one does what is done once

    def guesses(self, sequences: int, unread: int = 0) -> int:
        """How many tokens to guess for each of this many sequences in the next step; 0: none.

        Args:
            sequences: The number of running sequences.
            unread: The tokens that a draft model must read before it can guess.
        """
        if not self._adaptive:
            return self._most
        measured = self._plain.get(sequences)
        if not measured or self._since[sequences] >= _PLAIN_AGAIN:
            return 0
        plain = measured.usual
        if self._budget < self._least * plain:
            return 0
        count, gain = 1, 0.0
        for k in range(1, self._most + 1):
            if (found := self.gain(sequences, k)) > gain:
                count, gain = k, found
        tokens, seconds = self._expected(sequences, count, plain)
        loss = seconds + self._reading_time(unread) - tokens * plain
        if loss > self._budget:
            self._least = max(_RESUMED if gain > 1 else _TRIED, loss / plain + 1)
            return 0
        self._least = 0.0
        if self._first:  # it is not yet known how long guesses take
            return 1
        if self._wider >= _WIDER and count < self._most and gain > 1:
            self._wider = 0
            return count + 1
        return count

    def readable(self) -> float:
        """The tokens that a draft model may read in this step, for which half of the budget is left."""
        if not self._adaptive:
            return math.inf
        return self._budget / 2 * self._read / self._reading if self._reading else 0.0

    def gain(self, sequences: int, count: int) -> float:
        """The expected speed of steps with `count` guesses, relative to that of plain steps."""
        plain = self._plain[sequences].usual
        tokens, seconds = self._expected(sequences, count, plain)
        return tokens * plain / seconds

    def _expected(self, sequences: int, count: int, plain: float) -> tuple[float, float]:
        """The expected tokens of a sequence and seconds of a step with `count` guesses."""
        tokens, share = 1.0, 1.0
        for right, tried in zip(self._right[:count], self._tried, strict=False):
            share *= right / tried
            tokens += share
        drafted = self._drafted.get(sequences)
        seconds = self._check(sequences, count, plain) + (drafted.usual * count if drafted is not None else 0)
        return tokens, seconds

    def _check(self, sequences: int, count: int, plain: float) -> float:
        """The time of a step that checks `count` guesses: measured, or in proportion."""
        near = (k for at in range(self._most) for k in (count - at, count + at))
        for k in near:
            if (measured := self._checked.get((sequences, k))) is not None:
                return max(plain, plain + (measured.usual - plain) * count / k)
        return plain

    def _reading_time(self, tokens: float) -> float:
        return tokens * self._reading / self._read if self._read else 0.0

    def plain_step(self, sequences: int, seconds: float) -> None:
        """Record a step without guesses."""
        plain = self._plain.setdefault(sequences, _Time())
        if self._after and plain:
            # Guesses have filled the caches; this step pays for it.
            self._after = False
            self._spend(max(0.0, plain.limited(seconds) - plain.least), plain.mean)
            return
        self._after = False
        plain.add(seconds)
        self._since[sequences] = 0
        self._spend(-_SHARE * plain.limited(seconds), plain.mean)

    def step(
        self,
        results: Sequence[tuple[int, int]],
        seconds: float,
        drafting: float = 0.0,
        reading: float = 0.0,
        read: int = 0,
    ) -> None:
        """Record a step with guesses.

        Args:
            results: The numbers of guessed and of accepted tokens of each sequence.
            seconds: The time of the whole step.
            drafting: The part of it in which the draft model guessed.
            reading: The part in which the draft model read tokens before these guesses.
            read: The number of these tokens.
        """
        sequences = len(results)
        count = -(-sum(guessed for guessed, _ in results) // sequences)
        usual, longest = seconds, seconds
        if not self._first:
            checked = self._checked.setdefault((sequences, count), _Time())
            checked.add(seconds - drafting - reading)
            usual, longest = checked.usual + reading, checked.mean + reading
            if drafting:
                drafted = self._drafted.setdefault(sequences, _Time())
                most = max(guessed for guessed, _ in results)
                drafted.add(drafting / most)
                usual, longest = usual + drafted.usual * most, longest + drafted.mean * most
            if read:
                self._reading, self._read = self._reading / 2 + reading, self._read / 2 + read
        self._first = False
        for guessed, accepted in results:
            for place in range(min(guessed, accepted + 1)):
                self._tried[place] = _MEMORY * self._tried[place] + 1
                self._right[place] = _MEMORY * self._right[place] + (place < accepted)
        self._wider += 1
        self._since[sequences] = self._since.get(sequences, 0) + 1
        self._after = True
        if (plain := self._plain.get(sequences)) is not None:
            tokens = 1 + sum(accepted for _, accepted in results) / sequences
            # Where this step was faster than such steps were, plain steps would be, too. One that had to wait
            # for other programs is no sign that guesses lose.
            saved = tokens * plain.least * min(1.0, seconds / usual)
            self._spend(min(seconds, _LONGEST * longest) - saved, plain.mean)

    def _spend(self, seconds: float, plain: float) -> None:
        """Take time from the budget. It has a largest value, so that time saved long ago is not lost now, and
        a least one, since the first step with guesses may have loaded the draft model's weights.
        """
        most = max(_MOST, self._least) * plain
        self._budget = max(-_RESUMED * plain, min(most, self._budget - seconds))


__all__ = ["Pace"]
