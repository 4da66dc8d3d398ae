"""Starts asynchronous work, such as collective operations, as soon as its operands are there.

The wait stays where the operator was, before its first reader, so other kernels run meanwhile. All processes
of a group compile the same program, so they start their operations in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import graph as g
from ...dialects.graph.base import AsynchronousOp
from ...ir.builder import Builder
from ...ir.core import Block, Module, Operation, OpResult, Value

_LIGHT = (g.Reshape, g.Concat, g.Cast, g.Transpose, g.Slice, g.BroadcastTo)
"""Operators that join and convert operands; they move with the start."""


def start_early(module: Module) -> None:
    """Replace each asynchronous operator by its start, moved up behind the last of its operands, and its
    wait.
    """
    for op in [op for op in module.walk() if isinstance(op, AsynchronousOp)]:
        builder, before, block = Builder.before(op), op.previous, op.parent
        assert block is not None
        begun = op.start(builder)
        moved = block.between(before, op)
        op.replace_by(op.wait(builder, *begun))
        for part in moved:
            _move_up(part, block)


def _move_up(op: Operation, block: Block) -> None:
    """Move an operation directly behind the last producer of its operands, after moving light producers."""
    for value in op.operands:
        producer = value.defining_op
        if isinstance(producer, _LIGHT) and producer.parent is block:
            _move_up(producer, block)
    behind = _last(op.operands, block)
    anchor = block.first if behind is None else behind.next
    if anchor is not op and anchor is not None:
        op.detach()
        block.insert_before(anchor, op)


def _last(values: Sequence[Value], block: Block) -> Operation | None:
    """The last operation of the block that defines one of the values."""
    makers = {v.defining_op for v in values if isinstance(v, OpResult) and v.defining_op.parent is block}
    found = None
    for op in block.ops if makers else ():
        if op in makers:
            found = op
    return found


__all__ = ["start_early"]
