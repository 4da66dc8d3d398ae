"""The rule of kernels of the user's: threads share the range of the call."""

from __future__ import annotations

from ....analysis.index_maps import product
from ....dialects import kernels
from ....ir import notes
from ....ir.symbolic import Dim, prove_eq
from ....schedule import Schedule
from .common import set_grain


def call(s: Schedule, rows: int) -> None:
    """Note how many iterations of a call's range are worth a thread: the description's number, or one by the
    elements that an iteration moves.
    """
    (op,) = [x for x in s.kernel.walk() if isinstance(x, kernels.Call)]
    definition = kernels.definition_of(op)
    if definition.grain is not None:
        notes.GRAIN.set(s.kernel, definition.grain)
        return
    elements: Dim = 1
    for buffer in op.buffers:
        shape = buffer.type.shape
        if shape and prove_eq(shape[0], op.range):
            elements = elements + product(shape[1:])
    set_grain(s, elements)


__all__ = ["call"]
