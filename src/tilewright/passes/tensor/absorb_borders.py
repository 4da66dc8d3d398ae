"""Lets products of bytes read images without the constants around them, where the target copies rows anyway.

A convolution reads a padded copy of its image. Targets that copy the rows of its windows to the stack
(`TargetInfo.byte_rows`, microcontrollers) fill in the constants there: the guards of the copy become guards
of the convolution's read, and the copy, often the largest buffer at that time, is no longer needed.

Runs after `split_borders`, which leaves the copies of images that others read, too.
"""

from __future__ import annotations

from ...analysis.axis_roles import Roles
from ...analysis.index_maps import symbols_of
from ...dialects import scalar, tensor
from ...ir import notes
from ...ir.core import Module
from ...ir.symbolic import Expr
from ...ir.target_info import TargetInfo
from ...ir.types import i8, u8
from .fuse_elementwise import producer_of, substitute_producer


def absorb_borders(module: Module, info: TargetInfo) -> None:
    """Substitute padded copies for the images of convolutions of bytes with packed weights."""
    if not info.byte_rows:
        return
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            roles = Roles.of(op) if isinstance(op, tensor.Compute) and notes.CONTRACTION.present(op) else None
            if roles is None or roles.quantized or not roles.padded or roles.group == 1:
                continue
            assert isinstance(op, tensor.Compute)
            innermost = op.reduce_axes[roles.k[-1]]
            for read in list(op.reads):
                if _is_border(read, innermost):
                    substitute_producer(read)


def _is_border(read: tensor.Read, innermost: Expr) -> bool:
    """Whether a read is of a copy with constants around it, of bytes, whose guards do not depend on the
    innermost axis of the sum.
    """
    found = producer_of(read)
    if found is None or read.guard or read.result.type not in (i8, u8):
        return False
    copied = found.op.body.terminator.operands[0].defining_op
    if not isinstance(copied, tensor.Read) or copied.dynamic or not copied.guard or copied.otherwise is None:
        return False
    guarded = symbols_of(copied.guard)
    moved = [e for axis, e in zip(found.op.axes, found.indices, strict=True) if axis in guarded]
    return isinstance(copied.otherwise.defining_op, scalar.Constant) and innermost not in symbols_of(moved)
