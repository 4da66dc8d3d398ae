"""Factors in shared memory for matrix instructions that read them there (``wgmma``): the layout of their
tiles, and the statements that order copies and instructions.

Tiles consist of lines of at most 128 bytes. The parts of 16 bytes of a line are exchanged by its number in a
group of eight (a swizzle), so that neither copies nor instructions meet in a bank. Longer rows are cut into
panels, one after the other. Source: the section "Asynchronous Warpgroup Level Matrix Shared Memory Layout" of
the PTX ISA.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.loop_nest import accesses_of
from ..dialects import loop, simt
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.symbolic import Dim
from ..ir.types import BufferType
from .core import ScheduleError

WIDTHS = (128, 64, 32)
"""Bytes of a line, the preferred ones first."""
GROUP = 8
"""Lines whose parts are exchanged in different ways."""


def shared_factors(buffer: Value) -> list[tuple[simt.Mma, str]]:
    """The instructions that read a buffer in shared memory, each with the letter of the factor."""
    return [
        (op, letter)
        for op in buffer.users
        if isinstance(op, simt.Mma) and op.description.shared
        for letter, factor in (("a", op.a), ("b", op.b))
        if factor is buffer
    ]


def set_place(op: simt.Mma, letter: str, indices: Sequence[Dim]) -> None:
    """Let an instruction read the factor `letter` at other indices."""
    if letter == "a":
        op.a_indices = tuple(indices)
    else:
        op.b_indices = tuple(indices)


def place_of(op: simt.Mma, letter: str) -> tuple[Dim, ...]:
    """The indices at which an instruction reads the factor `letter`."""
    indices: tuple[Dim, ...] = op.a_indices if letter == "a" else op.b_indices
    return indices


def lay_out(alloc: loop.Alloc) -> None:
    """Give a tile in shared memory the layout that instructions need.

    Raises:
        ScheduleError: Its rows are no multiple of 32 bytes, or their number is none of 8.
    """
    rows, row = alloc.buffer.shape if len(alloc.buffer.shape) == 2 else (0, 0)
    itemsize = alloc.buffer.dtype.itemsize
    width = next((w for w in WIDTHS if isinstance(row, int) and row and row * itemsize % w == 0), 0)
    if not width or not isinstance(rows, int) or rows % GROUP:
        raise ScheduleError(
            f"tensorize_atom: a tile of {alloc.buffer.shape} elements does not consist of groups of {GROUP} "
            f"lines of {WIDTHS[-1]} to {WIDTHS[0]} bytes"
        )
    notes.SWIZZLE.set(alloc, width)
    line = width // itemsize
    if row == line:
        return
    for op in accesses_of(alloc.result):
        op.indices = (op.indices[1] // line, op.indices[0], op.indices[1] % line)
    for mma, letter in shared_factors(alloc.result):
        i, j = place_of(mma, letter)
        set_place(mma, letter, (j // line, i, j % line))
    alloc.buffer = BufferType(alloc.buffer.dtype, (row // line, rows, line), "shared")
    alloc.result.type = alloc.buffer


def order_shared_atoms(kernel: loop.Kernel) -> None:
    """Put the statements around instructions with factors in shared memory, and before barriers, that they
    need.
    """
    found = [op for op in kernel.walk() if isinstance(op, simt.Mma) and op.description.shared]
    if not found:
        return
    tops: dict[Operation, Value] = {}
    for mma in found:
        top: Operation = mma
        while isinstance(f := top.parent_op, loop.For) and f.kind == loop.LoopKind.UNROLL:
            top = f
        tops[top] = mma.d
    for top, result in tops.items():
        assert top.parent is not None
        top.parent.insert_before(top, simt.BeginAtoms(result))
        top.parent.insert_after(top, simt.WaitAtoms(result))
    for barrier in [op for op in kernel.walk() if isinstance(op, simt.Barrier)]:
        Builder.before(barrier).insert(simt.ShowToAtoms())


__all__ = ["lay_out", "order_shared_atoms", "place_of", "set_place", "shared_factors"]
