"""Counts and times of an engine, for its metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0)
"""Upper bounds of the histograms' buckets, in seconds."""


@dataclass
class Histogram:
    """A histogram of times."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    """Number of times in each bucket: those up to its bound in `SECONDS` and above the previous bound. The
    last bucket holds all longer times.
    """
    sum: float = 0.0
    """The sum of all times, in seconds."""

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def copy(self) -> Histogram:
        return Histogram(self.counts.copy(), self.sum)


@dataclass
class Statistics:
    """Counts and times since the engine was made; values marked "now" are current ones."""

    running: int = 0
    """Sequences that hold a slot, now."""
    waiting: int = 0
    """Sequences in the queue, now."""
    pages: int = 0
    """Total pages of the KV cache."""
    pages_used: int = 0
    """Pages that running sequences hold, now."""
    pages_kept: int = 0
    """Unused pages that are kept for later prompts, now."""
    requests: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Finished choices by reason: "stop", "length", "cancelled", "error"."""
    prompt_tokens: int = 0
    """Tokens of admitted prompts."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache."""
    generated_tokens: int = 0
    forced_tokens: int = 0
    """Generated tokens that were the only ones a grammar allowed, for which no step was made."""
    preemptions: int = 0
    evictions: int = 0
    """Pages evicted from the prefix cache to free memory."""
    reply_tokens: int = 0
    """Tokens of conversations that were computed while the engine was idle, for their next turns."""
    pages_written: int = 0
    """Pages written to files."""
    pages_read: int = 0
    """Pages read from files, in place of computing them."""
    pages_refused: int = 0
    """Files of pages that were damaged or foreign."""
    pages_released: int = 0
    """Pages of running sequences that were freed because no later token sees their tokens."""
    steps: int = 0
    proposed_tokens: int = 0
    """Tokens proposed by speculation."""
    accepted_tokens: int = 0
    """Proposed tokens that were accepted."""
    queue_time: Histogram = field(default_factory=Histogram)
    """Seconds from `submit` to the first time the choice got a slot."""
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token: Histogram = field(default_factory=Histogram)
    """Seconds between two tokens of a choice; the tokens of one speculative step share its time."""
    request_time: Histogram = field(default_factory=Histogram)
    """Seconds from `submit` to a choice's end."""

    def copy(self) -> Statistics:
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        copied: dict[str, Any] = {name: v if isinstance(v, int) else v.copy() for name, v in values.items()}
        return Statistics(**copied)
