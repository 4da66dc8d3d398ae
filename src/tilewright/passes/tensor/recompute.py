"""Computes cheap values again for readers that come much later, instead of keeping them in memory.

A training step reads the results of activations twice: the next layer in the forward pass, the gradient of
its weights in the backward pass. The activation's own gradient keeps the operand alive as well, so both would
wait in memory (selective recomputation: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
"""

from __future__ import annotations

from ...analysis.contraction import match_contraction
from ...dialects import scalar, tensor
from ...ir import notes
from ...ir.core import Block, Module, Operation, OpResult, Value
from ...ir.symbolic import prove_le
from ...ir.target_info import TargetInfo
from .fuse_elementwise import (
    MAX_BODY,
    belongs_to_contraction,
    compose_into,
    cost_of,
    points,
    producer_of,
    substitute_producer,
)
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


def recompute(module: Module, info: TargetInfo | None = None) -> None:
    """Substitute elementwise values into late readers if what they are computed from is alive there anyway.
    A reader that is left alone is fused with the value where `fuse_elementwise` would have done so.

    ``h = gelu(x); y = h @ w; ...; dw = pack(h) @ dy; dx = dh * gelu'(x)`` ->
    ``h = gelu(x); y = h @ w; ...; dw = pack(gelu(x)) @ dy; dx = dh * gelu'(x)``

    The reader's traffic does not grow: at most one operand of the value is as large as the value.
    """
    for block in tensor.blocks_of_computations(module):
        _Block(block).apply(info)


class _Block:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.place = {op: k for k, op in enumerate(block.ops)}

    def apply(self, info: TargetInfo | None) -> None:
        for op in list(self.block.ops):
            if op.parent is None:
                continue  # no reader is left
            if isinstance(op, tensor.Compute) and not op.is_reduction and _is_cheap(op):
                late = self._late_reads(op)
                for read in late:
                    substitute_producer(read)
                if late and len(left := readers_in(op.result, self.block)) == 1:
                    (reader,) = left
                    # the factors of a contraction have been packed as its schedule needs them
                    if isinstance(reader, tensor.Compute) and not notes.CONTRACTION.present(reader):
                        compose_into(reader, info)

    def _late_reads(self, op: tensor.Compute) -> list[tensor.Read]:
        """The reads of a value in late readers, if all of these can compute it again from what is in memory;
        those in all readers, if these can compute it from one tensor that needs no more memory.
        """
        readers = sorted(readers_in(op.result, self.block), key=self.place.__getitem__)
        large = _large_operands(op)
        if len(large) > 1:
            return []
        found = [_substitutable(reader, op) for reader in readers]
        for k in range(len(readers) - 1, 0, -1):
            if found[k] is None:
                break
            if self.place[readers[k]] - self.place[readers[k - 1]] > FAR:
                if all(self._is_alive(value, self.place[readers[k]]) for value in large):
                    return [read for reads in found[k:] for read in reads or ()]
                whole = None not in found and all(_takes_place(value, op) for value in large)
                return [read for reads in found for read in reads or ()] if whole else []
        return []

    def _is_alive(self, value: Value, place: int) -> bool:
        """Whether a value is in memory at a place of the block."""
        if not isinstance(value, OpResult) or value.op.parent is not self.block:
            return True  # from outside, such as an input
        last = max((self.place[x] for x in readers_in(value, self.block)), default=0)
        return last >= place - FAR


def _large_operands(op: tensor.Compute) -> set[Value]:
    """The operands of a value that are not small beside it."""
    values = {memory_of(r.source) for r in op.reads}
    return {v for v in values if not prove_le(v.type.size * SHARE, op.result.type.size)}


def _takes_place(value: Value, op: tensor.Compute) -> bool:
    """Whether keeping an operand instead of the result of an operation takes no more memory, and the operand
    is in memory anyway: it is no sum of products whose epilogue the operation is.
    """
    size = op.result.type.size * op.result.type.dtype.itemsize
    return prove_le(value.type.size * value.type.dtype.itemsize, size) and not belongs_to_contraction(op)


def _is_cheap(op: tensor.Compute) -> bool:
    heavy, cheap, _ = cost_of(op)
    return heavy <= HEAVY and cheap <= CHEAP and not any(isinstance(x, scalar.Index) for x in op.body.ops)


def _substitutable(reader: Operation, op: tensor.Compute) -> list[tensor.Read] | None:
    """The reads of a value in a computation that can compute it instead; None if it needs it in memory."""
    if not isinstance(reader, tensor.Compute) or notes.CONTRACTION.present(reader):
        return None
    if match_contraction(reader) is not None:
        return None
    if len(reader.body) + len(op.body) > MAX_BODY:
        return None
    if reader.is_reduction and not prove_le(points(reader), op.result.type.size):
        return None  # it would compute an element more than once
    reads = [r for r in reader.reads if memory_of(r.source) is op.result]
    if len(reads) != 1 or reads[0].dynamic:
        return None
    producer = producer_of(reads[0])
    return reads if producer is not None and producer.op is op else None


__all__ = ["recompute"]
