"""`BeamSearch`: the parameters of a beam search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import RequestError


@dataclass(frozen=True)
class BeamSearch:
    """Beam search (Lowerre 1976): at each step, the most probable continuations of some sequences are kept.

    Tokens are not drawn: temperature, top-k, top-p and min-p are not used, penalties and biases are.
    """

    width: int
    """The number of sequences that are kept; each takes a place in the batch."""
    length_penalty: float = 1.0
    """A finished sequence of n tokens is rated by its log-probability over n to this power: values above 0
    favor longer outputs.
    """
    early_stopping: bool = False
    """Whether the search ends as soon as `width` sequences have finished. Otherwise it ends when the best
    unfinished one, as rated at its present length, is no better than the worst of those.
    """

    def check(self, most: int) -> None:
        """Check the parameters; `most` is the largest batch.

        Raises:
            RequestError: One of them is out of its range.
        """
        if not 1 <= self.width <= most:
            raise RequestError(f"a beam search has a width of {self.width}; the batch allows 1 to {most}")
        if not math.isfinite(self.length_penalty):
            raise RequestError(f"length_penalty is {self.length_penalty}; it must be a finite number")


__all__ = ["BeamSearch"]
