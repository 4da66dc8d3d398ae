"""The simt dialect: statements that all threads of a GPU block run together.

A kernel of a GPU is a *block program*. Its outermost loops, of the kinds ``block.x`` to ``block.z``, number
the blocks. Inside them stands the block's body, a sequence of

- allocations: in space ``shared``, one buffer for the block; in space ``register``, a private part for
  each thread, whose number is the first index;
- serial and unrolled loops, and conditions, that are the same for all threads;
- *thread nests*: loops of kind ``thread.x``, whose variable is the number of the thread;
- statements of this dialect.

Run one after the other, the iterations of all loops compute the same values, so the interpreter executes a
block program as it is. Threads that run at the same time need a `Barrier` between two nests that exchange
values through memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.core import Attr, Effect, IRError, Operand, Operation, operation
from ..ir.interpreter import Array, Frame
from ..ir.types import Type
from .elements import Elements, Statement
from .scalar import BINARY, COMBINER_OP


@operation
class Barrier(Operation):
    """Every thread of the block waits until all others have reached this place. Their writes to shared and
    global memory are then visible.
    """

    name = "simt.barrier"
    effects = Effect.READ | Effect.WRITE

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Frame) -> tuple[()]:
        return ()


@operation
class AllReduce(Statement):
    """Combine values of threads in place: every thread gets the result of its group.

    `buffer`, in space ``register``, has one element for each thread. Threads are grouped by `count`, a power
    of two: the first `count`, the next `count`, and so on. Each element becomes the combination, with
    `combiner`, of all elements of its group. Pairs are combined at the distances 1, 2, 4, ..., `count` / 2,
    so that all threads of a group get the same bits.

    While a kernel is being scheduled, the buffer is a local one of any shape whose elements, in row-major
    order, will be those of successive threads.
    """

    name = "simt.all_reduce"
    effects = Effect.READ | Effect.WRITE
    buffer: Operand
    combiner: Attr
    count: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        shape = self.buffer.type.shape
        if self.count < 1 or self.count & (self.count - 1):
            raise IRError(f"groups of {self.count} threads: not a power of two", self)
        if not shape or not isinstance(shape[-1], int) or shape[-1] % self.count:
            raise IRError(f"{shape} elements are not whole groups of {self.count}", self)

    def touched(self) -> tuple[Elements, ...]:
        return (self.box(self.buffer, 0, [(self.buffer.type.size, 1)], writes=True),)

    def interpret(self, env: Frame, buffer: Array) -> tuple[()]:
        combine = BINARY[COMBINER_OP[self.combiner]].function
        flat = buffer.reshape(-1)
        threads = np.arange(len(flat))
        distance = 1
        with np.errstate(all="ignore"):
            while distance < self.count:
                flat[...] = combine(flat, flat[threads ^ distance])
                distance *= 2
        return ()


__all__ = ["AllReduce", "Barrier"]
