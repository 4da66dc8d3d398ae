"""Random bits, equal to those of XLA's Threefry and Philox generators.

Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import u32, u64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import UNSIGNED

if TYPE_CHECKING:
    from ..node import Node

WORD = 0xFFFFFFFF
FACTORS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)


@importer("rng_bit_generator")
def _rng_bit_generator(n: Node) -> list[Value]:
    """Return the new state and the bits. The state is a key and a counter of blocks. The default algorithm is
    XLA's default for CPUs, Philox.
    """
    state, algorithm = n.inputs[0], n.word("rng_algorithm")
    if state.type.dtype is not u64 or state.type.shape != (2,):
        raise Unsupported(f"a state of type {state.type}; it must be two words of 64 bits")
    key, counter = (n.reshape(n.slice(state, (k,), (k + 1,)), ()) for k in (0, 1))
    dtype = n.dtype(1)
    if dtype.is_float or dtype.bits not in UNSIGNED:
        raise Unsupported(f"element type {dtype.label}")
    shape = [d or 0 for d in n.shape(1)]
    words, count = (_threefry if algorithm == "THREE_FRY" else _philox)(
        n, key, counter, shape, dtype.bits == 64
    )
    if len(words) == 2:
        low, high = words
        y = n.binary("or", n.cast(low, u64), n.binary("shl", n.cast(high, u64), 32))
    else:
        y = n.cast(words[0], UNSIGNED[dtype.bits])
    after = [n.reshape(x, (1,)) for x in (key, n.binary("add", counter, count))]
    return [n.concat(after, 0), n.cast(n.reshape(y, shape), dtype)]


def _halves(n: Node, x: Value) -> list[Value]:
    """Return the low and the high 32 bits of words of 64 bits."""
    return [n.binary("and", x, WORD), n.binary("shr", x, 32)]


def _threefry(
    n: Node, key: Value, counter: Value, shape: Sequence[int], pairs: bool
) -> tuple[Sequence[Value], int]:
    """Return random words of a shape (with `pairs` the low and the high words), and the number of blocks
    used.

    Single words are those of blocks of half the shape: the first words of all blocks, then the second words.
    """
    axis = next((d for d, size in enumerate(shape) if size % 2 == 0), shape.index(max(shape)) if shape else 0)
    half = [-(-size // 2) if d == axis and not pairs else size for d, size in enumerate(shape)]
    count = math.prod(half)
    counters = n.reshape(n.binary("add", counter, n.iota((count,), dtype=u64)), half)
    low, high = n.emit_all(
        g.Threefry(*(n.cast(word, u32) for x in (key, counters) for word in _halves(n, x)))
    )
    if pairs or not shape:
        return (low, high) if pairs else (low,), count
    both = n.concat([n.reshape(x, [*half[: axis + 1], 1, *half[axis + 1 :]]) for x in (low, high)], axis + 1)
    both = n.reshape(both, [2 * size if d == axis else size for d, size in enumerate(half)])
    return (n.slice(both, [0] * len(shape), shape),), count


def _philox(
    n: Node, key: Value, counter: Value, shape: Sequence[int], pairs: bool
) -> tuple[Sequence[Value], int]:
    """Do the same as `_threefry` with Philox-4x32-10, whose blocks are stored one after the other. The key is
    also the high word of the counter.
    """
    size = math.prod(shape) << pairs
    count = -(-size // 4)
    low = n.binary("add", counter, n.iota((count,), dtype=u64))
    high = n.binary("add", key, n.cast(n.binary("lt", low, counter), u64))
    block = [*_halves(n, low), *_halves(n, high)]
    keys = _halves(n, key)
    for _ in range(10):
        left, right = (_halves(n, n.binary("mul", block[2 * k], FACTORS[k])) for k in (0, 1))
        block = [
            n.binary("xor", n.binary("xor", right[1], block[1]), keys[0]),
            right[0],
            n.binary("xor", n.binary("xor", left[1], block[3]), keys[1]),
            left[0],
        ]
        keys = [n.binary("and", n.binary("add", k, step), WORD) for k, step in zip(keys, STEPS, strict=True)]
    columns = [n.reshape(n.broadcast(n.cast(x, u32), (count,)), (count, 1)) for x in block]

    def row(parts: Sequence[Value], size: int) -> Value:
        return n.slice(n.reshape(n.concat(parts, 1), (count * len(parts),)), (0,), (size,))

    return ([row(columns[k::2], size // 2) for k in (0, 1)] if pairs else [row(columns, size)]), count
