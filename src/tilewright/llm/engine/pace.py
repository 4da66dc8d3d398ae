"""`Pace`: how many tokens speculation guesses in a step, decided by measured times and accepted guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_SHARE = 0.025
"""Largest share of the time of plain steps that guesses may lose beyond what they have saved."""
_MOST = 12.0
"""Largest budget, in plain steps."""
_TRIED = 8.0
"""Budget, in plain steps, at which guesses that are expected to lose are tried."""
_RESUMED = 2.5
"""Budget, in plain steps, at which guesses that are expected to win are made again."""
_PLAIN_FIRST = 3
"""Steps without guesses that are measured before the first guess."""
_PLAIN_AGAIN = 32
"""Steps after which steps without guesses are measured again."""
_UNKNOWN = 4
"""Steps with guesses after which this is done where it is not yet known how long such steps take."""
_CHANGED = 1.5
"""Ratio of the times of plain steps before and after a series above which the machine's load has changed."""
_WAITED = 1.5
"""Steps longer than this many times the usual one count as that in a series: they waited for other programs,
as plain steps do.
"""
_LONGEST = 3.0
"""As `_WAITED`, until the series has ended and its costs are known."""
_WIDER = 16
"""Steps with guesses after which one guesses a token more, so that its acceptance is measured, too."""
_MEMORY = 0.97
"""Weight of past guesses in the shares of accepted ones, for each later guess."""


class _Plain:
    """The last times of steps without guesses, in seconds."""

    def __init__(self) -> None:
        self.count = 0
        """The number of these steps."""
        self.at = 0
        """The number of the last one among all steps."""
        self.last = self.least = 0.0
        """The time of the last one, and the lesser of those of the last two if they were successive: one
        that had to wait for other programs is no measure.
        """

    def add(self, seconds: float, at: int) -> None:
        self.least = min(seconds, self.last) if self.count and at == self.at + 1 else seconds
        self.count, self.at, self.last = self.count + 1, at, seconds


@dataclass(frozen=True)
class _Round:
    """A step with guesses."""

    count: int
    """Guesses of a sequence, rounded up."""
    most: int
    """Guesses of a sequence, the most."""
    checking: float
    """Seconds without those of the draft model."""
    drafting: float
    """Seconds in which the draft model guessed."""
    reading: float
    """Seconds in which it read."""
    read: int
    """The tokens that it read."""
    booked: float
    """The plain steps that were taken from the budget for it."""


class Pace:
    """Chooses the number of guesses that is expected to give the most tokens in the least time, within a
    budget.

    The unit of costs is the plain step, one without guesses. Steps with guesses form series between plain
    steps. Their times are compared with those of the plain steps just before and just after, and not at all
    if these differ much: the load of the machine has changed in between, so that only costs measured earlier
    are known. Costs are therefore about the same on a busy and on an idle machine.

    The budget bounds the loss whatever the expectation is: plain steps add a small share of a step to it,
    steps with guesses add the plain steps that they have saved and take their own costs. Guesses are made
    only while the budget covers their expected loss, so all steps so far have lost that share at most. During
    a series, a step takes its time relative to the plain steps before, but no less than its usual cost: if it
    is faster, plain steps would be, too. The end of the series corrects that. The draft model's time to read
    the text before its first guess counts as well.

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
        self._steps = 0
        self._plain: dict[int, _Plain] = {}  # by sequences
        self._checked: dict[tuple[int, int], float] = {}  # by sequences and guesses, without drafting
        self._drafted: dict[int, float] = {}  # for a guess of each sequence
        self._read: float | None = None  # for a token
        self._series: list[_Round] = []  # steps whose costs are not yet known,
        self._sequences = 0  # of so many sequences,
        self._before = 0.0  # the seconds of plain steps before them,
        self._after: float | None = None  # and of the first one after them
        self._wanted = False  # whether the next step was to have guesses
        self._wider = 0
        self._tried, self._right = [1.0] * most, [0.9] * most  # hopeful, so that the first steps try all
        self._budget = 0.0
        self._least = _RESUMED  # the budget from which guesses are considered
        self._first = True  # whether no step had guesses; the first one does what is done once

    def guesses(self, sequences: int, unread: int = 0) -> int:
        """How many tokens to guess for each of this many sequences in the next step; 0: none.

        Args:
            sequences: The number of running sequences.
            unread: The tokens that a draft model must read before it can guess.
        """
        count = self._count(sequences, unread) if self._adaptive else self._most
        self._wanted = count > 0
        return count

    def _count(self, sequences: int, unread: int) -> int:
        plain = self._plain.get(sequences)
        if plain is None or plain.count < _PLAIN_FIRST or self._steps - plain.at >= _PLAIN_AGAIN:
            return 0
        if self._series and self._sequences == sequences:
            longest = _UNKNOWN if self._price(sequences, 1) is None else _PLAIN_AGAIN
            if self._after is not None or len(self._series) >= longest:
                return 0
        if self._budget < self._least:
            return 0
        count, gain = 1, 0.0
        for k in range(1, self._most + 1):
            if (found := self.gain(sequences, k)) > gain:
                count, gain = k, found
        loss = self._expected(count) * (1 / gain - 1) + unread * (self._read or 0.0)
        if loss > self._budget:
            self._least = max(_RESUMED if gain > 1 else _TRIED, loss + 1)
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
        return self._budget / 2 / self._read if self._read else 0.0

    def gain(self, sequences: int, count: int) -> float:
        """The expected speed of steps with `count` guesses, relative to that of plain steps."""
        return self._expected(count) / (self._price(sequences, count) or 1.0)

    def _expected(self, count: int) -> float:
        """The expected tokens of a sequence in a step with `count` guesses."""
        tokens, share = 1.0, 1.0
        for right, tried in zip(self._right[:count], self._tried, strict=False):
            share *= right / tried
            tokens += share
        return tokens

    def _price(self, sequences: int, count: int) -> float | None:
        """The usual cost of a step with `count` guesses: measured, or in proportion; None: nothing is."""
        drafting = count * self._drafted.get(sequences, 0.0)
        near = (k for at in range(self._most) for k in (count - at, count + at))
        for k in near:
            if (measured := self._checked.get((sequences, k))) is not None:
                return max(1.0, 1 + (measured - 1) * count / k) + drafting
        return None

    def plain_step(self, sequences: int, seconds: float) -> None:
        """Record a step without guesses."""
        if not self._adaptive:
            return
        self._steps += 1
        self._earn(_SHARE)
        if self._series and self._sequences != sequences:
            self._settle(self._before)
        plain = self._plain.setdefault(sequences, _Plain())
        plain.add(seconds, self._steps)
        if not self._series:
            return
        if self._wanted:  # nothing was found to guess
            self._settle(seconds)
        elif self._after is None:
            self._after = seconds
        else:
            # Guesses have filled the caches; the steps after them have paid for it.
            usual = min(self._before, plain.least)
            if plain.least <= _CHANGED * usual:
                self._earn(-sum(min(1.0, took / usual - 1) for took in (self._after, seconds)))
            self._settle(plain.least)

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
        if not self._adaptive:
            return
        self._steps += 1
        for guessed, accepted in results:
            for place in range(min(guessed, accepted + 1)):
                self._tried[place] = _MEMORY * self._tried[place] + 1
                self._right[place] = _MEMORY * self._right[place] + (place < accepted)
        self._wider += 1
        sequences = len(results)
        if (plain := self._plain.get(sequences)) is None:  # fewer than were to guess: the cache is full
            return
        if self._series and (self._sequences != sequences or self._after is not None):
            self._settle(self._before)
        if not self._series:
            self._sequences, self._before = sequences, plain.least
        count = -(-sum(guessed for guessed, _ in results) // sequences)
        cost, usual = seconds / self._before, self._price(sequences, count)
        if usual is not None:
            usual += read * (self._read or reading / self._before / max(1, read))
            cost = max(usual, min(cost, _LONGEST * usual))
        if self._first:
            self._first, cost = False, min(cost, _RESUMED)
        else:
            most = max(guessed for guessed, _ in results)
            checking = seconds - drafting - reading
            self._series.append(_Round(count, most, checking, drafting, reading, read, cost))
        self._earn(1 + sum(accepted for _, accepted in results) / sequences - cost)

    def _settle(self, after: float) -> None:
        """End the series: learn what its steps have cost, and take that from the budget in place of what was
        taken for each of them.

        Args:
            after: The seconds of plain steps after it.
        """
        series, before, sequences = self._series, self._before, self._sequences
        self._series, self._after = [], None
        changed = max(before, after) > _CHANGED * min(before, after)
        plain = min(before, after)  # the draft model may have displaced the weights that the other one read
        if not changed:
            for count in {step.count for step in series}:
                times = [step.checking / plain for step in series if step.count == count]
                self._checked[sequences, count] = _learned(self._checked.get((sequences, count)), times)
            if drafted := [step.drafting / step.most / plain for step in series if step.drafting]:
                self._drafted[sequences] = _learned(self._drafted.get(sequences), drafted)
            if read := [step.reading / step.read / plain for step in series if step.read]:
                self._read = _learned(self._read, read)
        for step in series:
            usual = self._price(sequences, step.count)
            if usual is None:
                continue
            usual += step.read * (self._read or 0.0)
            spent = (step.checking + step.drafting + step.reading) / plain
            self._earn(step.booked - (usual if changed else min(spent, _WAITED * usual)))

    def _earn(self, steps: float) -> None:
        """Add to the budget, which has a largest value, so that time saved long ago is not lost now."""
        self._budget = min(max(_MOST, self._least), self._budget + steps)


def _learned(usual: float | None, costs: Sequence[float]) -> float:
    """The usual one of some costs, after those before."""
    middle = median(costs)
    for cost in costs:
        usual = middle if usual is None else usual + (min(cost, _WAITED * middle) - usual) / 8
    assert usual is not None
    return usual


__all__ = ["Pace"]
