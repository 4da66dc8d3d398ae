"""The interface between a model definition and its KV cache: `Cache`, and two implementations without a
compiled library.
"""

from __future__ import annotations

from typing import Any, Protocol, TypedDict, Unpack

import numpy as np

from ..errors import CompileError, ShapeError
from ..frontends.nn import functional as F
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.tensor import TensorLike


class ScoreOptions(TypedDict, total=False):
    """How the scores of attention follow from the products of queries and keys, beside their factor."""

    window: int | None
    """Number of most recent tokens that are visible, the current one included; None for all."""
    sinks: Tensor | None
    """Scores [heads] that take part in the softmax and have no value."""
    softcap: float | None
    """A bound c; scores become ``c tanh(scores / c)``."""
    slopes: np.ndarray[Any, Any] | None
    """Factors [heads], float32, of a key's position minus the query's, which are added to scores."""
    chunk: int | None
    """Only tokens whose positions, divided by this number, have the query's quotient are visible."""


class Cache(Protocol):
    """The keys and values, or other state, of the earlier tokens of a batch of sequences."""

    @property
    def positions(self) -> Tensor:
        """The positions of this call's tokens in their sequences: i64 [batch, n]."""
        ...

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor | int, *, scale: float,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:  # fmt: skip
        """Append `k` and `v` to a layer's cache and attend causally over its whole content.

        Args:
            layer: The number of the layer.
            q: Queries [batch, n, heads, d].
            k: Keys [batch, n, kv_heads, d].
            v: Values [batch, n, kv_heads, e]; a number e: the first e elements of the keys are the values.
            scale: The factor of the scores.
            options: See `ScoreOptions`.

        Returns:
            [batch, n, heads, e].
        """
        ...

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        """The value last given to `set_state` for these sequences, initially zeros: float32 [batch,
        *shape].
        """
        ...

    def set_state(self, layer: int, name: str, value: Tensor) -> None:
        """Store `value`, float32 [batch, ...], for the tokens that follow this call."""
        ...


class NoCache:
    """Processes whole sequences at once: `tokens` [batch, n] are complete, and nothing is stored."""

    def __init__(self, tokens: TensorLike) -> None:
        self.batch, self.length = tnp.asarray(tokens).shape

    @property
    def positions(self) -> Tensor:
        return tnp.broadcast_to(tnp.arange(self.length)[None], (self.batch, self.length))

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor | int, *, scale: float,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:  # fmt: skip
        return attention(q, k, v, scale=scale, **options)

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        return tnp.zeros((self.batch, *shape))

    def set_state(self, layer: int, name: str, value: Tensor) -> None:
        pass


class Bidirectional(NoCache):
    """Processes whole sequences whose tokens see each other in both directions.

    A window of w tokens lets positions attend that differ by less than w.
    """

    def __init__(
        self, tokens: TensorLike, mask: TensorLike | None = None, bias: Tensor | None = None
    ) -> None:
        """Prepare a call.

        Args:
            tokens: The tokens [batch, n].
            mask: Nonzero where there is a token, numbers or bools [batch, n]; None: everywhere.
            bias: Numbers that are added to scores, broadcast to [batch, heads, n, n]; None: none.
        """
        super().__init__(tokens)
        self._there = None if mask is None else tnp.astype(mask, bool)[:, None, None]
        self._bias = bias

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor | int, *, scale: float,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:  # fmt: skip
        for name in ("slopes", "chunk"):
            if options.get(name) is not None:
                raise CompileError(f"attention in both directions has no {name}")
        v = k[..., :v] if isinstance(v, int) else v
        mask, window = self._there, options.get("window")
        if window is not None:
            place = tnp.arange(self.length)
            near = tnp.abs(place[:, None] - place[None]) < window
            mask = near if mask is None else mask & near
        if self._bias is not None:
            mask = self._bias if mask is None else tnp.where(mask, self._bias, float("-inf"))
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        y = F.attention(
            q, k, v, mask, scale=scale, softcap=options.get("softcap") or 0.0, sinks=options.get("sinks")
        )
        result: Tensor = y.transpose(0, 2, 1, 3)
        return result


class DenseCache:
    """Keeps everything in arrays that grow, for calls of any length. It is the reference for the caches of
    compiled libraries.

    ``model(tokens, cache.before(tokens))`` continues the sequences by `tokens` [batch, n].
    """

    def __init__(self) -> None:
        self.length, self._new, self._batch = 0, 0, 0
        self._kept: dict[tuple[int, str], Tensor] = {}

    def before(self, tokens: TensorLike) -> DenseCache:
        """This cache, prepared for a call with `tokens` [batch, n].

        Raises:
            ShapeError: earlier calls had another batch size.
        """
        batch, new = tnp.asarray(tokens).shape
        if self._new and batch != self._batch:
            raise ShapeError(f"the cache holds {self._batch} sequences, the call has {batch}")
        self.length, self._new, self._batch = self.length + self._new, new, batch
        return self

    @property
    def positions(self) -> Tensor:
        return tnp.broadcast_to(
            tnp.arange(self.length, self.length + self._new)[None], (self._batch, self._new)
        )

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor | int, *, scale: float,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:  # fmt: skip
        k = self._appended(layer, "key", k)
        v = v if isinstance(v, int) else self._appended(layer, "value", v)
        return attention(q, k, v, scale=scale, **options)

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
    q: Tensor, k: Tensor, v: Tensor | int, *, scale: float, **options: Unpack[ScoreOptions]
) -> Tensor:
    """Causal attention of the last n of m tokens; see `Cache.attend`.

    `q` is [batch, n, heads, d], `k` is [batch, m, kv_heads, d], `v` [batch, m, kv_heads, e] or e.
    """
    n, keys = q.shape[1], k.shape[1]
    row, column = tnp.arange(n)[:, None] + (keys - n), tnp.arange(keys)[None]
    # The operator's causal mask lets row i see columns j <= i, which is correct if there are no earlier
    # tokens.
    return attend_where(q, k, v, row, column, scale=scale, causal=n == keys, **options)


def attend_where(
    q: Tensor, k: Tensor, v: Tensor | int, row: Tensor, column: Tensor, *, scale: float,
    causal: bool = False, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
    **options: Unpack[ScoreOptions],
) -> Tensor:  # fmt: skip
    """Attention over the tokens whose position `column` is at most the query's position `row`.

    `q` is [batch, n, heads, d], `k` is [batch, m, kv_heads, d], `v` [batch, m, kv_heads, e] or e; both
    positions broadcast to [batch, 1, n, m]. `causal` states that positions equal indices. `k_scale` and
    `v_scale` [batch, m, kv_heads] multiply quantized keys and values.
    """
    v = k[..., :v] if isinstance(v, int) else v
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    k_scale, v_scale = (None if x is None else x.transpose(0, 2, 1) for x in (k_scale, v_scale))
    mask = None if causal else column <= row
    window, chunk, slopes = options.get("window"), options.get("chunk"), options.get("slopes")
    limits = [] if window is None else [column > row - window]
    limits += [] if chunk is None else [column // chunk == row // chunk]
    for near in limits:
        mask = near if mask is None else mask & near
    if slopes is not None:
        distance = slopes[:, None, None] * tnp.astype(column - row, "float32")
        mask = distance if mask is None else tnp.where(mask, distance, float("-inf"))
    y = F.attention(
        q, k, v, mask, causal, scale, options.get("softcap") or 0.0, k_scale=k_scale, v_scale=v_scale,
        sinks=options.get("sinks"),
    )  # fmt: skip
    result: Tensor = y.transpose(0, 2, 1, 3)
    return result


__all__ = ["Bidirectional", "Cache", "DenseCache", "NoCache", "ScoreOptions", "attend_where", "attention"]
