"""`Runner` and `Drawing`: the interface between the engine and a compiled model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from .vision.given import GivenRows, View

PAGE = 64
"""Tokens of a page of the KV cache."""

LONG_WINDOW, KEY_BLOCK = 1024, 512
"""Windows of at least LONG_WINDOW tokens are attended in blocks of KEY_BLOCK keys."""

ADAPTER = "adapter."
"""The beginning of the names of the states that hold the matrices of adapters."""

Ints = np.ndarray[Any, np.dtype[np.int32]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

SourceKind = Literal["tokens", "audio"]
"""The input of a model's encoder: tokens, or frames of a spectrogram."""

UNDECIDED = -2
"""The token of a row in which `Drawing` considers too few tokens: the caller decides from the logits."""
NONE = -1
"""The token of a row that allows no token, or contains NaN or infinity."""


def _step(window: int) -> int:
    """The number of pages at a multiple of which reading begins."""
    return 1 if window < LONG_WINDOW else KEY_BLOCK // PAGE


def first_page(position: int, window: int) -> int:
    """The first page that a model reads for the token at `position` with a window of that many tokens."""
    step = _step(window)
    return max(position - (window - 1), 0) // (step * PAGE) * step


def pages_seen(window: int, n: int) -> int:
    """The most pages that a model reads for `n` successive tokens with a window of that many tokens each."""
    return (window + n - 3) // PAGE + 1 + _step(window)


class Draws(NamedTuple):
    """How the tokens of some rows are drawn, an element for each row; see `SamplingParameters`."""

    temperature: Floats
    """Float32; 0 takes the most probable token."""
    top_k: Ints
    """Int32; 0 for all tokens."""
    top_p: Floats
    """Float32; 1 for all tokens."""
    min_p: Floats
    """Float32; 0 for all tokens."""
    uniform: np.ndarray[Any, np.dtype[np.float64]]
    """Float64, the random numbers in [0, 1)."""


class Adjustments(NamedTuple):
    """Penalties, biases and grammars of some rows, in this order; see `SamplingParameters`.

    Rows of tokens are in ascending order and padded with the vocabulary's size; n, m and g are at least 1.
    """

    ids: Ints
    """Int32 [rows, n], the tokens that occur in prompt or output."""
    counts: Ints
    """Int32 [rows, n], how often each of them occurs in the output."""
    repetition: Floats
    """Float32 [rows]."""
    frequency: Floats
    """Float32 [rows]."""
    presence: Floats
    """Float32 [rows]."""
    bias_ids: Ints
    """Int32 [rows, m], tokens with a bias."""
    bias: Floats
    """Float32 [rows, m], their biases."""
    allowed: np.ndarray[Any, np.dtype[np.uint8]]
    """Uint8 [g, vocabulary / 8], masks of tokens, the first one in the lowest bit."""
    constraint: Ints
    """Int32 [rows], the mask of each row; -1 for none."""


class Drawing(Protocol):
    """Chooses tokens where a model's logits are, as `engine.sampling.choose` does, so that they need not be
    copied from a device.

    The logits of a call of `prefill` or `decode` are kept until the next one.
    """

    adjusted: int
    """Largest number of rows of `draw` with adjustments."""
    occurring: int
    """Largest number of tokens in a row of `Adjustments.ids`."""
    biased: int
    """Largest number of tokens in a row of `Adjustments.bias_ids`."""

    def prefill(
        self, tokens: Ints, start: int, pages: Ints, slot: int, given: GivenRows | None = None
    ) -> Ints:
        """As `Runner.prefill`; returns the most probable next token [1], or `NONE`."""
        ...

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Ints:
        """As `Runner.decode`; returns the most probable next token of each row [rows], or `NONE`."""
        ...

    def draw(self, rows: Ints, draws: Draws, adjustments: Adjustments | None = None) -> Ints:
        """Draw tokens for rows [n] of the last call, from adjusted logits if there are `adjustments`; returns
        them [n], `NONE` or `UNDECIDED`.
        """
        ...

    def logits(self, rows: Ints) -> Floats:
        """The logits [n, vocabulary], float32, of rows [n] of the last call."""
        ...


class Guessing(Protocol):
    """Chooses several tokens in one call, each the most probable one after those before it."""

    most: int
    """The most tokens of a guess."""

    def guess(self, tokens: Ints, lengths: Ints, pages: Ints, last: Ints, count: int) -> Ints:
        """Guess the next tokens [n, count], int32, of sequences; `NONE` and any tokens after it where no
        token can be chosen.

        Args:
            tokens: As for `Runner.decode` [rows], of which those before a sequence's last one only bring its
                cache up to date.
            lengths: As for `Runner.decode` [rows].
            pages: As for `Runner.decode` [rows, any], enough for the guesses.
            last: The row of each sequence's last token [n].
            count: The number of tokens to guess, 2 to `most`.
        """
        ...


class AdapterSlots(Protocol):
    """Low-rank changes of a model's matrices (LoRA), of which several are loaded at a time."""

    count: int
    """Largest number of adapters."""

    def read(self, folder: Path) -> Any:
        """Read the adapter in a folder, for `write`. No place changes.

        Raises:
            WeightsError: A file is missing or damaged, or the adapter does not fit the model.
        """
        ...

    def write(self, number: int, adapter: Any) -> None:
        """Put an adapter that was read into place `number`, 1 to `count`, which no running sequence uses."""
        ...

    def use(self, slot: int, number: int) -> None:
        """Let the running sequence `slot` use an adapter from now on; number 0 is none."""
        ...


class PageAccess(Protocol):
    """The pages of a KV cache as bytes, for files."""

    @property
    def size(self) -> int:
        """Bytes of a page."""
        ...

    def identity(self) -> bytes:
        """A hash of everything beside a sequence's tokens on which its pages depend.

        Raises:
            ArtifactError: It is not known.
        """
        ...

    def read(self, page: int) -> bytes:
        """The content of a page."""
        ...

    def write(self, page: int, content: bytes) -> None:
        """Replace the content of a page."""
        ...


class Sight(Protocol):
    """The image encoder of a model."""

    hidden: int
    """Elements of the vectors that it gives."""

    def see(self, view: View) -> Floats:
        """The vectors [rows, hidden], float32, of a view."""
        ...

    def shift(self, slot: int, offset: int) -> None:
        """Let `offset` be added to the positions of all tokens that the running sequence `slot` decodes, for
        rotary embeddings.
        """
        ...


class Runner(Protocol):
    """A model with its weights and its KV cache.

    The first page in a sequence's list holds the keys and values of its first `PAGE` tokens, and so on. A
    page may belong to several sequences with a common prefix. Calls write the keys and values of their
    tokens. `slot`, less than `max_batch`, is the number of a running sequence; state besides pages (state
    space models, short convolutions) is stored under it, and so are the states of an encoder.
    """

    vocabulary: int
    pages: int
    """The number of pages."""
    chunk: int
    """Largest number of tokens of one `prefill`."""
    max_batch: int
    """Largest number of concurrent sequences."""
    rows: int
    """Largest number of tokens of one `decode`, at least `max_batch`."""
    context: int
    """Largest number of tokens of a sequence."""
    has_state: bool
    """Whether sequences have state besides their pages.

    The pages of a prefix are then not enough to continue it, and tokens cannot be rolled back.
    """
    adapters: AdapterSlots | None
    """The adapters that sequences may use; None: the model has none."""
    window: int | None
    """The last tokens that a token sees, itself included, in any layer; None: there are layers that see
    all.
    """
    page_access: PageAccess | None
    """The pages as bytes; None: they cannot be read and written."""
    drawing: Drawing | None
    """Chooses tokens beside the logits; None: the engine chooses from logits."""
    guessing: Guessing | None
    """Chooses several tokens in one call; None: a draft model is called for each token."""
    sight: Sight | None
    """The image encoder; None: the model takes text only."""
    source_kind: SourceKind | None
    """The input of the encoder to whose states the decoder attends; None: the model has no such encoder."""
    source: int
    """Largest number of states of the encoder for one sequence; 0 without an encoder."""
    start: list[int]
    """The tokens with which the decoder of a model with an encoder begins."""
    uniform: bool
    """Whether `prefill` and `decode` compute bitwise equal results for a token.

    In any case, the results of each of them must not depend on the division of tokens into calls, nor on
    other rows of a call.
    """

    def encode(self, source: Floats | Ints, slot: int) -> None:
        """Encode the input of a sequence: before its first `prefill`, also when its prompt is computed again.

        Args:
            source: Tokens [n], int32, or a spectrogram [frames, mels], float32, of normalized logarithms.
            slot: The number of the running sequence.
        """
        ...

    def prefill(
        self, tokens: Ints, start: int, pages: Ints, slot: int, given: GivenRows | None = None
    ) -> Floats:
        """The logits [vocabulary], float32, after the last of some tokens.

        Args:
            tokens: The tokens [n], int32, at most `chunk`.
            start: The number of tokens that `pages` already hold, which these follow.
            pages: The sequence's pages [any], int32, enough for ``start + n`` tokens.
            slot: The number of the running sequence.
            given: Vectors in place of embeddings of these tokens, in a model with `sight`; None: there are
                none.
        """
        ...

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Floats:
        """The logits [rows, vocabulary], float32, after each of some tokens.

        Rows may belong to one sequence, as consecutive tokens (unless it `has_state`); each row then sees the
        ones before it, as in separate calls. Entries of tokens that prove to be wrong guesses are overwritten
        later.

        Args:
            tokens: One token for each row [rows], int32 as the others.
            lengths: The number of tokens that each row's token follows [rows].
            pages: The pages of each row's sequence [rows, any], padded with -1.
            slots: The number of each row's running sequence [rows].
        """
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy the page `source` to the page `target`, for a sequence that diverges within it."""
        ...

    def reset(self, slot: int) -> None:
        """Reset the state of a slot to that of an empty sequence."""
        ...

    def embed(self, tokens: Ints) -> Floats:
        """The embedding [hidden], float32, of a text of `tokens` [n]."""
        ...

    def score(self, tokens: Ints, types: Ints) -> Floats:
        """The logits [labels], float32, of a text of `tokens` [n] in segments `types` [n]."""
        ...
