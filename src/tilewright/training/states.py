"""The states of a training step as users see them: whole, whatever process keeps which part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..runtime.model import CompiledModel
from .data_parallel import DataParallel, Shard

Array = np.ndarray[Any, Any]
_HANDLES = "group."
"""The prefix of the states that hold handles of process groups, which belong to the process."""


class States(Mapping[str, Array]):
    """Parameters, buffers, the optimizer's state and the step's numbers by name.

    Reading a state that is divided among processes gathers it, so all processes read it.
    """

    def __init__(self, library: CompiledModel, parallel: DataParallel | None = None) -> None:
        self.library, self.parallel = library, parallel
        self.names = [n for n in library.state if not n.startswith(_HANDLES)]

    def _shard(self, name: str) -> Shard | None:
        """The division of an optimizer's state ``optimizer.SLOT.PARAMETER``; None if it is whole."""
        if self.parallel is None or not name.startswith("optimizer."):
            return None
        for parameter, shard in self.parallel.shards.items():
            if name.endswith(f".{parameter}"):
                shape = next(e["shape"] for e in self.library.metadata["states"] if e["name"] == name)
                return shard if tuple(shape) == (shard.rows,) else None
        return None

    def __getitem__(self, name: str) -> Array:
        value = self.library.state[name]
        shard = self._shard(name)
        if shard is None:
            return value
        from ..distributed import all_gather

        assert self.parallel is not None
        whole: Array = shard.whole(all_gather(value, self.parallel.group).numpy())
        return whole

    def __setitem__(self, name: str, value: Array) -> None:
        shard = self._shard(name)
        if shard is not None:
            assert self.parallel is not None
            padded = np.zeros(shard.size * shard.rows, value.dtype)
            padded[: shard.elements] = value.reshape(-1)
            value = np.split(padded, shard.size)[self.parallel.group.rank]
        self.library.state[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


__all__ = ["States"]
