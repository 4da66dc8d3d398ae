"""Libraries that compute attention over a paged cache, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.llm.paged_cache import PagedCache, Pages

HEADS, KV_HEADS, SIZE = 6, 2, 24


def library(
    dtype: str, pages: int, *, precision: str | None = None, target: str = "cpu", again: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """Return a library that computes attention for chunks of one sequence and for single tokens of a batch;
    with `again`, the mean of it and of that of a second layer that reads the same keys and values.
    """
    states = Pages(20, dtype)

    def attend(q: Any, k: Any, v: Any, lengths: Any, table: Any) -> Any:
        cache = PagedCache(states, q.shape[1], lengths, table)
        y = cache.attend(0, q, k, v, **options)
        return (y + cache.attend_again(0, q, **options)) / 2 if again else y

    def arguments(batch: int, n: int) -> Any:
        heads = [np.zeros((batch, n, h, SIZE), np.float32) for h in (HEADS, KV_HEADS, KV_HEADS)]
        return (*heads, np.zeros(batch, np.int32), np.zeros((batch, 2), np.int32))

    rows = {name: {1: "n<=64"} for name in "qkv"}
    batch = {name: {0: "b<=3"} for name in ("q", "k", "v", "lengths")}
    functions = {
        "prefill": (attend, arguments(1, 2), {**rows, "table": {1: f"p<={pages}"}}),
        "decode": (attend, arguments(2, 1), {**batch, "table": {0: "b<=3", 1: f"p<={pages}"}}),
    }
    return tw.compile(functions, cache=False, precision=precision, target=target)


__all__ = ["HEADS", "KV_HEADS", "SIZE", "library"]
