"""The roles of a contraction's axes: the value of the note `CONTRACTION` on a computation and on its
block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..ir import notes
from ..ir.core import Operation


@dataclass(frozen=True)
class Roles:
    """The roles of a contraction's axes, as positions into ``axes`` (batch, m, n) and ``reduce_axes`` (k,
    outermost first).
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    nr: int
    padded: bool
    group: int = 1
    quantized: tuple[int, int, tuple[Any, ...]] | None = None
    """For quantized weights: number of groups, elements of a group, and the attribute of their form
    (`dialects.weight_form`).
    """
    grouped: bool = False
    """Whether each row chooses its matrix of the right operand, see `graph.grouped_matmul`."""
    halves: bool = False
    """Whether two columns of the right operand share a byte, see `dialects.simd.Panel`."""

    def as_attribute(self) -> tuple[Any, ...]:
        return (
            self.batch,
            self.m,
            self.n,
            self.k,
            self.nr,
            self.padded,
            self.group,
            self.quantized,
            self.grouped,
            self.halves,
        )

    def behind_a_batch_axis(self) -> Roles:
        """The same roles with a further batch axis in front of all axes."""
        batch, m, n = (tuple(p + 1 for p in part) for part in (self.batch, self.m, self.n))
        return replace(self, batch=(0, *batch), m=m, n=n)

    @staticmethod
    def of(op: Operation) -> Roles | None:
        """The roles of a computation, or of the `loop.block` that it was lowered to; None if it is no
        contraction.
        """
        fields = notes.CONTRACTION.get(op)
        return None if fields is None else Roles(*fields)


__all__ = ["Roles"]
