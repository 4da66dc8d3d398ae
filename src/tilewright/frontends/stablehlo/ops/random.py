"""Random bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import u32, u64
from .elementwise import UNSIGNED
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node


@importer("rng_bit_generator")
def _rng_bit_generator(n: Node) -> list[Value]:
    """XLA's use of Threefry: the state is a key and a counter; halves of the numbers come from the two words of one counter each."""
    state = n.inputs[0]
    if (
        n.word("rng_algorithm") not in ("THREE_FRY", "DEFAULT")
        or state.type.shape != (2,)
        or state.type.dtype is not u64
    ):
        raise Unsupported("an algorithm other than Threefry, with a state of two 64-bit words")
    dtype = n.dtype(1)
    shape: list[Dim] = [d or 0 for d in n.shape(1)]
    size: Any = 1
    for d in shape:
        size = size * d

    def words(x: Value) -> tuple[Value, Value]:
        return n.cast(x, u32), n.cast(n.binary("shr", x, 32), u32)

    key, start = (n.reshape(n.slice(state, (k,), (k + 1,)), ()) for k in (0, 1))
    wide = dtype.bits == 64
    count = size if wide else (size + 1) // 2
    counters = n.binary("add", start, n.iota((count,), dtype=u64))
    low, high = n.emit(g.Threefry(*words(key), *words(counters)))
    if wide:
        flat = n.binary("or", n.cast(low, u64), n.binary("shl", n.cast(high, u64), 32))
    else:
        flat = n.slice(n.concat([low, high], 0), (0,), (size,))
        flat = n.cast(flat, UNSIGNED[dtype.bits])
    y = n.cast(n.reshape(flat, shape), dtype)
    following = n.binary("add", start, count)
    return [n.concat([n.reshape(key, (1,)), n.reshape(following, (1,))], 0), y]
