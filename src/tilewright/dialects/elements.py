"""The elements of buffers that a statement touches, for the dependence analysis.

Loads, stores and accumulations touch the element at their indices. A statement that touches more derives from
`Statement` and lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.core import Operation, Value
from ..ir.symbolic import Dim, Expr, symbol


@dataclass(frozen=True, eq=False)
class Elements:
    """Elements that one run of a statement reads, or reads and writes.

    Attributes:
        op: The statement.
        buffer: The buffer.
        address: Their places, in elements from the start of the flat buffer, over surrounding loop variables
            and `points`.
        points: Symbols of the statement's own, with their bounds: it touches the address for all their
            values.
        writes: Whether it writes them.
    """

    op: Operation
    buffer: Value
    address: Dim
    points: tuple[Expr, ...] = ()
    writes: bool = False

    @property
    def parent_op(self) -> Operation | None:
        """The operation around the statement."""
        return self.op.parent_op


class Statement(Operation):
    """Base of operations that touch other elements of their operands than one at given indices."""

    def touched(self) -> tuple[Elements, ...]:
        """All elements of buffers that a run of the statement reads or writes.

        Scratch memory, whose contents no other statement uses, is left out.
        """
        raise NotImplementedError

    def box(
        self, buffer: Value, offset: Dim, steps: Iterable[tuple[Dim, Dim]], writes: bool = False
    ) -> Elements:
        """The elements of `buffer` from `offset` on that lie at sums of multiples of some strides.

        Args:
            buffer: An operand.
            offset: The address of the first one.
            steps: Pairs (count, stride).
            writes: Whether the statement writes them.
        """
        address = offset
        points: list[Expr] = []
        for count, stride in steps:
            if isinstance(count, int) and count == 1:
                continue
            point = symbol(f"element_{len(points)}", 0, count - 1)
            points.append(point)
            address = address + point * stride
        return Elements(self, buffer, address, tuple(points), writes)


__all__ = ["Elements", "Statement"]
