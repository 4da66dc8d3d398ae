"""Attention over the contents of a cache, compared with the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ShapeError
from tilewright.llm.cache import DenseCache, NoCache


def formula(
    q: Any, k: Any, v: Any, scale: float, window: int | None, sinks: Any, softcap: float | None
) -> Any:
    """Return attention for inputs of shape [batch, n, heads, d], computed one row at a time."""
    y = np.zeros_like(q)
    for b, i, h in np.ndindex(*q.shape[:3]):
        group = h * k.shape[2] // q.shape[2]
        first = 0 if window is None else max(0, i - window + 1)
        s = k[b, first : i + 1, group] @ q[b, i, h] * scale
        s = s if softcap is None else softcap * np.tanh(s / softcap)
        e = np.exp(s)
        total = e.sum() + (0 if sinks is None else np.exp(sinks[h]))
        y[b, i, h] = e @ v[b, first : i + 1, group] / total
    return y


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_attend(window: int | None, sinks: bool, softcap: float | None) -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 9, heads, 8)).astype(np.float32) for heads in (6, 3, 3))
    logits = random.standard_normal(6).astype(np.float32) if sinks else None
    options: Any = {
        "scale": 0.7,
        "window": window,
        "sinks": None if logits is None else tw.Tensor(logits),
        "softcap": softcap,
    }
    expected = formula(q, k, v, 0.7, window, logits, softcap)
    tokens = np.zeros((2, 9), np.int64)
    x = [tw.Tensor(t) for t in (q, k, v)]
    whole = NoCache(tokens)
    np.testing.assert_allclose(whole.attend(0, *x, **options), expected, atol=1e-5)
    np.testing.assert_allclose(whole.attend_again(0, x[0], **options), expected, atol=1e-5)
    cache, found, again = DenseCache(), [], []
    for a, b in ((0, 4), (4, 5), (5, 9)):
        now = cache.before(tokens[:, a:b])
        assert now.positions.tolist() == [list(range(a, b))] * 2
        now.attend(1, *(2.0 * t[:, a:b] for t in x), **options)
        found.append(now.attend(0, *(t[:, a:b] for t in x), **options))
        again.append(now.attend_again(0, x[0][:, a:b], **options))
    for parts in (found, again):
        np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=1e-5)


def test_state() -> None:
    cache = DenseCache().before(np.zeros((2, 3)))
    assert cache.state(0, "conv", (4,)).tolist() == [[0.0] * 4] * 2
    cache.set_state(0, "conv", tw.Tensor([[1.0], [2.0]]))
    assert cache.state(0, "conv", (1,)).tolist() == [[1.0], [2.0]]
    assert cache.state(1, "conv", (1,)).tolist() == [[0.0], [0.0]]
    with pytest.raises(ShapeError, match="holds 2 sequences, the call has 1"):
        cache.before(np.zeros((1, 3)))
