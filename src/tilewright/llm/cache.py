"""What a model definition asks of its surroundings about the tokens before."""

from __future__ import annotations

from typing import Protocol

from ..frontends.trace import Tensor


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

    def state(self, layer: int, name: str) -> Tensor:
        """What `set_state` was given last for these sequences, at first zeros: [batch, ...]."""
        ...

    def set_state(self, layer: int, name: str, value: Tensor) -> None: ...
