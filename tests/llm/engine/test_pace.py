"""`Pace` guesses where measured times say that it wins, and loses little where it does not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tilewright.llm.engine.pace import Pace

PLAIN = 0.010  # seconds of a step without guesses


def steady(step: int) -> float:
    return 1.0


def waves(step: int) -> float:
    """A load of the machine that changes threefold."""
    return 3.0 if step // 150 % 2 else 1.0


def speed(
    pace: Pace,
    share: float,
    draft: float,
    row: float,
    steps: int,
    sequences: int = 1,
    load: Callable[[int], float] = steady,
) -> float:
    """The tokens per second of `steps` steps relative to plain ones at the same load.

    Args:
        pace: Decides.
        share: The probability that a guess is right.
        draft: Seconds of a guess.
        row: Seconds by which a step is longer for each guess of a sequence.
        steps: The number of steps.
        sequences: The sequences of each step.
        load: How many times as long as on an idle machine a step takes, by its number.
    """
    draw, seconds, tokens = random.Random(0), 0.0, 0
    for step in range(steps):
        noise = draw.uniform(0.95, 1.1) if draw.random() < 0.97 else 4.0
        noise *= load(step)
        count = pace.guesses(sequences)
        accepted = []
        for _ in range(sequences):
            right = 0
            while right < count and draw.random() < share:
                right += 1
            accepted.append((count, right))
        tokens += sequences + sum(right for _, right in accepted)
        took = noise * (PLAIN + sequences * count * row + count * draft)
        seconds += took / noise
        if count:
            pace.step(accepted, took, noise * count * draft, 0.0)
        else:
            pace.plain_step(sequences, took)
    return tokens * PLAIN / (sequences * seconds)


@pytest.mark.parametrize("load", [steady, waves])
@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize(
    ("share", "draft", "row"),
    [(0.0, 0.010, 0.010), (0.1, 0.0025, 0.002), (0.5, 0.008, 0.004), (0.0, 0.0, 0.003)],
    ids=["as slow as the model", "seldom right", "slow", "lookup, never right"],
)
def test_guesses_that_lose_are_given_up(
    share: float, draft: float, row: float, sequences: int, load: Callable[[int], float]
) -> None:
    assert speed(Pace(4), share, draft, row, 1000, sequences, load) > 0.96
    fixed = Pace(4, adaptive=False)
    assert speed(fixed, share, draft, row, 300, sequences) < 0.96, "the case would lose without measuring"


@pytest.mark.parametrize("load", [steady, waves])
def test_guesses_that_win_are_made(load: Callable[[int], float]) -> None:
    expected = (1 - 0.8**5) / (1 - 0.8) * PLAIN / (PLAIN + 4 * 0.0025)
    assert speed(Pace(4), 0.8, 0.002, 0.0005, 1000, load=load) > 0.93 * expected > 1.5


def test_the_number_of_guesses_follows_their_acceptance() -> None:
    """Half of the guesses are right, so four are too many."""
    few, pace = speed(Pace(1), 0.5, 0.002, 0.0005, 1000), Pace(8)
    assert speed(pace, 0.5, 0.002, 0.0005, 1000) > 0.93 * few
    assert speed(Pace(8, adaptive=False), 0.5, 0.002, 0.0005, 1000) < 0.95 * few
    assert pace.guesses(1) < 4


def test_guesses_are_tried_again() -> None:
    pace = Pace(4)
    assert speed(pace, 0.05, 0.002, 0.0005, 2000) > 0.96
    assert speed(pace, 0.9, 0.002, 0.0005, 3000) > 1.8, "the text has become easy to guess"
    assert speed(pace, 0.0, 0.002, 0.0005, 3000) > 0.95


def test_each_number_of_sequences_is_measured() -> None:
    pace = Pace(4)
    assert speed(pace, 0.8, 0.002, 0.0005, 300) > 1.4
    assert pace.guesses(1) and not pace.guesses(2), "steps of two sequences are not yet measured"


def test_a_draft_that_becomes_slow_loses_little() -> None:
    """Its time grows to that of a model's step, and the steps before tell that it wins."""
    pace = Pace(4)
    assert speed(pace, 0.8, 0.002, 0.0005, 1000) > 1.4
    assert speed(pace, 0.8, 0.010, 0.0005, 2000) > 0.95
