"""The functions with which a library chooses tokens where its logits are: on the device.

``step`` decodes one token for each of a batch of sequences and draws the next ones. Its logits stay in a
state of the library. ``draw`` draws again for some rows, after penalties, biases and grammars; ``logits``
gives some rows to a caller who decides. So only tokens cross the bus, unless a request needs more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..frontends.trace import State, Tensor
from .runner import Adjustments, Draws, Floats, Ints
from .token_sampling import adjusted, sample

BIASES = 1024
"""The most tokens with a bias in a row of ``draw``. A larger value costs one more step of a search for each
doubling.
"""
_DRAWS = (np.float32, np.int32, np.float32, np.float32, np.float64)
_DRAW_NAMES = ("temperature", "top_k", "top_p", "min_p", "uniform")


def drawing_functions(
    decode: Callable[..., Tensor], vocabulary: int, max_batch: int, context: int, pages: int, has_state: bool
) -> dict[str, Any]:
    """The functions ``step``, ``draw`` and ``logits`` to compile, each with example arguments and the bounds
    of its sizes.

    Args:
        decode: The function of tokens, lengths, tables and, with `has_state`, slots, that gives logits
            [batch, vocabulary].
        vocabulary: The number of tokens.
        max_batch: The largest number of rows.
        context: The most tokens of a sequence.
        pages: The most pages of a sequence.
        has_state: Whether the model keeps state under slots.
    """
    kept = State("logits", (max_batch, vocabulary))
    i32, f32 = np.int32, np.float32

    def step(
        tokens: Tensor,
        lengths: Tensor,
        table: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        uniform: Tensor,
        slots: Tensor | None = None,
    ) -> Tensor:
        logits = decode(tokens, lengths, table, slots)
        kept[: logits.shape[0]] = logits
        return sample(logits, temperature, top_k, top_p, min_p, uniform)[0]

    def draw(
        rows: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        uniform: Tensor,
        ids: Tensor,
        counts: Tensor,
        repetition: Tensor,
        frequency: Tensor,
        presence: Tensor,
        bias_ids: Tensor,
        bias: Tensor,
        allowed: Tensor,
        constraint: Tensor,
    ) -> Tensor:
        logits = adjusted(
            kept[rows], ids, counts, repetition, frequency, presence, bias_ids, bias, allowed, constraint
        )
        return sample(logits, temperature, top_k, top_p, min_p, uniform)[0]

    def logits(rows: Tensor) -> Tensor:
        return kept[rows]

    batch, occurring = f"batch<={max_batch}", f"occurring<={min(context, vocabulary)}"
    biased = f"biased<={min(BIASES, vocabulary)}"
    per_row = "rows", "repetition", "frequency", "presence", "constraint"
    numbers = tuple(np.zeros(2, t) for t in _DRAWS)
    slots = (np.zeros(2, i32),) if has_state else ()
    each = {name: {0: batch} for name in _DRAW_NAMES}
    return {
        "step": (
            step,
            (np.zeros(2, i32), np.zeros(2, i32), np.zeros((2, 2), i32), *numbers, *slots),
            {
                **{name: {0: batch} for name in ("tokens", "lengths", *(("slots",) if has_state else ()))},
                "table": {0: batch, 1: f"pages<={pages}"},
                **each,
            },
        ),
        "draw": (
            draw,
            (
                np.zeros(2, i32),
                *numbers,
                *(np.zeros((2, 3), i32) for _ in range(2)),
                *(np.zeros(2, f32) for _ in range(3)),
                np.zeros((2, 4), i32),
                np.zeros((2, 4), f32),
                np.zeros((2, -(-vocabulary // 8)), np.uint8),
                np.zeros(2, i32),
            ),
            {
                **each,
                **{name: {0: batch} for name in per_row},
                **{name: {0: batch, 1: occurring} for name in ("ids", "counts")},
                **{name: {0: batch, 1: biased} for name in ("bias_ids", "bias")},
                "allowed": {0: f"masks<={max_batch}"},
            },
        ),
        "logits": (logits, (np.zeros(2, i32),), {"rows": {0: batch}}),
    }


class LibraryDrawing:
    """The `Drawing` of a library with the functions of `drawing_functions`."""

    def __init__(
        self, call: Callable[..., Any], vocabulary: int, max_batch: int, context: int, has_state: bool
    ) -> None:
        """Take ``call(name, *arguments)``, which calls a function, and the sizes of `drawing_functions`."""
        self._call, self._has_state, self._vocabulary = call, has_state, vocabulary
        self.rows = max_batch
        self.occurring, self.biased = min(context, vocabulary), min(BIASES, vocabulary)

    def step(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints, draws: Draws) -> Ints:
        slots_argument = (slots,) if self._has_state else ()
        result: Ints = self._call("step", tokens, lengths, pages, *draws, *slots_argument)
        return result

    def draw(self, rows: Ints, draws: Draws, adjustments: Adjustments) -> Ints:
        result: Ints = self._call("draw", rows, *draws, *adjustments)
        return result

    def logits(self, rows: Ints) -> Floats:
        result: Floats = self._call("logits", rows)
        return result


__all__ = ["BIASES", "LibraryDrawing", "drawing_functions"]
