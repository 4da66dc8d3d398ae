"""What an engine counts and measures, for its metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0)
"""Upper bounds of the histograms' buckets."""


@dataclass
class Histogram:
    """How often a time lay in which range."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    """Of each bucket: times up to its bound in `SECONDS`, above the one before; the last is for all that is longer."""
    sum: float = 0.0
    """Of all times, in seconds."""

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def copy(self) -> Histogram:
        return Histogram(self.counts.copy(), self.sum)


@dataclass
class Statistics:
    """Since the engine was made, except for what is said to be of this moment."""

    running: int = 0
    """Sequences that hold a slot, now."""
    waiting: int = 0
    """Sequences in the queue, now."""
    pages: int = 0
    """Of the KV cache in all."""
    pages_used: int = 0
    """That running sequences hold, now."""
    pages_kept: int = 0
    """That nobody uses, kept for prefixes to come, now."""
    requests: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Choices by their reason: "stop", "length", "cancelled", "error"."""
    prompt_tokens: int = 0
    """Of admitted prompts."""
    cached_tokens: int = 0
    """Of these, found in the prefix cache."""
    generated_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    """Pages taken out of the prefix cache for want of memory."""
    steps: int = 0
    proposed_tokens: int = 0
    """By speculation."""
    accepted_tokens: int = 0
    """Of these, those that the model agreed with."""
    queue_time: Histogram = field(default_factory=Histogram)
    """From `submit` to the first time a slot was free."""
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token: Histogram = field(default_factory=Histogram)
    """Between two tokens of a choice; those of one speculative step share its time."""
    request_time: Histogram = field(default_factory=Histogram)
    """From `submit` to a choice's end."""

    def copy(self) -> Statistics:
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        copied: dict[str, Any] = {name: v if isinstance(v, int) else v.copy() for name, v in values.items()}
        return Statistics(**copied)
