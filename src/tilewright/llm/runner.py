"""`Runner`: what the engine asks of a compiled model."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

PAGE = 64
"""Tokens that a page of the KV cache holds."""

Ints = np.ndarray[Any, np.dtype[np.int32]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


class Runner(Protocol):
    """A model with its weights and its KV cache.

    The keys and values of a sequence's first `PAGE` tokens lie in the first page of its list of pages, and so on; a page may belong to the lists
    of several sequences that begin alike. Calls write the keys and values of the tokens they are given. `slot`, less than `max_batch`, is a running sequence's
    own number: what a model keeps of a sequence beside its pages (state space, short convolutions) lies there.
    """

    vocabulary: int
    pages: int
    """How many pages there are."""
    chunk: int
    """Most tokens of one `prefill`."""
    max_batch: int
    """Most sequences at a time."""
    rows: int
    """Most tokens of one `decode`, at least `max_batch`."""
    context: int
    """Most tokens of a sequence."""
    has_state: bool
    """Whether sequences have state beside their pages: then a prefix's pages alone do not continue it, and nothing can be taken back."""
    uniform: bool
    """Whether `prefill` and `decode` make the same of a token, bit for bit. Be it so or not, each of them must give the same results however tokens are
    divided into calls and whatever else is in a call."""

    def prefill(self, tokens: Ints, start: int, pages: Ints, slot: int) -> Floats:
        """The logits [vocabulary] after the last of `tokens` [n], which follow `start` tokens that `pages` already hold; `pages` suffice for ``start + n``."""
        ...

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Floats:
        """The logits [rows, vocabulary] after each of `tokens` [rows], which follow `lengths` tokens each; `pages` [rows, any], -1 where none.

        Rows may be of one sequence: its next tokens, one after the other (unless it `has_state`). Then a row sees those before it, as if they had been
        decoded in calls of their own. What is written for tokens that turn out to be wrong guesses is written over later.
        """
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page, for a sequence that goes on differently in its midst."""
        ...

    def reset(self, slot: int) -> None:
        """Make a sequence's own state that of an empty one."""
        ...

    def embed(self, tokens: Ints) -> Floats:
        """The embedding [hidden] of a text."""
        ...
