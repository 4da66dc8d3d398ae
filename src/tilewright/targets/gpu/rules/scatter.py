"""The rule of running combinations (cumulative sums): a thread for each line."""

from __future__ import annotations

from ....schedule import Schedule
from .plain import plain


def scatter(s: Schedule, rows: int) -> None:
    plain(s, rows)
