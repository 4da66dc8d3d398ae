"""The functions with which a library chooses tokens where its logits are: on the device.

``prefill`` and ``decode`` give the most probable tokens. Their logits stay in a state of the library, from
which ``draw`` draws tokens at random, ``draw_adjusted`` does so after penalties, biases and grammars, and
``logits`` gives some rows to a caller who decides. So only tokens cross the bus, unless a request needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import numpy as np

from ..frontends.trace import State, Tensor
from .runner import Adjustments, Draws, Floats, Ints
from .token_sampling import adjusted, greedy, sample
from .vision.given import GivenRows

BIASES = 1024
"""The most tokens with a bias in a row of ``draw_adjusted``. A larger value costs one more step of a search
for each doubling.
"""
_DRAWS = (np.float32, np.int32, np.float32, np.float32, np.uint32)
_DRAW_NAMES = ("temperature", "top_k", "top_p", "min_p", "uniform")


def drawing_functions(
    functions: Mapping[str, tuple[Any, ...]], vocabulary: int, rows: int, max_batch: int, context: int
) -> dict[str, Any]:
    """The functions ``prefill``, ``decode``, ``draw``, ``draw_adjusted`` and ``logits`` to compile, each with
    example arguments and the bounds of its sizes.

    Args:
        functions: ``prefill`` and ``decode`` that give logits [vocabulary] and [rows, vocabulary].
        vocabulary: The number of tokens.
        rows: The largest number of rows of ``decode``.
        max_batch: The largest number of rows of ``draw_adjusted``.
        context: The most tokens of a sequence.
    """
    kept = State("logits", (rows, vocabulary))
    i32, f32 = np.int32, np.float32

    def keeping(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(function)
        def chosen(*arguments: Tensor) -> Tensor:
            logits = function(*arguments)
            logits = logits if logits.ndim == 2 else logits[None]
            kept[: logits.shape[0]] = logits
            return greedy(logits)

        return chosen

    def draw(
        rows: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
    ) -> Tensor:
        return sample(kept[rows], temperature, top_k, top_p, min_p, uniform)[0]

    def draw_adjusted(
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

    occurring, biased = f"occurring<={min(context, vocabulary)}", f"biased<={min(BIASES, vocabulary)}"
    per_row = "repetition", "frequency", "presence", "constraint"
    chosen_rows, numbers = np.zeros(2, i32), tuple(np.zeros(2, t) for t in _DRAWS)
    of_some, of_batch = (
        {name: {0: f"{symbol}<={most}"} for name in ("rows", *_DRAW_NAMES)}
        for symbol, most in (("some", rows), ("batch", max_batch))
    )
    batch = of_batch["rows"][0]
    return {
        **{name: (keeping(function), *rest) for name, (function, *rest) in functions.items()},
        "draw": (draw, (chosen_rows, *numbers), of_some),
        "draw_adjusted": (
            draw_adjusted,
            (
                chosen_rows,
                *numbers,
                *(np.zeros((2, 3), i32) for _ in range(2)),
                *(np.zeros(2, f32) for _ in range(3)),
                np.zeros((2, 4), i32),
                np.zeros((2, 4), f32),
                np.zeros((2, -(-vocabulary // 8)), np.uint8),
                np.zeros(2, i32),
            ),
            {
                **of_batch,
                **{name: {0: batch} for name in per_row},
                **{name: {0: batch, 1: occurring} for name in ("ids", "counts")},
                **{name: {0: batch, 1: biased} for name in ("bias_ids", "bias")},
                "allowed": {0: f"masks<={max_batch}"},
            },
        ),
        "logits": (logits, (chosen_rows,), {"rows": of_some["rows"]}),
    }


def random_words(uniform: Any) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Random numbers in [0, 1), float64 of any shape, as a library takes them: uint32."""
    return (np.asarray(uniform, np.float64) * 2.0**32).astype(np.uint32)


class LibraryDrawing:
    """The `Drawing` of a library with the functions of `drawing_functions`."""

    def __init__(
        self, call: Callable[..., Any], vocabulary: int, max_batch: int, context: int,
        of_prompt: Callable[..., tuple[Any, ...]], of_rows: Callable[..., tuple[Any, ...]],
    ) -> None:  # fmt: skip
        """Take ``call(name, *arguments)``, which calls a function, the sizes of `drawing_functions`, and two
        functions that turn the arguments of `prefill` and of `decode` to those of the library's functions.
        """
        self._call, self._of_prompt, self._of_rows = call, of_prompt, of_rows
        self.adjusted = max_batch
        self.occurring, self.biased = min(context, vocabulary), min(BIASES, vocabulary)

    def prefill(
        self, tokens: Ints, start: int, pages: Ints, slot: int, given: GivenRows | None = None
    ) -> Ints:
        result: Ints = self._call("prefill", *self._of_prompt(tokens, start, pages, slot, given))
        return result

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Ints:
        result: Ints = self._call("decode", *self._of_rows(tokens, lengths, pages, slots))
        return result

    def draw(self, rows: Ints, draws: Draws, adjustments: Adjustments | None = None) -> Ints:
        numbers = *draws[:-1], random_words(draws.uniform)
        if adjustments is None:
            result: Ints = self._call("draw", rows, *numbers)
        else:
            result = self._call("draw_adjusted", rows, *numbers, *adjustments)
        return result

    def logits(self, rows: Ints) -> Floats:
        result: Floats = self._call("logits", rows)
        return result


__all__ = ["BIASES", "LibraryDrawing", "drawing_functions", "random_words"]
