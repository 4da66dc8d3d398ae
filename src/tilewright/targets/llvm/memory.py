"""Loads and stores of a kernel as LLVM instructions.

The change of an address from lane to lane decides the form of an access. Addresses equal in all lanes: one
scalar access. One element further per lane: a vector; one element back: a reversed vector; every second
element of a load: two vectors. Anything else: gather and scatter. Guards that vary over lanes become masks.
Uniform guards make a load read a constant and skip a store.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass

from ...analysis.index_maps import flatten_index
from ...dialects import loop
from ...ir.substitution import linear_in, substitute
from ...ir.symbolic import Dim, Expr, free_symbols, prove_lt, symbol
from ...ir.types import DType, bf16, f16
from .conversions import from_storage, to_storage
from .emitter import mangled
from .index_expr import Lanes, lane_numbers, split_lanes
from .scalars import binary, lanewise
from .transpose import rows_of_tile, transposed
from .values import Interleaving, KernelContext, Val, register, storage

Access = loop.Load | loop.Store | loop.Accumulate


@dataclass
class AccessPlace:
    """The place and form of an access.

    `form` is ``uniform`` (one element), ``contiguous`` (a vector per pointer), ``reversed`` (likewise, with
    the first lane at the vector's end), ``second`` (every second element from the pointer on), ``apart`` (a
    store of single elements, `step` apart) or ``gather`` (a vector of pointers). `flag` is an i1 that enables
    the access; `masks` are the accessed lanes by part; `guards` are those of them that pass the guard.
    """

    form: str
    dtype: DType
    pointers: list[str]
    flag: str | None
    masks: list[str] | None
    guards: list[str] | None
    step: int = 1


def emit_load(g: KernelContext, op: loop.Load) -> Val:
    """Print a load; lanes that fail the guard get `otherwise`."""
    otherwise = None if op.otherwise is None else g.values[op.otherwise]
    if otherwise is not None and any(prove_lt(g.index.resolve(e), 0) for e in op.guard):
        return otherwise
    column = _column_of_tile(g, op)
    if column is not None:
        return column
    place = _place(g, op)
    return _load(g, place, otherwise)


def emit_store(g: KernelContext, op: loop.Store) -> None:
    """Print a store."""
    if g.interleaving is not None and op in g.interleaving.vectors:
        _store_interleaved(g, g.interleaving, op)
    else:
        _store(g, _place(g, op), g.values[op.value])


def emit_accumulate(g: KernelContext, op: loop.Accumulate) -> None:
    """Print ``buffer[...] = combine(buffer[...], value)``; lanes must not access the same element."""
    place = _place(g, op)
    value = g.values[op.value]
    with g.e.when(place.flag) if place.flag is not None else nullcontext():
        place.flag = None
        old = _load(g, place, None)
        new = lanewise(
            g, op.dtype, [old, value], lambda lanes, a, b: binary(g, op.combine, op.dtype, lanes, a, b)
        )
        _store(g, place, new)


# -- Addresses ---------------------------------------------------------------------------------------------


def _place(g: KernelContext, op: Access) -> AccessPlace:
    indices, guard = _in_kernel_symbols(g, op)
    buffer = op.buffer
    dtype = buffer.type.dtype
    address = g.index.resolve(flatten_index(indices, buffer.type.shape))
    flag, guards = g.index.conditions(guard)
    base = g.pointers[buffer]
    size = dtype.itemsize
    lanes = g.lanes
    masks = g.and_masks(g.masks, guards)
    if lanes is None or not lanes.varies(address):
        if masks is not None and (guards is not None or g.conditional):
            # The lanes share one element: access it if any lane may.
            some = _any(g, masks)
            flag = some if flag is None else g.e.op(f"and i1 {flag}, {some}")
        return AccessPlace("uniform", dtype, [g.index.pointer(base, address, size)], flag, masks, guards)
    strided = _strided(g, lanes, address, base, size)
    if strided is not None:
        pointers, step = strided
        if step == 1:
            return AccessPlace("contiguous", dtype, pointers, flag, masks, guards)
        if step == -1 and masks is None:
            pointers = [g.e.at(p, str(1 - lanes.lanes), size) for p in pointers]
            return AccessPlace("reversed", dtype, pointers, flag, masks, guards)
        if step == 2 and isinstance(op, loop.Load) and flag is None and masks is None:
            return AccessPlace("second", dtype, pointers, None, None, None)
        if isinstance(op, loop.Store) and flag is None and masks is None and (size < 4 or not g.isa.masked):
            # There is no scatter instruction for this element type.
            return AccessPlace("apart", dtype, pointers, None, None, None, step)
        offsets = [lane_numbers(64, lanes.lanes, 0, step)] * lanes.parts
        bits = 64
    else:
        outer, inner = _by_variation(lanes, address)
        pointers = [g.index.pointer(base, outer, size)] * lanes.parts
        offsets, bits = g.index.vector(inner)
    vectors = [
        g.e.op(f"getelementptr [{size} x i8], ptr {p}, <{lanes.lanes} x i{bits}> {o}")
        for p, o in zip(pointers, offsets, strict=True)
    ]
    if flag is not None:
        spread = g.e.splat(f"<{lanes.lanes} x i1>", "i1", flag)
        masks = g.and_masks(masks, [spread] * lanes.parts)
        guards = g.and_masks(guards, [spread] * lanes.parts)
    return AccessPlace("gather", dtype, vectors, None, masks, guards)


def _in_kernel_symbols(g: KernelContext, op: Access) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Indices and guard, with the symbols of computed values in place of ``v0``, ``v1``, ..."""
    if not op.dynamic:
        return op.indices, op.guard
    exprs = [e for e in (*op.indices, *op.guard) if isinstance(e, Expr)]
    mapping: dict[Expr, Dim] = {}
    for k, v in enumerate(op.dynamic):
        own = g.values[v]
        replacement: Dim = own.constant if isinstance(own.constant, int) else g.symbol_of(own)
        for e in exprs:
            for s in free_symbols(e):
                if s.name == f"v{k}":
                    mapping[s] = replacement
    return tuple(substitute(e, mapping) for e in op.indices), tuple(substitute(e, mapping) for e in op.guard)


def _strided(
    g: KernelContext, lanes: Lanes, address: Dim, base: str, size: int
) -> tuple[list[str], int] | None:
    """The pointers of each part's first lane, and the elements from lane to lane; None if that stride is not
    one constant.
    """
    assert isinstance(address, Expr)
    if not free_symbols(address).isdisjoint(lanes.varying):
        return None
    parts = linear_in(address, lanes.iv)
    if parts is not None:
        if not isinstance(parts[0], int):
            return None
        first = g.index.pointer(base, address, size)
        return [g.e.at(first, str(p * lanes.lanes * parts[0]), size) for p in range(lanes.parts)], parts[0]
    upper = lanes.iv.upper
    block = symbol(g.e.fresh("block_"), 0, None if upper is None else upper // lanes.lanes)
    lane = symbol(g.e.fresh("lane_"), 0, lanes.lanes - 1)
    split = split_lanes(address, lanes.iv, lanes.lanes, block, lane)
    parts = linear_in(split, lane)
    if (
        parts is None
        or not isinstance(parts[0], int)
        or lanes.iv in (free_symbols(split) if isinstance(split, Expr) else ())
    ):
        return None
    shift = lanes.lanes.bit_length() - 1
    g.index.bind(block, g.e.op(f"lshr i64 {lanes.base}, {shift}"), here=True)
    starts = [substitute(parts[1], {block: block + p}) for p in range(lanes.parts)]
    return [g.index.pointer(base, e, size) for e in starts], parts[0]


def _by_variation(lanes: Lanes, address: Dim) -> tuple[Dim, Dim]:
    """The terms of an address that are equal in all lanes, and the others."""
    assert isinstance(address, Expr)
    shared: Dim = 0
    own: Dim = 0
    for c, atoms in address.terms:
        term: Dim = c
        for a in atoms:
            term = term * a.expr
        if lanes.varies(term):
            own = own + term
        else:
            shared = shared + term
    return shared, own


def _any(g: KernelContext, masks: list[str]) -> str:
    assert g.lanes is not None
    n = g.lanes.lanes
    total = masks[0]
    for m in masks[1:]:
        total = g.e.op(f"or <{n} x i1> {total}, {m}")
    return g.e.op(f"call i1 @llvm.vector.reduce.or.v{n}i1(<{n} x i1> {total})")


# -- Loads -------------------------------------------------------------------------------------------------


def _load(g: KernelContext, place: AccessPlace, otherwise: Val | None) -> Val:
    dtype = place.dtype
    n = 1 if place.form == "uniform" or g.lanes is None else g.lanes.lanes
    pointers = place.pointers
    replaced = False
    if place.flag is not None:
        # A pointer to constants replaces the disabled one: no branch, and no select if these constants are
        # the result.
        constant = otherwise.constant if otherwise is not None else 0
        fill = _constants(g, 0 if constant is None else constant, dtype, n)
        pointers = [g.e.op(f"select i1 {place.flag}, ptr {p}, ptr {fill}") for p in pointers]
        replaced = constant is not None
    kind, size = storage(dtype, n, g.isa.half), dtype.itemsize
    parts = []
    for k, p in enumerate(pointers):
        if place.form == "gather":
            mask = place.masks[k] if place.masks is not None else "splat (i1 true)"
            stored = g.e.op(
                f"call {kind} @llvm.masked.gather.{mangled(kind)}.v{n}p0(<{n} x ptr> align {size} {p}, <{n} "
                f"x i1> {mask}, {kind} zeroinitializer)"
            )
        elif place.form == "second":
            # The second vector ends at the last element that is needed; the memory after it may belong to
            # another buffer.
            low, high = g.e.load(kind, p, size), g.e.load(kind, g.e.at(p, str(n - 1), size), size)
            stored = g.e.shuffle(kind, low, high, [2 * j if j < n // 2 else 2 * j + 1 for j in range(n)])
        elif place.form != "uniform" and place.masks is not None:
            stored = g.e.masked_load(kind, p, size, place.masks[k])
        else:
            stored = g.e.load(kind, p, size)
        if place.form == "reversed":
            stored = _turned(g, kind, stored)
        parts.append(from_storage(g, stored, dtype, n))
    value = Val(dtype, parts, n, fits=dtype if dtype in (f16, bf16) and otherwise is None else None)
    if otherwise is None:
        return value
    if place.flag is not None and not replaced:
        value = lanewise(
            g, dtype, [value, otherwise],
            lambda lanes, a, b: g.e.op(f"select i1 {place.flag}, {register(dtype, lanes)} "
                f"{a}, {register(dtype, lanes)} {b}"),
        )  # fmt: skip
    zero = otherwise.constant is not None and otherwise.parts[0] in ("0", "false", "0x0000000000000000")
    if place.guards is not None and g.lanes is not None and (place.form == "uniform" or not zero):
        # Masked loads give zero in masked lanes.
        chosen = [
            g.e.op(
                f"select <{g.lanes.lanes} x i1> {m}, {register(dtype, g.lanes.lanes)} {a}, "
                f"{register(dtype, g.lanes.lanes)} {b}"
            )
            for m, a, b in zip(place.guards, g.spread(value), g.spread(otherwise), strict=True)
        ]
        value = Val(dtype, chosen, g.lanes.lanes)
    return value


def _column_of_tile(g: KernelContext, op: loop.Load) -> Val | None:
    """The result of a load inside an unrolled loop, taken from a square that is loaded and transposed at
    once; None otherwise.
    """
    tile, lanes, dtype = g.tile, g.lanes, op.buffer.type.dtype
    if tile is None or lanes is None or lanes.parts != 1 or op.dynamic:
        return None
    if any(isinstance(e, Expr) and tile.iv in free_symbols(e) for e in op.guard):
        return None
    if op not in tile.columns:
        otherwise = None if op.otherwise is None else g.values[op.otherwise]
        fill = 0 if otherwise is None else otherwise.constant
        address = flatten_index(op.indices, op.buffer.type.shape)
        rows = (
            rows_of_tile(g, tile, g.pointers[op.buffer], address, dtype.itemsize)
            if fill is not None
            else None
        )
        if rows is None:
            return None
        flag, guards = g.index.conditions(op.guard)
        masks = g.and_masks(g.masks, guards)
        if flag is not None or masks is not None:
            # Rows of disabled lanes are read from a constant.
            instead = _constants(g, fill, dtype, lanes.lanes)
            for lane, row in enumerate(rows):
                allowed = flag
                if masks is not None:
                    bit = g.e.op(f"extractelement <{lanes.lanes} x i1> {masks[0]}, i64 {lane}")
                    allowed = bit if flag is None else g.e.op(f"and i1 {flag}, {bit}")
                rows[lane] = g.e.op(f"select i1 {allowed}, ptr {row}, ptr {instead}")
        kind, size = storage(dtype, lanes.lanes, g.isa.half), dtype.itemsize
        vectors = [
            g.e.load(kind, row, size) if tile.mask is None else g.e.masked_load(kind, row, size, tile.mask)
            for row in rows
        ]
        tile.columns[op] = transposed(g, vectors, storage(dtype, 1, g.isa.half))
    return Val(dtype, [from_storage(g, tile.columns[op][tile.k], dtype, lanes.lanes)], lanes.lanes)


def _turned(g: KernelContext, kind: str, x: str) -> str:
    """A vector in reverse lane order."""
    n = int(kind[1:].split(" ")[0])
    return g.e.shuffle(kind, x, x, list(range(n - 1, -1, -1)))


def _constants(g: KernelContext, value: object, dtype: DType, lanes: int) -> str:
    """A global vector of one number in its memory format."""
    import numpy as np

    with np.errstate(all="ignore"):
        data = np.full(lanes, value).astype(dtype.numpy).tobytes()
    name = f"fill_{hashlib.blake2b(data, digest_size=8).hexdigest()}"
    text = "".join(f"\\{b:02X}" for b in data)
    g.helpers[name] = f'@{name} = private unnamed_addr constant [{len(data)} x i8] c"{text}", align 64\n'
    return f"@{name}"


# -- Stores ------------------------------------------------------------------------------------------------


def _store(g: KernelContext, place: AccessPlace, value: Val) -> None:
    with g.e.when(place.flag) if place.flag is not None else nullcontext():
        _store_now(g, place, value)


def _store_interleaved(g: KernelContext, group: Interleaving, op: loop.Store) -> None:
    """Keep the vector of an iteration; at the last one, print contiguous stores of the elements of all."""
    lanes, dtype, value = g.lanes, op.buffer.type.dtype, g.values[op.value]
    assert lanes is not None
    n, size, count = lanes.lanes, dtype.itemsize, group.count
    vectors = group.vectors[op]
    if not vectors:
        address = g.index.resolve(flatten_index(op.indices, op.buffer.type.shape))
        strided = _strided(g, lanes, address, g.pointers[op.buffer], size)
        assert strided is not None
        group.pointers[op] = strided[0][0]
    vectors.append(to_storage(g, g.spread(value)[0], dtype, n, value.fits is dtype))
    if len(vectors) < count:
        return
    kind = storage(dtype, n, g.isa.half)
    for j in range(count):
        places = [divmod(j * n + lane, count) for lane in range(n)]  # lane and iteration of each element
        x = vectors[0]
        for k in range(1, count):
            before = [lane if k == 1 else at for at, (lane, _) in enumerate(places)]
            x = g.e.shuffle(
                kind,
                x,
                vectors[k],
                [n + p[0] if p[1] == k else b for p, b in zip(places, before, strict=True)],
            )
        pointer = g.e.at(group.pointers[op], str(j * n), size)
        if g.masks is None:
            g.e.line(f"store {kind} {x}, ptr {pointer}, align {size}")
        else:
            mask = g.e.shuffle(f"<{n} x i1>", g.masks[0], g.masks[0], [lane for lane, _ in places])
            g.e.masked_store(kind, x, pointer, size, mask)
    vectors.clear()


def _store_now(g: KernelContext, place: AccessPlace, value: Val) -> None:
    dtype = place.dtype
    size = dtype.itemsize
    exact = value.fits is dtype
    if place.form == "uniform":
        stored = to_storage(g, value.parts[0], dtype, 1, exact)
        g.e.line(f"store {storage(dtype, 1, g.isa.half)} {stored}, ptr {place.pointers[0]}, align {size}")
        return
    assert g.lanes is not None
    n = g.lanes.lanes
    kind = storage(dtype, n, g.isa.half)
    shared = None if value.varies else to_storage(g, g.spread(value)[0], dtype, n, exact)
    for k, p in enumerate(place.pointers):
        stored = shared if shared is not None else to_storage(g, value.parts[k], dtype, n, exact)
        if place.form == "gather":
            mask = place.masks[k] if place.masks is not None else "splat (i1 true)"
            g.e.line(
                f"call void @llvm.masked.scatter.{mangled(kind)}.v{n}p0({kind} {stored}, <{n} x ptr> align "
                f"{size} {p}, <{n} x i1> {mask})"
            )
            continue
        if place.form == "apart":
            for lane in range(n):
                element = g.e.op(f"extractelement {kind} {stored}, i64 {lane}")
                where = g.e.at(p, str(lane * place.step), size)
                g.e.line(f"store {storage(dtype, 1, g.isa.half)} {element}, ptr {where}, align {size}")
            continue
        if place.form == "reversed":
            stored = _turned(g, kind, stored)
        if place.masks is not None:
            g.e.masked_store(kind, stored, p, size, place.masks[k])
        else:
            g.e.line(f"store {kind} {stored}, ptr {p}, align {size}")


__all__ = ["Access", "AccessPlace", "emit_accumulate", "emit_load", "emit_store"]
