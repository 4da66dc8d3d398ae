"""Modules that exchange the results of other modules between processes.

They enclose layers whose weights are loaded already, so no model definition knows of them.
"""

from __future__ import annotations

from typing import Any

from ...distributed.functions import all_gather, all_reduce, broadcast
from ...distributed.groups import Group
from ...frontends.nn import Module
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp


class Summed(Module):
    """The sum of the results of all processes' `inner` modules, [..., n].

    Args:
        inner: Computes this process's term.
        group: The processes.
    """

    def __init__(self, inner: Module, group: Group) -> None:
        super().__init__()
        self.inner, self.group = inner, group

    def forward(self, *arguments: Any) -> Tensor:
        """Return the sum, of the shape and type of the inner module's result."""
        return all_reduce(self.inner(*arguments), "sum", self.group)


class Gathered(Module):
    """The results of all processes' `inner` modules, joined along the last axis, [..., count].

    Args:
        inner: Computes this process's part.
        group: The processes.
        count: The size of the joined axis.
    """

    def __init__(self, inner: Module, group: Group, count: int) -> None:
        super().__init__()
        self.inner, self.group, self.count = inner, group, count

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., count] for the argument of the inner module."""
        return gathered(self.inner(x), self.group, self.count)


def largest_of_all(x: Tensor, group: Group) -> Tensor:
    """The largest magnitudes [..., 1], float32, of rows of which each process has some columns [..., k]."""
    largest: Tensor = all_reduce(tnp.astype(tnp.max(tnp.abs(x), -1, keepdims=True), "float32"), "max", group)
    return largest


def equal_parts(count: int, size: int) -> list[tuple[int, int, int]]:
    """Ranges of equal length that cover `count` indices: for each the first index, the index from which it
    counts, and the index after the last. Where `size` does not divide `count`, last ranges begin earlier than
    they count.
    """
    width = -(-count // size)
    return [
        (min(k * width, count - width), min(k * width, count), min((k + 1) * width, count))
        for k in range(size)
    ]


def gathered(part: Tensor, group: Group, count: int) -> Tensor:
    """The joined parts [..., count] of all processes, each `equal_parts` of the last axis."""
    whole = tnp.moveaxis(all_gather(part[None], group), 0, -2)
    if count % group.size == 0:
        result: Tensor = whole.reshape(*whole.shape[:-2], count)
        return result
    pieces = [
        whole[..., k, counts - start : stop - start]
        for k, (start, counts, stop) in enumerate(equal_parts(count, group.size))
        if counts < stop
    ]
    result = tnp.concatenate(pieces, -1)
    return result


class DividedEmbedding(Module):
    """An embedding table of `count` rows, of which each process has some.

    Args:
        inner: The table of this process's rows; they are `equal_parts`.
        group: The processes.
        count: The number of all rows.
    """

    def __init__(self, inner: Module, group: Group, count: int) -> None:
        super().__init__()
        self.inner, self.group, self.count = inner, group, count

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows (..., size) of integers `ids` (...) in 0 .. count - 1."""
        start, counts, stop = equal_parts(self.count, self.group.size)[self.group.rank]
        here = (ids >= counts) & (ids < stop)
        rows = self.inner(tnp.where(here, ids - start, 0))
        return all_reduce(tnp.where(here[..., None], rows, 0), "sum", self.group)

    def attend(self, x: Tensor) -> Tensor:
        """See `Embedding.attend`."""
        return gathered(self.inner.attend(x), self.group, self.count)


class Sent(Module):
    """Sends the result of a module to the second process of a pair.

    Args:
        inner: Computes the result; None: the first argument is sent.
        pair: This process and the receiver.
    """

    def __init__(self, inner: Module | None, pair: Group) -> None:
        super().__init__()
        self.inner, self.pair = inner, pair

    def forward(self, x: Tensor, *arguments: Any) -> Tensor:
        """Return what is sent; a reader of it runs after the data has been handed over."""
        y = x if self.inner is None else self.inner(x, *arguments)
        return broadcast(y, self.pair.rank, self.pair)


class Received(Module):
    """Receives what the other process of a pair sends.

    Args:
        pair: The sender and this process.
        inner: A module of what is received; None: it is the result.
    """

    def __init__(self, pair: Group, inner: Module | None = None) -> None:
        super().__init__()
        self.pair, self.inner = pair, inner

    def forward(self, x: Tensor, *arguments: Any) -> Tensor:
        """Receive a tensor of the shape and type of `x`, whose elements do not matter. It is received after
        `x` has been computed: a stage sends before it waits for an answer.
        """
        y = broadcast(x, 1 - self.pair.rank, self.pair)
        result: Tensor = y if self.inner is None else self.inner(y)
        return result


class Passed(Module):
    """Stands for a module that another process has: returns its first argument."""

    def forward(self, x: Tensor, *arguments: Any) -> Tensor:
        """Return `x`."""
        return x


class AbsentEmbedding(Module):
    """Stands for an embedding, and for a head that shares its table, that the first stage has.

    Args:
        size: The elements of a vector.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, ids: Tensor) -> Tensor:
        """Return zeros (..., size) for `ids` (...)."""
        return tnp.zeros((*ids.shape, self.size))

    def attend(self, x: Tensor) -> Tensor:
        """Return `x`: nobody reads the logits of this stage."""
        return x


__all__ = [
    "AbsentEmbedding",
    "DividedEmbedding",
    "Gathered",
    "Passed",
    "Received",
    "Sent",
    "Summed",
    "equal_parts",
    "largest_of_all",
]
