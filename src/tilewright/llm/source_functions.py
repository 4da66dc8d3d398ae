"""The functions of a library whose decoder attends to an encoder, and where the encoder's states lie.

Every running sequence has a fixed range of pages for them, `SourceSlots`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..ir.types import DType
from .cache import Bidirectional
from .models.encoder_decoder import EncoderDecoder
from .paged_cache import PagedCache, PagedSource, Pages
from .quantized_linear import factors
from .runner import PAGE, Floats, Ints, SourceKind
from .speech.features import BEHIND, HOP, log_mel


class Sizes(Protocol):
    """The upper bounds that `LibraryOptions` has."""

    @property
    def chunk(self) -> int: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def pages_of_sequence(self) -> int: ...
    @property
    def pages_of_source(self) -> int: ...
    @property
    def cache_dtype(self) -> str: ...


def with_source(model: EncoderDecoder, options: Sizes, pages: Pages, of_prompts: DType) -> dict[str, Any]:
    """The functions ``encode``, ``prefill`` and ``decode`` to compile, and ``features`` of a model of audio,
    each with example arguments and the bounds of its sizes.

    Args:
        model: The model.
        options: Upper bounds of sizes, and data types.
        pages: The states of the decoder's keys and values.
        of_prompts: The type in which ``prefill`` and ``encode`` multiply quantized weights.
    """
    i32 = np.int32
    count, batch = options.pages_of_source, f"batch<={options.rows}"
    table, of_source = f"pages<={options.pages_of_sequence}", f"source_pages<={count}"
    states = Pages(options.max_batch * count, options.cache_dtype, prefix="source.")

    def encode(source: Tensor, source_table: Tensor) -> None:
        with factors(of_prompts):
            x = model.embed_source(source[None])
            hidden = model.encoder(x, Bidirectional(x))
            model.keep(hidden, PagedSource(states, source_table[None], tnp.zeros(1, i32)))

    def prefill(
        tokens: Tensor, start: Tensor, table: Tensor, source_table: Tensor, source_length: Tensor
    ) -> Tensor:
        source = PagedSource(states, source_table[None], source_length[None])
        cache = PagedCache(pages, tokens.shape[0], start[None], table[None], source=source)
        with factors(of_prompts):
            hidden = model.hidden(tokens[None], cache)
        return model.head(hidden[0, -1:])[0]  # Only one row, as in a decoding step.

    def decode(
        tokens: Tensor, lengths: Tensor, table: Tensor, source_table: Tensor, source_lengths: Tensor
    ) -> Tensor:
        source = PagedSource(states, source_table, source_lengths)
        cache = PagedCache(pages, 1, lengths, table, source=source)
        result: Tensor = model(tokens[:, None], cache)[:, 0]
        return result

    example, sizes = model.source_example(options.source)
    two, number, matrix = np.zeros(2, i32), np.zeros((), i32), np.zeros((2, 2), i32)
    functions = {
        "encode": (encode, (example, two), {"source": sizes, "source_table": {0: of_source}}),
        "prefill": (
            prefill,
            (two, number, two, two, number),
            {"tokens": {0: f"tokens<={options.chunk}"}, "table": {0: table}, "source_table": {0: of_source}},
        ),
        "decode": (
            decode,
            (two, two, matrix, matrix, two),
            {
                "tokens": {0: batch}, "lengths": {0: batch}, "table": {0: batch, 1: table},
                "source_table": {0: batch, 1: of_source}, "source_lengths": {0: batch},
            },
        ),
    }  # fmt: skip
    if model.source_kind == "tokens":
        return functions
    mels = int(model.config["num_mel_bins"])

    def features(hops: Tensor) -> Tensor:
        return log_mel(hops, mels)

    hops = {"hops": {0: f"hops<={2 * options.source + BEHIND}"}}
    return {**functions, "features": (features, (np.zeros((4, HOP), np.float32),), hops)}


class SourceSlots:
    """The pages and the numbers of the encoder's states of running sequences: those of slot s are pages s * p
    to (s + 1) * p - 1.

    Args:
        slots: The number of slots.
        most: Largest number of states of a sequence.
    """

    def __init__(self, slots: int, most: int) -> None:
        self._pages = -(-most // PAGE)
        self._lengths = np.zeros(slots, np.int32)

    def take(self, slot: int, source: Floats | Ints, kind: SourceKind | None) -> Ints:
        """Note the length of a slot's new input, and return its pages [p], int32."""
        self._lengths[slot] = len(source) if kind == "tokens" else len(source) // 2
        return self.arguments(np.asarray(slot))[0]

    def arguments(self, slots: Ints) -> tuple[Ints, Ints]:
        """The table [..., p] of the pages of `slots` [...], and their numbers of states [...], int32."""
        lengths = self._lengths[slots]
        width = max(1, -(-int(np.max(lengths)) // PAGE))
        table = np.maximum(slots, 0)[..., None] * self._pages + np.arange(width)
        return table.astype(np.int32), lengths


__all__ = ["SourceSlots", "with_source"]
