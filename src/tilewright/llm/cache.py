"""The interface between a model definition and its KV cache: `Cache`, and two implementations without a
compiled library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

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
    terms: Callable[[Tensor], Tensor] | None
    """A function from keys' positions minus queries', [batch, n, m] or [n, m] of integers, to what is added
    to scores, [batch, heads, n, m] or [heads, n, m].
    """


class Source(Protocol):
    """The keys and values that an encoder leaves for the layers of a decoder."""

    def keep(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the keys and values [batch, m, kv_heads, d] of the encoder's states for a layer."""
        ...

    def attend(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        """Attend queries [batch, n, heads, d] to all that is kept for a layer; returns their shape."""
        ...


class Given(NamedTuple):
    """Vectors in place of the embeddings of a call's tokens, and what the tokens see."""

    rows: Tensor
    """Vectors [m, hidden], float32."""
    row_of: Tensor
    """The row of each token [batch, n], integers; negative: its own embedding."""
    last: Tensor | None = None
    """The position of the last token that each token sees [batch, n], integers; None: its own."""


class Cache(Protocol):
    """The keys and values, or other state, of the earlier tokens of a batch of sequences."""

    @property
    def source(self) -> Source | None:
        """The states of the encoder for these sequences; None in models without one."""
        ...

    @property
    def given(self) -> Given | None:
        """Vectors in place of embeddings of this call's tokens; None: there are none."""
        ...

    @property
    def positions(self) -> Tensor:
        """The positions of this call's tokens in their sequences: i64 [batch, n]."""
        ...

    @property
    def places(self) -> Tensor:
        """The positions for rotary embeddings: `positions`, or integers [batch, n, 3] for time, height and
        width.
        """
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

    def attend_again(self, layer: int, q: Tensor, *, scale: float, **options: Unpack[ScoreOptions]) -> Tensor:
        """Attend causally over the content of a layer's cache to which `attend` has appended keys and values
        of this call's tokens.

        Args:
            layer: The number of that layer.
            q: Queries [batch, n, heads, d].
            scale: The factor of the scores.
            options: See `ScoreOptions`.

        Returns:
            [batch, n, heads, e] for values of e elements.
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


class DenseSource:
    """Keeps an encoder's keys and values in arrays. `mask` [batch, m] of bools selects the encoder's tokens
    that count; None: all.
    """

    def __init__(self, mask: TensorLike | None = None) -> None:
        self._mask = None if mask is None else tnp.astype(mask, bool)[:, None, None]
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._kept[layer] = k, v

    def attend(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        return attend(q, *self._kept[layer], self._mask, scale=scale)


class NoCache:
    """Processes whole sequences at once: `tokens` [batch, n] are complete, and nothing is stored. `source` is
    what an encoder left for them.
    """

    def __init__(self, tokens: TensorLike, source: Source | None = None) -> None:
        self.batch, self.length = tnp.asarray(tokens).shape[:2]
        self.source = source
        self.given: Given | None = None
        self._held: dict[int, tuple[Tensor, Tensor | int]] = {}

    @property
    def positions(self) -> Tensor:
        return tnp.broadcast_to(tnp.arange(self.length)[None], (self.batch, self.length))

    @property
    def places(self) -> Tensor:
        return self.positions

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor | int, *, scale: float,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:  # fmt: skip
        self._held[layer] = k, v
        return attention(q, k, v, scale=scale, **options)

    def attend_again(self, layer: int, q: Tensor, *, scale: float, **options: Unpack[ScoreOptions]) -> Tensor:
        return self.attend(layer, q, *self._held[layer], scale=scale, **options)

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
            tokens: The tokens [batch, n], or vectors [batch, n, any].
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
        self._held[layer] = k, v
        v = k[..., :v] if isinstance(v, int) else v
        mask, window, place = self._there, options.get("window"), tnp.arange(self.length)
        if window is not None:
            near = tnp.abs(place[:, None] - place[None]) < window
            mask = near if mask is None else mask & near
        mask = added(mask, place[:, None], place[None], options)
        if self._bias is not None:
            mask = self._bias if mask is None else tnp.where(mask, self._bias, float("-inf"))
        return attend(q, k, v, mask, scale=scale, softcap=options.get("softcap"), sinks=options.get("sinks"))


class DenseCache:
    """Keeps everything in arrays that grow, for calls of any length. It is the reference for the caches of
    compiled libraries.

    ``model(tokens, cache.before(tokens))`` continues the sequences by `tokens` [batch, n]. `source` is what
    an encoder left for them.
    """

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.given: Given | None = None
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

    @property
    def places(self) -> Tensor:
        return self.positions

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor | int, *, scale: float,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:  # fmt: skip
        k = self._appended(layer, "key", k)
        v = v if isinstance(v, int) else self._appended(layer, "value", v)
        return attention(q, k, v, scale=scale, **options)

    def attend_again(self, layer: int, q: Tensor, *, scale: float, **options: Unpack[ScoreOptions]) -> Tensor:
        k, v = self._kept[layer, "key"], self._kept[layer, "value"]
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
    last: Tensor | None = None, **options: Unpack[ScoreOptions],
) -> Tensor:  # fmt: skip
    """Attention over the tokens whose position `column` is at most the query's position `row`, or at most
    `last`.

    `q` is [batch, n, heads, d], `k` is [batch, m, kv_heads, d], `v` [batch, m, kv_heads, e] or e; both
    positions broadcast to [batch, 1, n, m]. `causal` states that positions equal indices. `k_scale` and
    `v_scale` [batch, m, kv_heads] multiply quantized keys and values.
    """
    v = k[..., :v] if isinstance(v, int) else v
    mask = None if causal else column <= (row if last is None else last)
    window, chunk = options.get("window"), options.get("chunk")
    limits = [] if window is None else [column > row - window]
    limits += [] if chunk is None else [column // chunk == row // chunk]
    for near in limits:
        mask = near if mask is None else mask & near
    return attend(
        q, k, v, added(mask, row, column, options), causal=causal, scale=scale, k_scale=k_scale,
        v_scale=v_scale, softcap=options.get("softcap"), sinks=options.get("sinks"),
    )  # fmt: skip


def added(mask: Tensor | None, row: Tensor, column: Tensor, options: ScoreOptions) -> Tensor | None:
    """The mask of `attend`: where `mask` is true, what `slopes` and `terms` of `options` add to scores.

    `row` and `column` are positions of queries and keys as in `attend_where`.
    """
    slopes, terms = options.get("slopes"), options.get("terms")
    distance = column - row
    more: list[Tensor] = []
    if slopes is not None:
        more.append(slopes[:, None, None] * tnp.astype(distance, "float32"))
    if terms is not None:
        more.append(terms(distance if distance.ndim == 2 else distance[:, 0]))
    if not more:
        return mask
    total: Tensor = sum(more[1:], more[0])
    return total if mask is None else tnp.where(mask, total, float("-inf"))


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, causal: bool = False,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of `q` [batch, n, heads, d] to `k` [batch, m, kv_heads, d] and `v` [batch, m, kv_heads, e]:
    [batch, n, heads, e].

    `mask` broadcasts to [batch, heads, n, m], bools or numbers that are added; the other arguments are those
    of `attend_where` and `functional.attention`.
    """
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    k_scale, v_scale = (None if x is None else x.transpose(0, 2, 1) for x in (k_scale, v_scale))
    y = F.attention(
        q, k, v, mask, causal, scale, softcap or 0.0, k_scale=k_scale, v_scale=v_scale, sinks=sinks
    )
    result: Tensor = y.transpose(0, 2, 1, 3)
    return result


__all__ = [
    "Bidirectional",
    "Cache",
    "DenseCache",
    "DenseSource",
    "Given",
    "NoCache",
    "ScoreOptions",
    "Source",
    "added",
    "attend",
    "attend_where",
    "attention",
]
