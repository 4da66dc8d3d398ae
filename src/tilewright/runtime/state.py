"""`ModelState`: the tensors that a compiled model keeps from call to call, such as caches, running statistics
and counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from tilewright.errors import ShapeError
from tilewright.runtime.tensors import dtype_named, to_numpy


class Memory(Protocol):
    """The memory of the states, by number; `size` and `data` are bytes."""

    def read_state(self, index: int, size: int) -> np.ndarray:
        """A copy of a state of `size` bytes, as uint8."""

    def write_state(self, index: int, data: np.ndarray) -> None:
        """Replace a state's bytes."""

    def reset_states(self) -> None:
        """Give all states their first values."""


class ModelState(Mapping[str, np.ndarray]):
    """The states of a compiled model by name.

    ``state[name]`` is a copy of one as a NumPy array, ``state[name] = tensor`` replaces its contents with a
    tensor of the same shape and data type, and `reset` gives all states their first values. A call of the
    model reads what the call before it wrote, whichever thread made it.

    Raises:
        KeyError: The model has no state of that name; the message lists its states.
        ShapeError: The new value has another data type or shape.
    """

    def __init__(
        self,
        entries: Sequence[dict[str, Any]],
        memory: Callable[[], Memory],
        turn: AbstractContextManager[Any],
    ) -> None:
        """Describe the states.

        Args:
            entries: Name, data type and shape of each, from the metadata.
            memory: Returns the memory of the states.
            turn: Held while the memory is read or written.
        """
        self._entries = {
            e["name"]: (k, dtype_named(e["dtype"]), tuple(e["shape"])) for k, e in enumerate(entries)
        }
        self._memory, self._turn = memory, turn

    def _entry(self, name: str) -> tuple[int, np.dtype, tuple[int, ...]]:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(
                f"the model has no state '{name}'; its states are {', '.join(self._entries)}"
            ) from None

    def __getitem__(self, name: str) -> np.ndarray:
        index, dtype, shape = self._entry(name)
        with self._turn:
            data = self._memory().read_state(index, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return data.view(dtype).reshape(shape)

    def view(self, name: str) -> np.ndarray:
        """A state as a NumPy array in the model's own memory, which calls of the model read and write. It
        must not be used after the model is closed.

        Raises:
            KeyError: The model has no state of that name.
            TypeError: The state is not in this process's memory.
        """
        index, dtype, shape = self._entry(name)
        with self._turn:
            view = getattr(self._memory(), "view_state", None)
            if view is None:
                raise TypeError("the model's memory is not this process's own: read and write its states")
            data: np.ndarray = view(index, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return data.view(dtype).reshape(shape)

    def __setitem__(self, name: str, value: object) -> None:
        """Replace a state's contents.

        Raises:
            ShapeError: The value has another data type or shape.
        """
        index, dtype, shape = self._entry(name)
        array = to_numpy(value, name, dtype)
        if array.dtype != dtype or array.shape != shape:
            raise ShapeError(
                f"state '{name}' is {dtype.name}{list(shape)}, got {array.dtype.name}{list(array.shape)}"
            )
        with self._turn:
            self._memory().write_state(index, array.reshape(-1).view(np.uint8))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def reset(self) -> None:
        """Give all states the values that they had when the model was compiled."""
        if self._entries:
            with self._turn:
                self._memory().reset_states()

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {d.name}{list(s)}" for n, (_, d, s) in self._entries.items())
        return f"ModelState({shown})"


__all__ = ["Memory", "ModelState"]
