"""`PagedCache`: keys and values in pages, as compiled libraries keep them (Kwon et al., "PagedAttention", 2023)."""

from __future__ import annotations

from typing import Any

from ..errors import CompileError
from ..frontends.trace import State, Tensor
from ..frontends.trace import numpy as _tnp
from .cache import attend_where
from .runner import PAGE
from .slot_states import Rows

tnp: Any = _tnp


class Pages:
    """The states of a library: keys and values of each layer [pages, `PAGE`, kv_heads, head_dim], made when a layer first asks for them."""

    def __init__(self, count: int, dtype: Any = "float32") -> None:
        self.count, self.dtype = count, dtype
        self._states: dict[str, State] = {}

    def state(self, name: str, shape: tuple[int, ...]) -> State:
        if name not in self._states:
            self._states[name] = State(name, (self.count, PAGE, *shape), self.dtype)
        return self._states[name]

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy a page of every state: numbers of pages [1]."""
        for state in self._states.values():
            state[target] = state[source]


class PagedCache:
    """The cache of one call: `n` tokens of each of a batch of sequences, of which `lengths` [batch] came before; `table` [batch, p] are the
    numbers of their pages, in order, and any number where a sequence has no more. `beside` is what they keep beside the pages."""

    def __init__(self, pages: Pages, n: Any, lengths: Tensor, table: Tensor, beside: Rows | None = None) -> None:
        self._beside = beside
        self._pages, self._table = pages, tnp.maximum(tnp.astype(table, "int64"), 0)
        self._positions = tnp.astype(lengths, "int64")[:, None] + tnp.arange(n)[None]
        self._page = tnp.take_along_axis(self._table, self._positions // PAGE, 1)
        self._slot = self._positions % PAGE

    @property
    def positions(self) -> Tensor:
        return self._positions  # type: ignore[no-any-return]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None,
        sinks: Tensor | None = None, softcap: float | None = None,
    ) -> Tensor:  # fmt: skip
        k, v = (self._appended(f"layer{layer}.{name}", x) for name, x in (("key", k), ("value", v)))
        row, column = self._positions[:, None, :, None], tnp.arange(k.shape[1])
        return attend_where(q, k, v, row, column, scale=scale, window=window, sinks=sinks, softcap=softcap)

    def _appended(self, name: str, x: Tensor) -> Tensor:
        """All that a state holds of the sequences after `x` [batch, n, ...] came: [batch, p * PAGE, ...]."""
        state = self._pages.state(name, x.shape[2:])
        state[self._page, self._slot] = tnp.astype(x, state.dtype)
        found = tnp.astype(state[self._table], x.dtype)
        batch, pages = self._table.shape
        return found.reshape(batch, pages * PAGE, *x.shape[2:])  # type: ignore[no-any-return]

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._rows.read(f"layer{layer}.{name}", shape)

    def set_state(self, layer: int, name: str, value: Tensor) -> None:
        self._rows.write(f"layer{layer}.{name}", value)

    @property
    def _rows(self) -> Rows:
        if self._beside is None:
            raise CompileError("the model keeps state beside its pages: its class must say `has_state = True`")
        return self._beside


__all__ = ["PagedCache", "Pages"]
