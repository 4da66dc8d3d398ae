"""Random numbers as a function of a key and a counter: nothing is handed on, so every element is computed by
itself, anywhere.

Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.core import IRError, Operand, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim
from ...ir.types import TensorType, Type, u32
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import GraphOp, broadcast_index, broadcast_shapes, tensor_type

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _threefry(
    key: Sequence[Any], counter: Sequence[Any], rotate: Callable[[Any, int], Any]
) -> tuple[Any, Any]:
    """20 rounds on words with the operators ``+``, modulo 2^32, and ``^``."""
    schedule = (*key, key[0] ^ key[1] ^ _PARITY)
    a, b = counter[0] + schedule[0], counter[1] + schedule[1]
    for turn in range(5):
        for distance in _ROTATIONS[turn % 2]:
            a = a + b
            b = rotate(b, distance) ^ a
        a = a + schedule[(turn + 1) % 3]
        b = b + schedule[(turn + 2) % 3] + (turn + 1)
    return a, b


@operation
class Threefry(GraphOp):
    """Threefry-2x32 with 20 rounds: two random words (u32) for each counter of two words under a key of two
    words, with broadcasting.

    Results: the two words. Equal counters under one key give equal words; different keys or counters give
    independent ones. The function that ``jax.random`` is built on.
    """

    name = "graph.threefry"
    key0: Operand
    key1: Operand
    counter0: Operand
    counter1: Operand

    def infer_types(self) -> Sequence[Type]:
        types = [tensor_type(v) for v in self.operands]
        if any(t.dtype is not u32 for t in types):
            raise IRError(f"needs four tensors of u32, got {', '.join(map(str, types))}", self)
        return (TensorType(u32, broadcast_shapes(*(t.shape for t in types), op=self)),) * 2

    def reference(self, *words: Array) -> Any:
        def rotate(x: Array, distance: int) -> Array:
            return (x << distance) | (x >> (32 - distance))

        key0, key1, counter0, counter1 = np.broadcast_arrays(*words)
        with np.errstate(over="ignore"):
            return tuple(np.asarray(w) for w in _threefry((key0, key1), (counter0, counter1), rotate))

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        def rotate(x: Scalar, distance: int) -> Scalar:
            return x.shl(distance) | x.shr(32 - distance)

        def word(k: int) -> TensorRef:
            def element(*i: Dim) -> Scalar:
                key0, key1, *counter = (x[broadcast_index(i, x.shape)] for x in operands)
                word: Scalar = _threefry((key0, key1), counter, rotate)[k]
                return word

            return t.compute(self.results[0].type.shape, element)

        return word(0), word(1)


__all__ = ["Threefry"]
