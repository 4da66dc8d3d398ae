"""Training steps in several processes: each computes its part of the batch, and gradients are averaged.

With `sharded`, each process keeps and updates its part of every large parameter's optimizer state (the first
stage of ZeRO: Rajbhandari et al., 2020): gradients are reduced and scattered, and the new parts of the
parameters are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..distributed import Group, all_gather, all_reduce, all_reduce_tree, rank, reduce_scatter
from ..errors import CompileError
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from .models import Tensors

LEAST_SHARDED = 1 << 12
"""Elements of the smallest parameter whose optimizer state is divided; the exchange of smaller ones takes
longer than their update.
"""
_RANK_SEED = 0x632BE59BD9B4E019
"""Separates the seeds of processes: the increment of xorshift generators' seeds (Vigna, 2016)."""


@dataclass(frozen=True)
class Shard:
    """A parameter that is divided among the processes: flat, with zeros up to `size` parts of `rows`."""

    shape: tuple[int, ...]
    rows: int
    size: int

    @property
    def elements(self) -> int:
        """The elements of the whole parameter."""
        return int(np.prod(self.shape))

    def divided(self, whole: Tensor) -> Tensor:
        """Return the parameter as (size, rows)."""
        padded = tnp.pad(whole.reshape(-1), ((0, self.size * self.rows - self.elements),))
        return padded.reshape(self.size, self.rows)

    def whole(self, flat: Any) -> Any:
        """Return the parameter of (size * rows)."""
        return flat[: self.elements].reshape(self.shape)


@dataclass
class DataParallel:
    """How the processes of a group train together."""

    group: Group
    sharded: bool
    shards: dict[str, Shard] = field(default_factory=dict)
    """The parameters whose optimizer state is divided."""

    def divide(self, parameters: Mapping[str, Tensor], optimizer: object) -> Tensors:
        """Choose the parameters to divide; return what the optimizer's state is made for.

        Raises:
            CompileError: The optimizer's update of an element depends on other elements.
        """
        if not self.sharded or self.group.size == 1:
            return dict(parameters)
        if not getattr(optimizer, "elementwise", False):
            raise CompileError(
                f"{type(optimizer).__name__} cannot be sharded: its update of an element depends on others. "
                "Take an elementwise optimizer (SGD, Adam, AdamW, Lion), or leave sharded=True out"
            )
        size = self.group.size
        self.shards = {
            n: Shard(tuple(p.shape), -(-int(p.size) // size), size)
            for n, p in parameters.items()
            if int(p.size) >= max(LEAST_SHARDED, size)
        }
        return {
            n: Tensor(np.zeros(self.shards[n].rows, p.dtype)) if n in self.shards else p
            for n, p in parameters.items()
        }

    def seed(self, seed: Tensor) -> Tensor:
        """Return another seed for each process, so that their dropout differs."""
        return seed + rank(self.group) * np.int64(_RANK_SEED)

    def reduced(
        self, results: Tensors, buffers: Tensors, gradients: Tensors
    ) -> tuple[dict[str, Tensor], Tensors, Tensors]:
        """Return the means of results, floating-point buffers and gradients over the processes; of divided
        parameters this process's part of the gradient.
        """
        floats = {n: b for n, b in buffers.items() if b.type.dtype.is_float}
        # In the order in which a backward pass computes gradients, from the last to the first.
        kinds = (("buffer", floats), ("gradient", gradients), ("result", results))
        whole = {
            (kind, n): x
            for kind, tensors in kinds
            for n, x in tensors.items()
            if not (kind == "gradient" and n in self.shards) and x.type.dtype.is_float
        }
        names = {f"{kind}.{n}": (kind, n) for kind, n in whole}
        means = all_reduce_tree({k: whole[place] for k, place in names.items()}, "mean", self.group)
        found = {names[k]: x for k, x in means.items()}
        parts = {
            n: reduce_scatter(self.shards[n].divided(gradients[n]), "mean", self.group).reshape(-1)
            for n in reversed(list(self.shards))
        }
        return (
            {n: found.get(("result", n), x) for n, x in results.items()},
            {n: found.get(("buffer", n), x) for n, x in buffers.items()},
            {n: parts[n] if n in parts else found["gradient", n] for n in gradients},
        )

    def squares(self, squares: Tensor, names: list[str]) -> Tensor:
        """Return the sums of squares of whole gradients, given those of this process's parts, by `names`."""
        if not self.shards:
            return squares
        share = [1.0 if n in self.shards else 1.0 / self.group.size for n in names]
        return all_reduce(squares * np.array(share, np.float32), "sum", self.group)

    def own(self, parameters: Tensors) -> Tensors:
        """Return the parameters, of divided ones this process's part."""
        if not self.shards:
            return parameters
        place = rank(self.group)
        return {n: self.shards[n].divided(p)[place] if n in self.shards else p for n, p in parameters.items()}

    def whole(self, parameters: Tensors) -> Tensors:
        """Return the parameters, divided ones gathered from all processes."""
        return {
            n: self.shards[n].whole(all_gather(p, self.group)) if n in self.shards else p
            for n, p in parameters.items()
        }


__all__ = ["DataParallel", "Shard"]
