"""`PagedCache`: keys and values in pages, as floats or quantized to 8 or 4 bits (Kwon et al.,
"PagedAttention", 2023).
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from ..errors import CompileError
from ..frontends.trace import State, Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.dtypes import DTypeLike, dtype_of
from ..ir.symbolic import Dim, bounds, smin
from .cache import Given, ScoreOptions, Source, attend, attend_where
from .quantized_cache import CACHE_BITS, cache_rotation, packed, quantized, unpacked
from .runner import KEY_BLOCK, LONG_WINDOW, PAGE
from .slot_states import Rows


class Pages:
    """The paged states of a library, created when a layer first writes them.

    Keys are [pages, kv_heads, head_dim, `PAGE`] and values [pages, kv_heads, `PAGE`, head_dim] of a float
    `dtype`, "int8" or "int4". The data of a head is contiguous. The innermost axis is the one that attention
    vectorizes: scores of many keys, elements of one value.

    Quantized states have a state of scales [pages, kv_heads, `PAGE`]. A byte holds two values of 4 bits:
    element j and, in the high bits, element ``j + head_dim / 2``.
    """

    def __init__(self, count: int, dtype: str = "float32", prefix: str = "") -> None:
        """Prepare states of `count` pages for keys and values of type `dtype`, whose names begin with
        `prefix`.

        Raises:
            CompileError: `dtype` is not supported.
        """
        if dtype not in CACHE_BITS and not (dtype_of(dtype).is_float and dtype_of(dtype).bits >= 16):
            raise CompileError(
                f"a cache of {dtype} is not supported: float32, bfloat16, float16, "
                f"{', '.join(CACHE_BITS)} are"
            )
        self.count, self.dtype, self.bits = count, dtype, CACHE_BITS.get(dtype)
        self._prefix = prefix
        self._states: dict[str, State] = {}

    def state(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> State:
        if name not in self._states:
            self._states[name] = State(self._prefix + name, (self.count, *shape), dtype)
        return self._states[name]

    def __getitem__(self, name: str) -> State:
        return self._states[name]

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy a page of every state; `source` and `target` are page numbers [1]."""
        for state in self._states.values():
            state[target] = state[source]


def token_bytes(vectors: int, size: int, dtype: str) -> int:
    """Bytes of `vectors` keys and values of `size` elements in a cache of type `dtype`."""
    bits = CACHE_BITS.get(dtype)
    return vectors * (size * dtype_of(dtype).numpy.itemsize if bits is None else size * bits // 8 + 2)


class PagedCache:
    """The cache of one call with `n` tokens for each sequence of a batch.

    `lengths` [batch] tokens precede this call. `table` [batch, p] has the sequences' page numbers in order,
    padded with any number. `beside` holds the states that are not paged, `source` what an encoder left.
    `given` has vectors in place of embeddings, `places` the positions for rotary embeddings; None: the
    tokens' own.
    """

    def __init__(
        self, pages: Pages, n: Dim, lengths: Tensor, table: Tensor, beside: Rows | None = None,
        source: Source | None = None, given: Given | None = None, places: Tensor | None = None,
    ) -> None:  # fmt: skip
        self._beside, self.source, self.given, self._places = beside, source, given, places
        self._pages, self._table = pages, tnp.maximum(tnp.astype(table, "int64"), 0)
        self._positions = tnp.astype(lengths, "int64")[:, None] + tnp.arange(n)[None]
        self._page = tnp.take_along_axis(self._table, self._positions // PAGE, 1)
        self._slot = self._positions % PAGE

    @property
    def positions(self) -> Tensor:
        result: Tensor = self._positions
        return result

    @property
    def places(self) -> Tensor:
        return self.positions if self._places is None else self._places

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor | int, *, scale: float,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:  # fmt: skip
        self.append(layer, k, v)
        return self._attend(layer, q, v if isinstance(v, int) else None, scale, options)

    def attend_again(self, layer: int, q: Tensor, *, scale: float, **options: Unpack[ScoreOptions]) -> Tensor:
        return self._attend(layer, q, None, scale, options)

    def _attend(
        self, layer: int, q: Tensor, shared: int | None, scale: float, options: ScoreOptions
    ) -> Tensor:
        """Attend to the layer's pages; the first `shared` elements of keys are the values, unless None."""
        window, limit = options.get("window"), bounds(self._table.shape[1])[1]
        if window is not None and limit is not None and window >= limit * PAGE:
            window = options["window"] = None
        first, table = (0, self._table) if window is None else self._seen(window, q.shape[1])
        rotation = self._rotation(q.shape[-1], shared)
        q = q if rotation is None else q @ rotation
        held, k_scale = self._held(f"layer{layer}.key", table, q.dtype)
        values: tuple[Tensor | int, Tensor | None] = (
            (shared, k_scale) if shared is not None else self._held(f"layer{layer}.value", table, q.dtype)
        )
        row, column = self._positions[:, None, :, None], first + tnp.arange(held.shape[1])
        last = None if self.given is None else self.given.last
        y = attend_where(
            q, held, values[0], row, column, scale=scale, k_scale=k_scale, v_scale=values[1],
            last=None if last is None else last[:, None, :, None], **options,
        )  # fmt: skip
        if rotation is None or shared is None:
            return y
        result: Tensor = y @ rotation[:shared, :shared]  # The rotation is its own inverse.
        return result

    def append(self, layer: int, k: Tensor, v: Tensor | int) -> None:
        """Write the keys and values of this call's tokens; see `Cache.attend`."""
        rotation = self._rotation(k.shape[-1], v if isinstance(v, int) else None)
        self._append(f"layer{layer}.key", k if rotation is None else k @ rotation)
        if not isinstance(v, int):
            self._append(f"layer{layer}.value", v)

    def attend_to(self, layer: int, q: Tensor, lengths: Tensor, *, scale: float) -> Tensor:
        """Attend to the first `lengths` [batch] tokens in the pages, whatever the positions of queries."""
        rotation = self._rotation(q.shape[-1], None)
        q = q if rotation is None else q @ rotation
        k, k_scale = self._held(f"layer{layer}.key", self._table, q.dtype)
        v, v_scale = self._held(f"layer{layer}.value", self._table, q.dtype)
        mask = tnp.arange(k.shape[1]) < tnp.astype(lengths, "int64")[:, None, None, None]
        return attend(q, k, v, mask, scale=scale, k_scale=k_scale, v_scale=v_scale)

    def _rotation(self, size: int, shared: int | None) -> np.ndarray[Any, Any] | None:
        """The matrix that spreads the channels of keys before they are quantized; None: they are not."""
        return None if self._pages.bits is None else cache_rotation(size, shared)

    def _append(self, name: str, x: Tensor) -> None:
        """Write `x` [batch, n, heads, d] to the places of its tokens."""
        if self._pages.bits is None:
            self._write(name, tnp.astype(x, self._pages.dtype))
            return
        if x.shape[-1] % 2 and self._pages.bits == 4:
            raise CompileError(
                f"a 4-bit cache needs an even head size, not {x.shape[-1]}: choose another cache_dtype"
            )
        qvalues, scales = quantized(tnp.astype(x, "float32"), self._pages.bits)
        self._write(name, packed(qvalues) if self._pages.bits == 4 else qvalues)
        self._write(f"{name}.scale", scales)

    def _write(self, name: str, x: Tensor) -> None:
        heads, *width = x.shape[2:]
        if name.endswith("key"):
            state = self._pages.state(name, (heads, *width, PAGE), x.dtype)
            state[self._page, :, :, self._slot] = x
        else:
            self._pages.state(name, (heads, PAGE, *width), x.dtype)[self._page, :, self._slot] = x

    def _held(self, name: str, table: Tensor, dtype: DTypeLike) -> tuple[Tensor, Tensor | None]:
        """The content of the pages in `table` [batch, p]: [batch, p * PAGE, heads, d].

        Either floats, or quantized values and their scales [batch, p * PAGE, heads].
        """
        batch, pages = table.shape

        def held(name: str) -> Tensor:
            pages_read = tnp.moveaxis(self._pages[name][table], 4 if name.endswith("key") else 3, 2)
            result: Tensor = pages_read.reshape(batch, pages * PAGE, *pages_read.shape[3:])
            return result

        if self._pages.bits is None:
            return tnp.astype(held(name), dtype), None
        qvalues = held(name)
        return unpacked(qvalues) if self._pages.bits == 4 else qvalues, held(f"{name}.scale")

    def _seen(self, window: int, n: Dim) -> tuple[Tensor, Tensor]:
        """The pages [batch, p] that the windows of `n` tokens touch at most, and the position [batch, 1, 1,
        1] of their first token.

        The last page of the table replaces pages that do not exist yet.
        """
        width = self._table.shape[1]
        # Blocks of keys begin at the same keys for any chunk, so that partial sums have equal terms.
        step = 1 if window < LONG_WINDOW else KEY_BLOCK // PAGE
        first = tnp.maximum(self._positions[:, :1] - (window - 1), 0) // (step * PAGE) * step
        number = first + tnp.arange(smin(width, (window + n - 3) // PAGE + 1 + step))
        table = tnp.take_along_axis(self._table, tnp.minimum(number, width - 1), 1)
        return (first * PAGE)[:, :, None, None], table

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._rows.read(f"layer{layer}.{name}", shape)

    def set_state(self, layer: int, name: str, value: Tensor) -> None:
        self._rows.write(f"layer{layer}.{name}", value)

    @property
    def _rows(self) -> Rows:
        if self._beside is None:
            raise CompileError(
                "the model keeps state outside of the KV cache: its class must set `has_state = True`"
            )
        return self._beside


class PagedSource:
    """The keys and values of an encoder's states in pages of their own.

    `table` [batch, p] has the page numbers of each sequence's states in order, padded with any number;
    `lengths` [batch] is their number of states. While an encoder keeps states, the batch is 1.
    """

    def __init__(self, pages: Pages, table: Tensor, lengths: Tensor) -> None:
        self._pages, self._table, self._lengths = pages, table, lengths

    def keep(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._in_pages(k.shape[1]).append(layer, k, v)

    def attend(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        return self._in_pages(q.shape[1]).attend_to(layer, q, self._lengths, scale=scale)

    def _in_pages(self, n: Dim) -> PagedCache:
        return PagedCache(self._pages, n, tnp.zeros_like(self._lengths), self._table)


__all__ = ["PagedCache", "PagedSource", "Pages", "token_bytes"]
