"""The states of a training step as users see them: whole, whatever process keeps which part."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
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
        shards = {} if parallel is None else parallel.shards
        shapes = {e["name"]: tuple(e["shape"]) for e in library.metadata.get("states", ()) if shards}
        known = set(self.names)
        self._shards: dict[str, Shard] = {}
        """The divisions of the optimizer's states ``optimizer.SLOT.PARAMETER`` that are divided."""
        for name in shapes:
            shard = shards.get(_parameter_of(name, known))
            if shard is not None and shapes[name] == (shard.rows,):
                self._shards[name] = shard

    def __getitem__(self, name: str) -> Array:
        value = self.library.state[name]
        shard = self._shards.get(name)
        if shard is None:
            return value
        from ..distributed import all_gather

        assert self.parallel is not None
        whole: Array = shard.whole(all_gather(value, self.parallel.group).numpy())
        return whole

    def __setitem__(self, name: str, value: Array) -> None:
        shard = self._shards.get(name)
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


def _parameter_of(name: str, known: Container[str]) -> str:
    """The parameter of an optimizer's state: the longest name in `known` that ends it, or no name."""
    rest = name
    while rest:
        rest = rest.partition(".")[2]
        if rest in known:
            return rest
    return ""


__all__ = ["States"]
