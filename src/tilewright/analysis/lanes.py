"""Whether the iterations of a loop can run side by side in the lanes of vectors."""

from __future__ import annotations

from collections.abc import Callable

from ..dialects import loop
from ..dialects.scalar import Index, ScalarOp
from ..ir.core import Block, Value
from ..ir.substitution import linear_in
from ..ir.symbolic import Dim, free_symbols
from .index_maps import flatten_index
from .loop_nest import Access
from .witness import describe


def obstacle_to_lanes(
    f: loop.For, *, masked: bool, resolve: Callable[[Dim], Dim] = lambda e: e
) -> str | None:
    """Why the iterations of a loop cannot run in vector lanes; None if they can.

    Args:
        f: a loop of a kernel without blocks.
        masked: whether the target's vector instructions can leave out lanes.
        resolve: returns an index expression with the values of loop variables that are known.
    """
    return _Lanes(f, masked, resolve).obstacle(f.body)


class _Lanes:
    """The values of a loop's body that differ between lanes, and what keeps it from running in lanes."""

    def __init__(self, f: loop.For, masked: bool, resolve: Callable[[Dim], Dim]) -> None:
        self.loop, self.masked, self.resolve = f, masked, resolve
        self.varying: set[Value] = set(f.body.args)

    def varies(self, e: Dim) -> bool:
        e = self.resolve(e)
        return not isinstance(e, int) and self.loop.iv in free_symbols(e)

    def obstacle(self, block: Block) -> str | None:
        for op in block.ops:
            reason = None
            operands_vary = any(v in self.varying for v in op.operands)
            if isinstance(op, Index):
                if self.varies(op.expr):
                    self.varying.add(op.result)
            elif isinstance(op, ScalarOp):
                if operands_vary:
                    self.varying.add(op.result)
            elif isinstance(op, (loop.Load, loop.Store, loop.Accumulate)):
                reason = self.obstacle_of_access(op, operands_vary)
            elif isinstance(op, loop.For):
                if self.varies(op.extent):
                    reason = f"the extent of loop {str(op.iv.name)!r} ({op.extent}) differs between lanes"
                elif op.kind == loop.LoopKind.VECTORIZE:
                    reason = f"loop {str(op.iv.name)!r} inside is vectorized, too"
                else:
                    self.varying.update(op.body.args)
                    reason = self.obstacle(op.body)
                    self.varying.update(op.results)
            elif isinstance(op, loop.If):
                if any(map(self.varies, op.conditions)) and not self.masked:
                    reason = "a condition differs between lanes, and the target has no masked instructions"
                else:
                    reason = self.obstacle(op.body)
            elif not isinstance(op, loop.Yield):
                reason = f"'{op.name}' inside does not run in lanes"
            if reason is not None:
                return reason
        return None

    def obstacle_of_access(self, op: Access, operands_vary: bool) -> str | None:
        address = self.resolve(flatten_index(op.indices, op.buffer.type.shape))
        dynamic = any(v in self.varying for v in op.dynamic)
        moves = self.varies(address) or dynamic
        if isinstance(op, loop.Load):
            if moves or operands_vary or any(map(self.varies, op.guard)):
                self.varying.add(op.result)
            return None
        if dynamic:
            return f"the data give the place of {describe(op)}, and lanes may write the same element"
        if isinstance(op, loop.Accumulate):
            parts = linear_in(address, self.loop.iv)
            if parts is None or not isinstance(parts[0], int) or parts[0] == 0:
                return f"{describe(op)} does not move by a constant step from lane to lane"
        elif not moves and op.value in self.varying:
            return f"{describe(op)} has one place for the different values of all lanes"
        return None


__all__ = ["obstacle_to_lanes"]
