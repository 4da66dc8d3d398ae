"""What a compiled model keeps from call to call: caches, running statistics, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from tilewright.errors import ShapeError
from tilewright.runtime.tensors import dtype_named, to_numpy


class Memory(Protocol):
    """Where states lie."""

    def read_state(self, index: int, size: int) -> np.ndarray:
        """A copy of `size` bytes."""

    def write_state(self, index: int, data: np.ndarray) -> None:
        """Replace the bytes."""

    def reset_states(self) -> None:
        """Back to the first values."""


class State(Mapping[str, np.ndarray]):
    """The states of a compiled model by name: ``state[name]`` is a copy of one, ``state[name] = tensor`` replaces it, `reset` gives all their first values.

    What a call of the model reads is what the last one wrote, from whichever thread.
    """

    def __init__(
        self, entries: Sequence[dict[str, Any]], memory: Callable[[], Memory], turn: AbstractContextManager[Any]
    ) -> None:
        """`entries`: name, data type and shape of each, as metadata tells them; `turn` is held while memory is looked at."""
        self._entries = {e["name"]: (k, dtype_named(e["dtype"]), tuple(e["shape"])) for k, e in enumerate(entries)}
        self._memory, self._turn = memory, turn

    def _entry(self, name: str) -> tuple[int, np.dtype, tuple[int, ...]]:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"the model has no state '{name}'; its states are {', '.join(self._entries)}") from None

    def __getitem__(self, name: str) -> np.ndarray:
        index, dtype, shape = self._entry(name)
        with self._turn:
            data = self._memory().read_state(index, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return data.view(dtype).reshape(shape)

    def __setitem__(self, name: str, value: Any) -> None:
        """Raises ShapeError: another data type or shape."""
        index, dtype, shape = self._entry(name)
        array = to_numpy(value, name, dtype)
        if array.dtype != dtype or array.shape != shape:
            raise ShapeError(f"state '{name}' is {dtype.name}{list(shape)}, got {array.dtype.name}{list(array.shape)}")
        with self._turn:
            self._memory().write_state(index, array.reshape(-1).view(np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def reset(self) -> None:
        """Give all states the values they had when the model was compiled."""
        if self._entries:
            with self._turn:
                self._memory().reset_states()

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {d.name}{list(s)}" for n, (_, d, s) in self._entries.items())
        return f"State({shown})"


__all__ = ["Memory", "State"]
