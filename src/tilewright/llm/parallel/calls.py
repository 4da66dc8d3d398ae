"""`Calls`: the function calls that the first process tells the others, as messages of 32-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...distributed.engine import Kind
from ...distributed.groups import Group

Array = np.ndarray[Any, np.dtype[np.int32]]
END, NOTHING = "end", "nothing"
"""Names of messages that are no calls: the last one, and a sign of life."""
_FIRST = 1024
"""The 32-bit words of a message's first broadcast: enough for a step of a few sequences. A larger one costs
every call, a smaller one a second broadcast more often.
"""


class Calls:
    """Calls of functions whose arguments are arrays of int32, told by rank 0 of a group to all others.

    Args:
        group: The processes.
        names: The functions' names, the same in all processes.
    """

    def __init__(self, group: Group, names: Sequence[str]) -> None:
        self._group, self._names = group, [END, NOTHING, *names]

    def packed(self, name: str, arguments: Sequence[Any] = ()) -> Array:
        """The message of a call, int32.

        Raises:
            ValueError: An argument is not an array of integers of 32 bits.
        """
        arrays = [_integers(x, name) for x in arguments]
        head = [self._names.index(name), len(arrays)]
        for x in arrays:
            head += [x.ndim, *x.shape]
        words = np.concatenate([np.array([0, *head], np.int32), *(x.reshape(-1) for x in arrays)])
        words[0] = len(words)
        return words

    def send(self, words: Array) -> None:
        """Tell a call; in rank 0.

        Args:
            words: The words that `packed` has made of it.

        Raises:
            GroupError: A process has ended.
        """
        first = np.zeros(_FIRST, np.int32)
        first[: len(words)] = words[:_FIRST]
        self._broadcast(first)
        if len(words) > _FIRST:
            self._broadcast(words[_FIRST:])

    def receive(self) -> tuple[str, list[Array]]:
        """Wait for the next call, in other ranks; return its name and arguments.

        Raises:
            GroupError: A process has ended.
        """
        words = self._broadcast(np.zeros(_FIRST, np.int32))
        if (count := int(words[0])) > _FIRST:
            words = np.concatenate([words, self._broadcast(np.zeros(count - _FIRST, np.int32))])
        return self.unpacked(words)

    def unpacked(self, words: Array) -> tuple[str, list[Array]]:
        """The name and the arguments of a call from its message."""
        name, arrays, at = self._names[words[1]], int(words[2]), 3
        shapes = []
        for _ in range(arrays):
            end = at + 1 + int(words[at])
            shapes.append(tuple(map(int, words[at + 1 : end])))
            at = end
        arguments = []
        for shape in shapes:
            end = at + int(np.prod(shape, dtype=np.int64))
            arguments.append(words[at:end].reshape(shape))
            at = end
        return name, arguments

    def meet(self) -> None:
        """Wait until all processes are here.

        Raises:
            GroupError: A process has ended.
        """
        self._group.run(Kind.ALL_REDUCE, np.ones(1, np.int32), (1,), reduction="sum")

    def _broadcast(self, words: Array) -> Array:
        found: Array = self._group.run(Kind.BROADCAST, words, words.shape, peer=0)
        return found


def _integers(x: Any, name: str) -> Array:
    values = np.asarray(x)
    limits = np.iinfo(np.int32)
    if values.dtype.kind not in "iu" or (
        values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max
    ):
        raise ValueError(f"{name!r}: other processes are told integers of 32 bits only, not {values.dtype}")
    return values.astype(np.int32)


__all__ = ["END", "NOTHING", "Calls"]
