"""`Images`: the images of a prompt; `GivenRows`: vectors that replace embeddings of tokens in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import RequestError

Array = np.ndarray[Any, Any]


class View(NamedTuple):
    """One input of a model's image encoder: an image, or a part of one."""

    arrays: tuple[Array, ...]
    """The arguments of the encoder."""
    grid: tuple[int, int]
    """Rows and columns of the encoder's results, one vector for each place."""
    between: str = ""
    """The text between two rows of vectors."""

    @property
    def vectors(self) -> int:
        """The number of vectors that the encoder gives."""
        return self.grid[0] * self.grid[1]

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the content, which tells views apart."""
        found = hashlib.sha256(repr(self.grid).encode())
        for array in self.arrays:
            found.update(repr((array.shape, array.dtype.str)).encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.digest()


class GivenRows(NamedTuple):
    """For `n` tokens of one call: vectors in place of their embeddings, and what they see."""

    rows: Array
    """Float32 [m, hidden], the vectors, m at least 1."""
    row_of: Array
    """Int32 [n], the row of each token; -1: its own embedding."""
    last: Array
    """Int32 [n], the position of the last token that each token sees, at least its own."""
    places: Array
    """Int32 [n, 3], the positions for rotary embeddings with three axes: time, height, width."""

    @staticmethod
    def none(n: int, start: int, hidden: int) -> GivenRows:
        """The values of `n` tokens of a prompt without images, which follow `start` tokens."""
        last = np.arange(start, start + n, dtype=np.int32)
        places = np.repeat(last[:, None], 3, 1)
        return GivenRows(np.zeros((1, hidden), np.float32), np.full(n, -1, np.int32), last, places)


@dataclass(frozen=True)
class Images:
    """The images of a prompt of n tokens."""

    views: tuple[View, ...]
    """The inputs of the encoder, in the order of the prompt."""
    digests: tuple[bytes, ...]
    """`View.digest` of each view."""
    first: Array
    """Int64 [views + 1], the number of the first vector of each view among those of all views."""
    row_of: Array
    """Int32 [n], which of these vectors replaces the embedding of each token; -1: none."""
    last: Array
    """Int32 [n], as in `GivenRows`."""
    places: Array
    """Int32 [n, 3], as in `GivenRows`."""
    offset: int
    """The number that is added to the positions of tokens after the prompt, for rotary embeddings."""
    contents: tuple[tuple[int, int, bytes], ...]
    """Ranges (start, end) of tokens whose keys and values depend on more than the tokens up to them, each
    with a digest of what they depend on.
    """

    @property
    def longest(self) -> int:
        """The most tokens that must be computed in one call."""
        index = np.arange(len(self.last))
        joined = np.zeros(len(index), bool)  # whether a token is in the range of the token before it
        joined[1:] = (self.last[1:] == self.last[:-1]) & (self.last[:-1] >= index[1:])
        start = np.maximum.accumulate(np.where(joined, 0, index))
        return int((self.last - start + 1).max(initial=1))

    def start_of(self, token: int) -> int:
        """The first token of the range of tokens that see one another, which has this token."""
        while token and self.last[token - 1] == self.last[token] and self.last[token - 1] >= token:
            token -= 1
        return token

    def cut(self, start: int, end: int) -> int:
        """The end of a call that begins at `start`, near `end`, which divides no range of tokens that see one
        another.
        """
        if not start < end <= len(self.last) or self.last[end - 1] < end:
            return end
        first = self.start_of(end - 1)
        return first if first > start else int(self.last[end - 1]) + 1

    def check(self, prompt: int, chunk: int) -> None:
        """Check that the images fit a prompt and a model.

        Args:
            prompt: The number of tokens of the prompt.
            chunk: The most tokens of one call.

        Raises:
            RequestError: They do not.
        """
        if len(self.row_of) != prompt:
            raise RequestError(f"the images are placed in {len(self.row_of)} tokens, the prompt has {prompt}")
        if self.longest > chunk:
            raise RequestError(
                f"{self.longest} tokens of the prompt see one another and must be computed in one call, "
                f"which takes {chunk}: shorten the prompt, or compile with a larger --prefill-chunk-size"
            )


def placed(tokens: Sequence[int], image_token: int, views: Sequence[View], two_way: str = "") -> Images:
    """Place the vectors of views at the tokens `image_token` of a prompt.

    Positions with three axes are those of Qwen2-VL (Wang et al., 2024): all equal for text; within an image,
    time stays, height and width count from the position where it begins; text goes on after the greatest. An
    image with text between its rows has the positions of text.

    Args:
        tokens: The prompt, with one token `image_token` for each vector.
        image_token: The number of the token that vectors replace.
        views: The views, in order.
        two_way: The tokens that see one another in both directions: those of each image ("images"), all of
            the prompt ("prompt"), or none ("").

    Raises:
        RequestError: The numbers of tokens and vectors differ.
    """
    n = len(tokens)
    at = np.flatnonzero(np.asarray(tokens) == image_token)
    first = np.cumsum([0, *(view.vectors for view in views)])
    if len(at) != first[-1]:
        raise RequestError(
            f"the prompt has {len(at)} places for vectors of images, the images have {first[-1]}: its text "
            "must not contain the model's image token"
        )
    index = np.full(n, -1, np.int32)
    index[at] = np.arange(len(at))
    last, places = np.arange(n, dtype=np.int32), np.zeros((n, 3), np.int32)
    digests = tuple(view.digest for view in views)
    contents = [
        (int(at[a]), int(at[b - 1]) + 1, digest)
        for a, b, digest in zip(first[:-1], first[1:], digests, strict=True)
    ]
    position = done = 0
    for (start, end, _), view in zip(contents, views, strict=True):
        places[done:start] = np.arange(position, position + start - done)[:, None]
        position += start - done
        inside, (height, width) = np.arange(end - start), view.grid
        if view.between:
            places[start:end] = inside[:, None] + position
            position += end - start
        else:
            places[start:end] = np.stack([0 * inside, inside // width, inside % width], 1) + position
            position += max(height, width)
        done = end
        if two_way == "images":
            last[start:end] = end - 1
    places[done:] = np.arange(position, position + n - done)[:, None]
    if two_way == "prompt":
        last[:] = n - 1
        whole = hashlib.sha256(np.asarray(tokens, np.int32).tobytes() + b"".join(digests)).digest()
        contents = [(0, n, whole)]
    return Images(tuple(views), digests, first, index, last, places, position - done, tuple(contents))


__all__ = ["GivenRows", "Images", "View", "placed"]
