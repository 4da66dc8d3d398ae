"""The primitive that sorts rows in the shared memory of blocks."""

from __future__ import annotations

import math

from ..analysis.index_maps import product
from ..analysis.loop_nest import enclosing_loops
from ..dialects import loop, scalar, simd, simt
from ..ir.builder import Builder
from ..ir.symbolic import Dim, bounds, prove_eq, symbol
from ..ir.target_info import Gpu
from ..ir.types import BufferType, DType, i32, i64
from .core import ScheduleCore, ScheduleError, primitive


class SortingPrimitives(ScheduleCore):
    """Primitives that sort."""

    @primitive
    def sort_rows(self) -> tuple[str, str]:
        """Sort each row of the kernel's only `simd.argsort` in buffers of a block, by a bitonic network;
        return the names of the blocks that load keys and store places.

            for row:  simd.argsort
        becomes, for rows of n elements, and P the next power of two,
            for row:
                for i in P:  keys[i] = x[row, i] if i < n else what comes last;  places[i] = i
                simt.argsort keys, places
                for i in k:  y[row, i] = places[i]

        Source: Batcher, "Sorting networks and their applications", 1968.

        Raises:
            ScheduleError: The kernel has no such statement, or rows longer than a block sorts.
        """
        found = [op for op in self.kernel.walk() if isinstance(op, simd.Argsort)]
        if len(found) != 1:
            raise ScheduleError(f"sort_rows: the kernel has {len(found)} statements that sort, not one")
        (op,) = found
        most = bounds(op.n)[1]
        limit = simt.longest_sort(self.info.gpu or Gpu(), op.x.type.dtype)
        if most is None or most > limit:
            raise ScheduleError(f"sort_rows: rows of {op.n} elements are longer than {limit}")
        count = 1 << max(1, (max(most, 1) - 1).bit_length())
        key = simt.key_type(op.x.type.dtype)
        assert op.parent is not None
        keys, places = (
            loop.Alloc(buffer=BufferType(dtype, (count,), "local"), location=op.location)
            for dtype in (key, i32)
        )
        where, axis = _places(op)
        load, first = _nest(self, "sort_load", count, op)
        body = Builder(load.body, location=op.location)
        (i,) = load.axes
        last = body(scalar.Constant(value=_last(key, op.largest), dtype=key))
        dtype = op.x.type.dtype
        zero = body(scalar.Constant(value=0, dtype=dtype))
        index = tuple(i if d == axis else e for d, e in enumerate(where))
        element = body(loop.Load(op.x, (), zero, indices=index, guard=(op.n - 1 - i,)))
        element = element if dtype is key else body(scalar.Cast(element, dtype=key))
        number = body(scalar.Index(expr=i))
        inside = body(
            scalar.BINARY["ge"](
                body(scalar.Index(expr=op.n - 1 - i)), body(scalar.Constant(value=0, dtype=i64))
            )
        )
        body.insert(loop.Store(body(scalar.Select(inside, element, last)), keys.result, (), indices=(i,)))
        body.insert(loop.Store(body(scalar.Cast(number, dtype=i32)), places.result, (), indices=(i,)))
        store, second = _nest(self, "sort_store", op.k, op)
        body = Builder(store.body, location=op.location)
        (i,) = store.axes
        place = body(loop.Load(places.result, (), None, indices=(i,)))
        index = tuple(i if d == axis else e for d, e in enumerate(where))
        result = op.y.type.dtype
        place = place if result is i32 else body(scalar.Cast(place, dtype=result))
        body.insert(loop.Store(place, op.y, (), indices=index))
        statement = simt.Argsort(keys.result, places.result, largest=op.largest, location=op.location)
        for new in (keys, places, first, statement, second):
            op.parent.insert_before(op, new)
        scratch = [op.keys.defining_op, op.places.defining_op]
        op.erase()
        for alloc in scratch:
            if alloc is not None and not alloc.results[0].users:
                alloc.erase()
        return load.sym_name, store.sym_name


def _places(op: simd.Argsort) -> tuple[list[Dim], int]:
    """The index of a row's first element in each dimension, and the axis that is sorted."""
    shape = op.x.type.shape
    loops = [f.iv for f in enclosing_loops(op)]
    for axis in range(len(shape)):
        lead = [*loops[:axis], *loops[axis:]]
        others = [n for d, n in enumerate(shape) if d != axis]
        if (
            prove_eq(shape[axis], op.n)
            and prove_eq(product(shape[axis + 1 :]), op.x_step)
            and len(lead) == len(others)
            and all(prove_eq(iv.upper + 1, n) for iv, n in zip(lead, others, strict=True))
        ):
            return [*loops[:axis], 0, *loops[axis:]], axis
    raise ScheduleError("sort_rows: the loops around the statement are not those over rows")


def _last(dtype: DType, largest: bool) -> float | int:
    """The key of elements beyond the end, which come last: their places are larger than all others."""
    if dtype.is_float:
        return -math.inf if largest else math.nan
    signed = dtype.numpy.kind == "i"
    low = -(1 << (dtype.bits - 1)) if signed else 0
    return low if largest else low + (1 << dtype.bits) - 1


def _nest(s: ScheduleCore, name: str, count: Dim, op: simd.Argsort) -> tuple[loop.Block, loop.For]:
    """An empty block in a loop of `count` iterations."""
    name = s.fresh(name)
    axis = symbol("i0", 0, count - 1)
    iv = symbol(s.fresh(f"{name}_i"), 0, count - 1)
    block = loop.Block(sym_name=name, axes=(axis,), bindings=(iv,), location=op.location)
    f = loop.For(iv=iv, location=op.location)
    f.body.append(block)
    return block, f


__all__ = ["SortingPrimitives"]
