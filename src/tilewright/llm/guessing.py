"""The functions with which a draft model's library chooses several tokens in one call, each after the one
before: without them, every token takes a call from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from .runner import Ints
from .token_sampling import greedy


def guessing_functions(
    decode: tuple[Callable[..., Tensor], tuple[Any, ...], Mapping[str, Any]], most: int, max_batch: int
) -> dict[str, Any]:
    """The functions ``guess2`` to ``guess{most}`` to compile, each with example arguments and the bounds of
    its sizes. ``guess{n}`` has n times the operators of `decode`, and the same kernels.

    Args:
        decode: The function ``decode`` to compile, on tokens, lengths and a table only.
        most: The most tokens of a guess.
        max_batch: The largest number of sequences.
    """
    function, arguments, sizes = decode
    return {
        f"guess{count}": (
            _guess(function, count),
            (*arguments[:3], np.zeros(2, np.int32)),
            {**sizes, "last": {0: f"some<={max_batch}"}},
        )
        for count in range(2, most + 1)
    }


def _guess(decode: Callable[..., Tensor], count: int) -> Callable[..., Tensor]:
    def guess(tokens: Tensor, lengths: Tensor, table: Tensor, last: Tensor) -> Tensor:
        logits, lengths, table = decode(tokens, lengths, table)[last], lengths[last], table[last]
        chosen = [greedy(logits)]
        for i in range(1, count):
            logits = decode(tnp.maximum(chosen[-1], 0), lengths + np.int32(i), table)
            chosen.append(greedy(logits))
        result: Tensor = tnp.stack(chosen, axis=1)
        return result

    return guess


class LibraryGuessing:
    """The `Guessing` of a library with the functions of `guessing_functions`."""

    def __init__(self, call: Callable[..., Any], most: int) -> None:
        """Take ``call(name, *arguments)``, which calls a function, and the most tokens of a guess."""
        self._call, self.most = call, most

    def guess(self, tokens: Ints, lengths: Ints, pages: Ints, last: Ints, count: int) -> Ints:
        result: Ints = self._call(f"guess{count}", tokens, lengths, pages, last)
        return result


__all__ = ["LibraryGuessing", "guessing_functions"]
