"""Computes cheap values again for readers that come much later, instead of keeping them in memory.

A training step reads the results of activations twice: the next layer in the forward pass, the gradient of
its weights in the backward pass. The activation's own gradient keeps the operand alive as well, so both would
wait in memory (selective recomputation: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
"""

from __future__ import annotations

from ...analysis.contraction import match_contraction
from ...dialects import scalar, tensor
from ...ir.core import Block, Module, Operation, OpResult
from ...ir.symbolic import prove_le
from .fuse_elementwise import MAX_BODY, cost_of, producer_of, substitute_producer
from .write_in_place import memory_of, readers_in

FAR = 24
"""Computations between two readers from which on the later one computes the value again. A smaller value also
repeats work between neighbours, such as the branches of a layer; a larger one keeps the values of the last
layers.
"""
SHARE = 8
"""A tensor of at most this part of a value may be kept for longer so that the value can be computed again. A
larger value needs narrower rows for statistics to count as small.
"""
HEAVY, CHEAP = 1, 24
"""The most exponentials and the like, and other operations, for an element that is computed again. With more,
the time exceeds that of reading the element from memory.
"""


def recompute(module: Module) -> None:
    """Substitute elementwise values into late readers if what they are computed from is alive there anyway.

    ``h = gelu(x); y = h @ w; ...; dw = pack(h) @ dy; dx = dh * gelu'(x)`` ->
    ``h = gelu(x); y = h @ w; ...; dw = pack(gelu(x)) @ dy; dx = dh * gelu'(x)``

    The reader's traffic does not grow: at most one operand of the value is as large as the value.
    """
    for block in tensor.blocks_of_computations(module):
        _Block(block).apply()


class _Block:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.place = {op: k for k, op in enumerate(block.ops)}

    def apply(self) -> None:
        for op in list(self.block.ops):
            if isinstance(op, tensor.Compute) and not op.is_reduction and _is_cheap(op):
                for read in self._late_reads(op):
                    substitute_producer(read)

    def _late_reads(self, op: tensor.Compute) -> list[tensor.Read]:
        """The reads of a value in late readers, if all of these can compute it again."""
        readers = sorted(readers_in(op.result, self.block), key=self.place.__getitem__)
        late: list[tensor.Read] = []
        while len(readers) > 1 and (reads := _substitutable(readers[-1], op)) is not None:
            late += reads
            last = readers.pop()
            if self.place[last] - self.place[readers[-1]] > FAR:
                return late if self._are_alive(op, self.place[last]) else []
        return []

    def _are_alive(self, op: tensor.Compute, place: int) -> bool:
        """Whether the operands of a value are small or in memory at a place of the block."""
        large = 0
        for value in {memory_of(r.source) for r in op.reads}:
            if prove_le(value.type.size * SHARE, op.result.type.size):
                continue
            large += 1
            if not isinstance(value, OpResult) or value.op.parent is not self.block:
                continue  # from outside, such as an input
            last = max((self.place[x] for x in readers_in(value, self.block)), default=0)
            if last < place - FAR:
                return False
        return large <= 1


def _is_cheap(op: tensor.Compute) -> bool:
    heavy, cheap, _ = cost_of(op)
    return heavy <= HEAVY and cheap <= CHEAP and not any(isinstance(x, scalar.Index) for x in op.body.ops)


def _substitutable(reader: Operation, op: tensor.Compute) -> list[tensor.Read] | None:
    """The reads of a value in a computation that can compute it instead; None if it needs it in memory."""
    if not isinstance(reader, tensor.Compute) or match_contraction(reader) is not None:
        return None
    if reader.is_reduction or len(reader.body) + len(op.body) > MAX_BODY:
        return None
    reads = [r for r in reader.reads if memory_of(r.source) is op.result]
    if len(reads) != 1 or reads[0].dynamic:
        return None
    producer = producer_of(reads[0])
    return reads if producer is not None and producer.op is op else None


__all__ = ["recompute"]
