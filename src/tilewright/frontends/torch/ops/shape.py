"""Views and movements of elements: reshape, transpose, slice, concatenate, pad. Target shapes come from
torch's metadata, with -1 resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_le, prove_lt, smax, smin
from ....ir.types import i64
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from ..symbols import Untranslatable


@importer(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten._reshape_copy.default",
    "aten.view_copy.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
    "aten.view_as.default",
    "aten.reshape_as.default",
)
def reshape(n: Node, x: Value, *_: object) -> Value:
    return n.reshape(x, n.result_shape())


@importer(
    "aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default", "aten.expand_copy.default"
)
def expand(n: Node, x: Value, *_: object, **__: object) -> Value:
    return n.broadcast(x, n.result_shape())


@importer("aten.permute.default")
def permute(n: Node, x: Value, dims: Sequence[int]) -> Value:
    return n.transpose(x, [d % x.type.rank for d in dims])


@importer("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(n: Node, x: Value, a: int, b: int) -> Value:
    if not x.type.rank:
        return x
    order = list(range(x.type.rank))
    order[a], order[b] = order[b], order[a]
    return n.transpose(x, order)


@importer("aten.t.default", "aten.numpy_T.default", "aten.mT.default")
def t(n: Node, x: Value) -> Value:
    return transpose(n, x, -2, -1) if x.type.rank > 1 else x


@importer("aten.movedim.intlist")
def movedim(n: Node, x: Value, source: Sequence[int], destination: Sequence[int]) -> Value:
    rank = x.type.rank
    order = [-1] * rank
    for s, d in zip(source, destination, strict=True):
        order[d % rank] = s % rank
    left = iter(k for k in range(rank) if k not in order)
    return n.transpose(x, [next(left) if k < 0 else k for k in order])


def sliced(n: Node, x: Value, axis: int, start: Dim, length: Dim, step: int = 1) -> Value:
    """Return `length` elements of dimension `axis` from `start` on."""
    shape = x.type.shape
    if start == 0 and isinstance(start, int) and step == 1 and shape[axis] == length:
        return x
    starts: list[Dim] = [0] * len(shape)
    stops, steps = list(shape), [1] * len(shape)
    starts[axis], steps[axis] = start, step
    stops[axis] = start + (length - 1) * step + 1 if length != 0 else start
    return n.emit(g.Slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps)))


def position(index: Dim, size: Dim) -> Dim:
    """Return a slice bound with torch's meaning: negative ones count from the end; the result is clamped into
    the dimension.
    """
    if prove_lt(index, 0):
        index = index + size
    if not prove_le(0, index):
        index = smax(index, 0)
    return index if prove_le(index, size) else smin(index, size)


@importer("aten.slice.Tensor")
def slice_(
    n: Node, x: Value, dim: int = 0, start: Dim | None = None, stop: Dim | None = None, step: int = 1
) -> Value:
    axis = dim % x.type.rank
    try:
        length = n.result_shape()[axis]
    except Untranslatable:
        return _sliced_in_the_run(n, x, axis, start, stop, step)
    begin = position(0 if start is None else start, x.type.shape[axis])
    return sliced(n, x, axis, begin, length, step)


def _sliced_in_the_run(n: Node, x: Value, axis: int, start: Dim | None, stop: Dim | None, step: int) -> Value:
    """Return a slice whose bounds, of either sign, and length the run computes."""
    zero, size = n.scalar(0, i64), n.scalar(x.type.shape[axis], i64)

    def bound(index: Dim) -> Value:
        place = n.scalar(index, i64)
        place = n.emit(g.Select(n.binary("lt", place, zero), n.binary("add", place, size), place))
        return n.binary("min", n.binary("max", place, zero), size)

    first, last = bound(0 if start is None else start), size if stop is None else bound(stop)
    span = n.binary("max", n.binary("sub", last, first), zero)
    count = n.binary("floordiv", n.binary("add", span, n.scalar(step - 1, i64)), n.scalar(step, i64))
    return sliced(n, x, axis, n.computed_size(first), n.computed_size(count, n.meta.shape[axis]), step)


@importer("aten.resize.default")
def resize(n: Node, x: Value, size: Sequence[Dim]) -> Value:
    """Return the elements in order under another shape; elements beyond them, unspecified in torch, are 0."""
    have = x.type.size
    wanted: Dim = 1
    for d in size:
        wanted = wanted * d
    flat = n.reshape(x, (have,))
    more = smax(wanted - have, 0)
    if more != 0:
        flat = n.emit(g.Pad(flat, low=(0,), high=(more,)))
    return n.reshape(sliced(n, flat, 0, 0, wanted), n.result_shape())


@importer("aten.narrow.default")
def narrow(n: Node, x: Value, dim: int, start: Dim, length: Dim) -> Value:
    axis = dim % x.type.rank
    return sliced(n, x, axis, position(start, x.type.shape[axis]), length)


@importer("aten.select.int")
def select(n: Node, x: Value, dim: int, index: Dim) -> Value:
    axis = dim % x.type.rank
    return n.reshape(
        sliced(n, x, axis, index + x.type.shape[axis] if prove_lt(index, 0) else index, 1), n.result_shape()
    )


def _parts(n: Node, x: Value, dim: int) -> list[Value]:
    """Return `x` cut along `dim` into pieces of the sizes that torch computed."""
    axis = dim % x.type.rank
    pieces, start = [], 0
    for k in range(len(n.meta)):
        length = n.result_shape(k)[axis]
        pieces.append(sliced(n, x, axis, start, length))
        start = start + length
    return pieces


@importer(
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
)
def split(n: Node, x: Value, _: object, dim: int = 0) -> list[Value]:
    return _parts(n, x, dim)


@importer("aten.unbind.int")
def unbind(n: Node, x: Value, dim: int = 0) -> list[Value]:
    axis = dim % x.type.rank
    return [n.reshape(sliced(n, x, axis, k, 1), n.result_shape(k)) for k in range(len(n.meta))]


@importer("aten.cat.default", "aten.concat.default")
def cat(n: Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    dtype = n.result_dtype()
    # torch accepts empty tensors of rank 1 among others.
    rank = len(n.result_shape())
    kept = [n.cast(x, dtype) for x in tensors if not (x.type.rank != rank and x.type.shape == (0,))]
    return n.emit(g.Concat(kept, axis=dim % rank)) if len(kept) > 1 else kept[0]


@importer("aten.stack.default")
def stack(n: Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    dtype, shape = n.result_dtype(), n.result_shape()
    axis = dim % len(shape)
    single = (*shape[:axis], 1, *shape[axis + 1 :])
    return n.emit(g.Concat([n.reshape(n.cast(x, dtype), single) for x in tensors], axis=axis))


@importer("aten.flip.default")
def flip(n: Node, x: Value, dims: Sequence[int]) -> Value:
    return n.emit(g.Flip(x, axes=tuple(d % x.type.rank for d in dims))) if dims and x.type.rank else x


@importer("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(n: Node, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Return the diagonals: every ``columns + 1``-th element of the two dimensions flattened into one."""
    rank = x.type.rank
    a, b = dim1 % rank, dim2 % rank
    x = n.transpose(x, [*(k for k in range(rank) if k not in (a, b)), a, b])
    *lead, rows, columns = x.type.shape
    flat = n.reshape(x, (*lead, rows * columns))
    start = offset if offset >= 0 else -offset * columns
    return sliced(n, flat, rank - 2, start, n.result_shape()[-1], columns + 1)


@importer("aten.diagonal_scatter.default")
def diagonal_scatter(
    n: Node, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """Return `x` with its diagonal replaced: element k of it is in row ``k - min(offset, 0)``."""
    rank = x.type.rank
    a, b = dim1 % rank, dim2 % rank
    order = [*(k for k in range(rank) if k not in (a, b)), a, b]
    wide = n.transpose(x, order)
    *lead, rows, columns = wide.type.shape
    places = n.emit(g.Iota(shape=(rows,), start=min(offset, 0)))
    values = n.reshape(
        n.emit(g.Gather(source, n.binary("max", places, n.constant(0, i64)), axis=rank - 2)), (*lead, rows, 1)
    )
    row, column = (n.emit(g.Iota(shape=(rows, columns), axis=k)) for k in (0, 1))
    there = n.binary("eq", n.binary("sub", column, row), n.constant(offset, i64))
    y = n.emit(g.Select(there, values, wide))
    return n.transpose(y, [order.index(d) for d in range(rank)])


def _strided(n: Node, size: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None) -> Value:
    """Return the indices in the flat tensor of a strided view, for a tensor that is its whole memory in
    row-major order.
    """
    source = n.fx.args[0].meta["val"]
    if not source.is_contiguous() or source.storage_offset() != 0:
        raise Unsupported(
            "as_strided of a view, which accesses memory outside of it; use slices and transpositions"
        )
    places: Value = n.scalar(offset or 0, i64)
    for axis, (length, stride) in enumerate(zip(size, strides, strict=True)):
        shape: list[Dim] = [1] * len(size)
        shape[axis] = length
        places = n.binary("add", places, n.emit(g.Iota(shape=tuple(shape), axis=axis, step=stride)))
    return places


@importer("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    n: Node, x: Value, size: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None = None
) -> Value:
    places = _strided(n, size, strides, offset)
    return n.emit(g.Gather(n.reshape(x, (x.type.size,)), places, axis=0))


@importer("aten.as_strided_scatter.default")
def as_strided_scatter(
    n: Node, x: Value, source: Value, size: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None = None
) -> Value:
    places = _strided(n, size, strides, offset)
    flat = [n.reshape(v, (v.type.size,)) for v in (x, places, n.cast(source, x.type.dtype))]
    return n.reshape(n.emit(g.ScatterElements(*flat, axis=0)), x.type.shape)


@importer("aten.roll.default")
def roll(n: Node, x: Value, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> Value:
    shape = x.type.shape
    if not dims:
        flat = n.reshape(x, (x.type.size,))
        return n.reshape(_rolled(n, flat, 0, shifts[0]), shape)
    for shift, d in zip(shifts, dims, strict=True):
        x = _rolled(n, x, d % len(shape), shift)
    return x


def _rolled(n: Node, x: Value, axis: int, shift: Dim) -> Value:
    size = x.type.shape[axis]
    head = shift % size if size != 0 else 0
    if isinstance(head, int) and head == 0:
        return x
    return n.emit(
        g.Concat([sliced(n, x, axis, size - head, head), sliced(n, x, axis, 0, size - head)], axis=axis)
    )


@importer("aten.repeat.default", "aten.tile.default")
def repeat(n: Node, x: Value, repeats: Sequence[Dim]) -> Value:
    rank = max(len(repeats), x.type.rank)
    x = n.reshape(x, (*[1] * (rank - x.type.rank), *x.type.shape))
    counts = (*[1] * (rank - len(repeats)), *repeats)
    if all(r == 1 or d == 1 for r, d in zip(counts, x.type.shape, strict=True)):
        return n.broadcast(x, n.result_shape())
    return n.emit(g.Tile(x, repeats=tuple(counts)))


@importer("aten.repeat_interleave.self_int")
def repeat_interleave(n: Node, x: Value, repeats: Dim, dim: int | None = None, **_: object) -> Value:
    if dim is None:
        x, dim = n.reshape(x, (x.type.size,)), 0
    axis = dim % x.type.rank
    shape = x.type.shape
    wide = n.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = n.broadcast(wide, (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return n.reshape(wide, n.result_shape())


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@importer("aten.pad.default")
def pad(
    n: Node, x: Value, padding: Sequence[Dim], mode: str = "constant", value: float | None = None
) -> Value:
    if mode not in _PAD_MODES:
        raise Unsupported(f"padding mode {mode!r}")
    low: list[Dim] = [0] * x.type.rank
    high: list[Dim] = [0] * x.type.rank
    for k in range(len(padding) // 2):
        low[-1 - k], high[-1 - k] = padding[2 * k], padding[2 * k + 1]
    fill: Any = 0 if value is None else value
    if x.type.dtype.is_integer:
        fill = int(fill)
    if mode == "circular":  # Crop first: the elements that remain are repeated.
        crops = [[p if isinstance(p, int) and p < 0 else 0 for p in side] for side in (low, high)]
        x = n.emit(g.Pad(x, low=tuple(crops[0]), high=tuple(crops[1])))
        low, high = (
            [p - c for p, c in zip(side, crop, strict=True)]
            for side, crop in zip((low, high), crops, strict=True)
        )
    return n.emit(g.Pad(x, low=tuple(low), high=tuple(high), mode=_PAD_MODES[mode], value=fill))


@importer("aten.constant_pad_nd.default")
def constant_pad(n: Node, x: Value, padding: Sequence[Dim], value: float = 0) -> Value:
    return pad(n, x, padding, "constant", value)


def _padding_of(mode: str, aten: str) -> None:
    @importer(*(f"aten.{aten}_pad{k}d.default" for k in (1, 2, 3)))
    def padded(n: Node, x: Value, padding: Sequence[Dim]) -> Value:
        return pad(n, x, padding, mode)


_padding_of("reflect", "reflection")
_padding_of("replicate", "replication")


def _interleaved(n: Node, x: Value, shape: Sequence[Dim], order: Sequence[int]) -> Value:
    return n.reshape(n.transpose(n.reshape(x, shape), order), n.result_shape())


@importer("aten.pixel_shuffle.default")
def pixel_shuffle(n: Node, x: Value, factor: int) -> Value:
    *lead, c, h, w = x.type.shape
    k = len(lead)
    shape = (*lead, c // (factor * factor), factor, factor, h, w)
    return _interleaved(n, x, shape, [*range(k), k, k + 3, k + 1, k + 4, k + 2])


@importer("aten.pixel_unshuffle.default")
def pixel_unshuffle(n: Node, x: Value, factor: int) -> Value:
    *lead, c, h, w = x.type.shape
    k = len(lead)
    shape = (*lead, c, h // factor, factor, w // factor, factor)
    return _interleaved(n, x, shape, [*range(k), k, k + 2, k + 4, k + 1, k + 3])


@importer("aten.channel_shuffle.default")
def channel_shuffle(n: Node, x: Value, groups: int) -> Value:
    batch, c, *spatial = x.type.shape
    shape = (batch, groups, c // groups, *spatial)
    return _interleaved(n, x, shape, [0, 2, 1, *range(3, len(shape))])
