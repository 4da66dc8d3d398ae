"""Attention in tiles of queries, some of which see no key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.devices import need, running

import tilewright as tw
from tilewright.schedule.kernel_schedule import pin

BEHIND = 20
"""A query sees the keys that are so many places before it."""


def late(q: Any, k: Any, v: Any) -> Any:
    rows, columns = tw.numpy.arange(q.shape[2]).reshape(-1, 1), tw.numpy.arange(k.shape[2])
    return tw.nn.functional.attention(q, k, v, columns <= rows - BEHIND)


@pytest.mark.parametrize("target", ["cuda", "opencl"])
def test_tiles_of_queries_without_keys(target: str) -> None:
    """The loop over blocks of keys runs no iteration for the first tile, with barriers in it."""
    need(target)
    rng, tiles = np.random.default_rng(0), pin("attention*", rows=16, columns=16)
    first = rng.normal(size=(3, 1, 2, 40, 16)).astype(np.float32)
    library = tw.compile(
        late, tuple(first), target=target, dims={x: {2: "n"} for x in "qkv"}, schedules=[tiles], cache=False
    )
    for n in (7, 40, 64):
        q, k, v = rng.normal(size=(3, 1, 2, n, 16)).astype(np.float32)
        seen = np.arange(n) <= np.arange(n)[:, None] - BEHIND
        weights = np.where(seen, np.exp(q.astype(np.float64) @ k.swapaxes(2, 3) / 4), 0)
        wanted = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v
        found = running(library, checked=target == "cuda")(q, k, v)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
