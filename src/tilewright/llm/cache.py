"""What a model definition asks of its surroundings about the tokens before: `Cache`, and two that need no compiled library."""

from __future__ import annotations

from typing import Any, Protocol

from ..errors import ShapeError
from ..frontends.nn import functional as F
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as _tnp

tnp: Any = _tnp


class Cache(Protocol):
    """The keys and values of earlier tokens, or other state, of a batch of sequences."""

    @property
    def positions(self) -> Tensor:
        """i64 [batch, n]: where in their sequences the tokens of this call stand."""
        ...

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        window: int | None = None,
        sinks: Tensor | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Append `k` and `v` [batch, n, kv_heads, d] to a layer's cache and attend causally over all that it holds: [batch, n, heads, d].

        Of `window` only so many last tokens, the own one included, are seen. `sinks` [heads] are logits that take part in the softmax and have no
        value. With `softcap` c logits are ``c tanh(logits / c)``.
        """
        ...

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        """What `set_state` was given last for these sequences, at first zeros: float32 [batch, *shape]."""
        ...

    def set_state(self, layer: int, name: str, value: Tensor) -> None:
        """Keep `value`, float32 [batch, ...], for the tokens after those of this call."""
        ...


class NoCache:
    """Whole sequences at once: `tokens` [batch, n] are all there are, and nothing is kept."""

    def __init__(self, tokens: Any) -> None:
        self.batch, self.length = tnp.asarray(tokens).shape

    @property
    def positions(self) -> Tensor:
        return tnp.broadcast_to(tnp.arange(self.length)[None], (self.batch, self.length))

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None,
        sinks: Tensor | None = None, softcap: float | None = None,
    ) -> Tensor:  # fmt: skip
        return attention(q, k, v, scale=scale, window=window, sinks=sinks, softcap=softcap)

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        return tnp.zeros((self.batch, *shape))

    def set_state(self, layer: int, name: str, value: Tensor) -> None:
        pass


class DenseCache:
    """Everything that came, in arrays that grow: for calls of any length, run at once. The reference for caches of compiled libraries.

    ``model(tokens, cache.before(tokens))`` continues the sequences by `tokens` [batch, n].
    """

    def __init__(self) -> None:
        self.length, self._new, self._batch = 0, 0, 0
        self._kept: dict[tuple[int, str], Tensor] = {}

    def before(self, tokens: Any) -> DenseCache:
        """This cache, for a call with `tokens` [batch, n].

        Raises:
            ShapeError: earlier calls had another batch.
        """
        batch, new = tnp.asarray(tokens).shape
        if self._new and batch != self._batch:
            raise ShapeError(f"the cache holds {self._batch} sequences, the call has {batch}")
        self.length, self._new, self._batch = self.length + self._new, new, batch
        return self

    @property
    def positions(self) -> Tensor:
        return tnp.broadcast_to(tnp.arange(self.length, self.length + self._new)[None], (self._batch, self._new))

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None,
        sinks: Tensor | None = None, softcap: float | None = None,
    ) -> Tensor:  # fmt: skip
        k, v = self._appended(layer, "key", k), self._appended(layer, "value", v)
        return attention(q, k, v, scale=scale, window=window, sinks=sinks, softcap=softcap)

    def _appended(self, layer: int, name: str, x: Tensor) -> Tensor:
        past = self._kept.get((layer, name))
        whole: Tensor = x if past is None else tnp.concatenate([past, x], 1)
        self._kept[layer, name] = whole
        return whole

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        kept = self._kept.get((layer, name))
        return tnp.zeros((self._batch, *shape)) if kept is None else kept

    def set_state(self, layer: int, name: str, value: Tensor) -> None:
        self._kept[layer, name] = value


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None, sinks: Tensor | None = None, softcap: float | None = None
) -> Tensor:  # fmt: skip
    """Causal attention of the last n of m tokens: q [batch, n, heads, d], k and v [batch, m, kv_heads, d]; see `Cache.attend`."""
    n, keys = q.shape[1], k.shape[1]
    row, column = tnp.arange(n)[:, None] + (keys - n), tnp.arange(keys)[None]
    # The operator's own causal mask lets row i see column j <= i, which are the right ones where no tokens came before.
    return attend_where(
        q, k, v, row, column, scale=scale, window=window, sinks=sinks, softcap=softcap, causal=n == keys
    )


def attend_where(
    q: Tensor, k: Tensor, v: Tensor, row: Tensor, column: Tensor, *, scale: float, window: int | None = None,
    sinks: Tensor | None = None, softcap: float | None = None, causal: bool = False, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of q [batch, n, heads, d] over k and v [batch, m, kv_heads, d], of which the tokens at positions `row` see those at positions `column`
    up to their own (both broadcast to [batch, 1, n, m]). `causal`: positions are places. `k_scale` and `v_scale` [batch, m, kv_heads] multiply codes."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    k_scale, v_scale = (None if x is None else x.transpose(0, 2, 1) for x in (k_scale, v_scale))
    mask = None if causal else column <= row
    if window is not None:
        near = column > row - window
        mask = near if mask is None else mask & near
    y = F.attention(q, k, v, mask, causal, scale, softcap or 0.0, k_scale=k_scale, v_scale=v_scale, sinks=sinks)
    return y.transpose(0, 2, 1, 3)  # type: ignore[no-any-return]


__all__ = ["Cache", "DenseCache", "NoCache", "attend_where", "attention"]
