"""What the axes of a contraction do: a note on a computation, and on the block it becomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..ir.core import Operation

CONTRACTION = "tw.contraction"
"""Discardable attribute of a computation that `tensorize` can take: the roles of its axes, see `Roles`."""


@dataclass(frozen=True)
class Roles:
    """What the axes of a contraction do: positions into ``axes`` (batch, m, n) and ``reduce_axes`` (k, outermost first)."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    nr: int
    padded: bool
    group: int = 1
    quantized: tuple[int, int, int] | None = None
    """Of a `graph.scaled_matmul`: bits of a code, groups, and elements of a group."""
    grouped: bool = False
    """Whether every row chooses its matrix of the right operand, see `graph.grouped_matmul`."""

    def as_attribute(self) -> tuple[Any, ...]:
        return (self.batch, self.m, self.n, self.k, self.nr, self.padded, self.group, self.quantized, self.grouped)

    def behind_a_batch_axis(self) -> Roles:
        """The same roles after a further axis of the batch in front of all axes."""
        batch, m, n = (tuple(p + 1 for p in part) for part in (self.batch, self.m, self.n))
        return replace(self, batch=(0, *batch), m=m, n=n)

    @staticmethod
    def of(op: Operation) -> Roles | None:
        """The roles of a computation, or of the `loop.block` it became; None when it is no contraction."""
        found = op.attributes.get(CONTRACTION)
        return None if found is None else Roles(*found)


__all__ = ["CONTRACTION", "Roles"]
