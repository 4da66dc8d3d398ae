"""Simplifies index arithmetic, of which position ids and masks consist.

The normal form is a `graph.iota` with a single dimension that is not 1, broadcast at the end. Exporters write
a causal mask as gathers, comparisons and differences of positions; in the normal form these become ``le(iota,
iota)`` or constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import normalize_axis, tensor_type
from ...dialects.graph.elementwise import same_shape, splat_value
from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.rewrite import Rewriter, pattern
from ...ir.symbolic import Dim, prove_eq, prove_le, prove_lt
from ...ir.types import i32, i64
from .match import array_of, broadcast_to, is_one, new_constant, producer, reshape, transpose


def as_iota(value: Value) -> Any:
    """The integer `graph.iota` that defines a value, if all its dimensions but the counted one are 1;
    otherwise None.
    """
    op = producer(value, graph.Iota)
    if op is None or not op.dtype.is_integer or isinstance(op.start, float) or isinstance(op.step, float):
        return None
    axis = op.axis % len(op.shape)
    return op if all(is_one(n) for d, n in enumerate(op.shape) if d != axis) else None


def _iota(like: graph.Iota, shape: Sequence[Dim], axis: int, start: Dim, step: Dim) -> Any:
    return graph.Iota(shape=tuple(shape), axis=axis, start=start, step=step, dtype=like.dtype)


@pattern(graph.Iota)
def narrow_iota(op: graph.Iota, rewriter: Rewriter) -> bool:
    """An iota repeated along other dimensions -> a broadcast of an iota with unit dimensions."""
    axis = op.axis % len(op.shape)
    narrow = tuple(n if d == axis else 1 for d, n in enumerate(op.shape))
    if same_shape(narrow, op.shape):
        return False
    b = rewriter.builder
    rewriter.replace(op, b(graph.BroadcastTo(b(_iota(op, narrow, axis, op.start, op.step)), shape=op.shape)))
    return True


@pattern(graph.Slice)
def constant_range(op: graph.Slice, rewriter: Rewriter) -> bool:
    """A slice of a table 0, 1, 2, ... (position ids) -> iota."""
    table = array_of(op.x)
    if (
        table is None
        or table.dtype.kind != "i"
        or table.dtype.itemsize < 4
        or not 1 < table.size == max(table.shape)
    ):
        return False
    if op.result.type.is_static:
        return False
    flat = table.reshape(-1)
    step = int(flat[1]) - int(flat[0])
    if not np.array_equal(flat, int(flat[0]) + step * np.arange(flat.size)):
        return False
    axis = int(np.argmax(table.shape))
    dtype = i64 if table.dtype.itemsize == 8 else i32
    if any(not prove_eq(n, 1) for d, n in enumerate(op.result.type.shape) if d != axis):
        return False
    start = int(flat[0]) + step * op.starts[axis]
    iota = graph.Iota(
        shape=op.result.type.shape, axis=axis, start=start, step=step * op.steps[axis], dtype=dtype
    )
    rewriter.replace(op, rewriter.builder(iota))
    return True


@pattern(graph.Slice)
def slice_of_iota(op: graph.Slice, rewriter: Rewriter) -> bool:
    """A slice of an iota -> iota."""
    x = as_iota(op.x)
    if x is None:
        return False
    axis = x.axis % len(x.shape)
    start = x.start + x.step * op.starts[axis]
    if any(not prove_eq(n, 1) for d, n in enumerate(op.result.type.shape) if d != axis):
        return False
    rewriter.replace(
        op, rewriter.builder(_iota(x, op.result.type.shape, axis, start, x.step * op.steps[axis]))
    )
    return True


@pattern(graph.Reshape, graph.Transpose)
def reshape_of_iota(op: graph.Reshape | graph.Transpose, rewriter: Rewriter) -> bool:
    """Unit dimensions around an iota -> iota."""
    x = as_iota(op.x)
    if x is None:
        return False
    shape = op.result.type.shape
    wide = [d for d, n in enumerate(shape) if not is_one(n)]
    if len(wide) > 1 or not shape:
        return False
    axis = wide[0] if wide else 0
    if wide and not prove_eq(shape[axis], x.shape[x.axis % len(x.shape)]):
        return False
    rewriter.replace(op, rewriter.builder(_iota(x, shape, axis, x.start, x.step)))
    return True


@pattern(graph.Cast)
def cast_of_iota(op: graph.Cast, rewriter: Rewriter) -> bool:
    """A cast of an iota to integers of another width -> iota of that type; dimensions fit in either."""
    x = as_iota(op.x)
    if x is None or op.dtype not in (i32, i64):
        return False
    rewriter.replace(op, rewriter.builder(graph.Iota(**{**x.attributes, "dtype": op.dtype})))
    return True


@pattern(graph.Add, graph.Sub, graph.Mul)
def arithmetic_on_iota(op: graph.Add | graph.Sub | graph.Mul, rewriter: Rewriter) -> bool:
    """``iota + 3``, ``2 * iota`` -> iota; ``iota - iota`` along one axis with one step -> a number."""
    a, c = as_iota(op.a), as_iota(op.b)
    b = rewriter.builder
    shape = op.result.type.shape
    if a is not None and c is not None:
        if (
            not isinstance(op, graph.Sub)
            or not same_shape(a.shape, c.shape)
            or a.axis % len(shape) != c.axis % len(shape)
        ):
            return False
        if not prove_eq(a.step, c.step):
            return False
        difference = b(graph.Cast(b(graph.Symbolic(values=(a.start - c.start,))), dtype=a.dtype))
        rewriter.replace(op, b(graph.BroadcastTo(difference, shape=shape)))
        return True
    iota, other = (a, op.b) if a is not None else (c, op.a)
    if iota is None:
        return False
    value = splat_value(other)
    if value is None or not same_shape(iota.shape, shape):
        return False
    number, start, step = int(value), iota.start, iota.step
    if isinstance(op, graph.Add):
        start = start + number
    elif isinstance(op, graph.Mul):
        start, step = start * number, step * number
    elif a is not None:
        start = start - number
    else:
        start, step = number - start, -step
    rewriter.replace(op, b(_iota(iota, shape, iota.axis % len(shape), start, step)))
    return True


@pattern(graph.Concat)
def concat_of_iotas(op: graph.Concat, rewriter: Rewriter) -> bool:
    """A concatenation of consecutive ranges -> one range; equal broadcasts of other axes are moved behind."""
    rank = op.result.type.rank
    axis = normalize_axis(op.axis, rank)
    inner = [producer(v, graph.BroadcastTo) for v in op.inputs]
    if any(x is not None for x in inner):
        parts = [v if x is None else x.x for v, x in zip(op.inputs, inner, strict=True)]
        narrow = [
            tensor_type(p).rank == rank and prove_eq(tensor_type(p).shape[axis], tensor_type(v).shape[axis])
            for p, v in zip(parts, op.inputs, strict=True)
        ]
        first = tensor_type(parts[0]).shape
        if not all(narrow) or not all(
            same_shape(
                (*tensor_type(p).shape[:axis], *tensor_type(p).shape[axis + 1 :]),
                (*first[:axis], *first[axis + 1 :]),
            )
            for p in parts
        ):
            return False
        b = rewriter.builder
        rewriter.replace(
            op, b(graph.BroadcastTo(b(graph.Concat(parts, axis=axis)), shape=op.result.type.shape))
        )
        return True
    iotas = [as_iota(v) for v in op.inputs]
    if len(iotas) < 2 or any(x is None for x in iotas):
        return False
    steps = [x.step for x in iotas if not is_one(x.shape[axis])]
    step = steps[0] if steps else iotas[1].start - iotas[0].start
    position = iotas[0].start
    for x in iotas:
        on_axis = x.axis % rank == axis or is_one(x.shape[x.axis % rank])
        if not on_axis or not prove_eq(x.start, position):
            return False
        if not is_one(x.shape[axis]) and not prove_eq(x.step, step):
            return False
        position = position + step * x.shape[axis]
    rewriter.replace(op, rewriter.builder(_iota(iotas[0], op.result.type.shape, axis, iotas[0].start, step)))
    return True


def value_range(value: Value) -> tuple[Dim, Dim] | None:
    """The least and greatest element of an iota, or of a splat of integers, as expressions; otherwise
    None.
    """
    splat = splat_value(value)
    if splat is not None:
        return (int(splat), int(splat)) if splat.dtype.kind in "iu" else None
    x = as_iota(value)
    if x is None or not isinstance(x.step, int):
        return None
    last = x.start + x.step * (x.shape[x.axis % len(x.shape)] - 1)
    return (x.start, last) if x.step >= 0 else (last, x.start)


@pattern(graph.Lt, graph.Le, graph.Gt, graph.Ge, graph.Eq, graph.Ne)
def known_comparison(
    op: graph.Lt | graph.Le | graph.Gt | graph.Ge | graph.Eq | graph.Ne, rewriter: Rewriter
) -> bool:
    """A comparison of ranges that is true everywhere, or nowhere -> a constant."""
    a, c = value_range(op.a), value_range(op.b)
    if a is None or c is None:
        return False
    if isinstance(op, (graph.Gt, graph.Ge)):
        a, c = c, a
    name = type(op).function
    outcome: bool | None = None
    if name in ("lt", "gt"):
        outcome = True if prove_lt(a[1], c[0]) else False if prove_le(c[1], a[0]) else None
    elif name in ("le", "ge"):
        outcome = True if prove_le(a[1], c[0]) else False if prove_lt(c[1], a[0]) else None
    else:
        equal = prove_eq(a[0], a[1]) and prove_eq(c[0], c[1]) and prove_eq(a[0], c[0])
        apart = prove_lt(a[1], c[0]) or prove_lt(c[1], a[0])
        outcome = (name == "eq") if equal else (name == "ne") if apart else None
    if outcome is None:
        return False
    b = rewriter.builder
    rewriter.replace(op, broadcast_to(b, new_constant(b, np.bool_(outcome)), op.result.type.shape))
    return True


@pattern(graph.Ge, graph.Gt)
def ordered_comparison(op: graph.Ge | graph.Gt, rewriter: Rewriter) -> bool:
    """``iota >= iota`` -> ``iota <= iota`` with exchanged operands, so that patterns need only match ``<=``
    and ``<``.
    """
    if as_iota(op.a) is None or as_iota(op.b) is None:
        return False
    rewriter.replace(op, rewriter.builder((graph.Le if isinstance(op, graph.Ge) else graph.Lt)(op.b, op.a)))
    return True


@pattern(graph.Cumsum)
def cumsum_of_zeros(op: graph.Cumsum, rewriter: Rewriter) -> bool:
    """A cumulative sum of zeros -> zeros."""
    if splat_value(op.x) != 0:
        return False
    rewriter.replace(op, op.x)
    return True


@pattern(graph.Gather)
def gather_of_range(op: graph.Gather, rewriter: Rewriter) -> bool:
    """``gather(x, iota)`` -> a slice, if the range provably lies within the dimension (position
    embeddings).
    """
    indices = as_iota(op.indices)
    x = tensor_type(op.x)
    axis = normalize_axis(op.axis, x.rank)
    if indices is None or not isinstance(indices.step, int) or indices.step < 1:
        return False
    count = indices.shape[indices.axis % len(indices.shape)]
    end = indices.start + indices.step * (count - 1) + 1
    if not prove_le(0, indices.start) or not prove_le(end, x.shape[axis]):
        return False
    b = rewriter.builder
    starts = tuple(indices.start if d == axis else 0 for d in range(x.rank))
    stops = tuple(end if d == axis else n for d, n in enumerate(x.shape))
    steps = tuple(indices.step if d == axis else 1 for d in range(x.rank))
    part = b(graph.Slice(op.x, starts=starts, stops=stops, steps=steps))
    rewriter.replace(op, reshape(b, part, op.result.type.shape))
    return True


def _counted_axis(value: Value, length: Dim) -> int | None:
    """The axis along which the elements of a value are 0, 1, ..., length - 1; None for any other value.

    The result is -1 for the number 0 if `length` is 1.
    """
    inner = producer(value, graph.BroadcastTo)
    lead = tensor_type(value).rank
    source = value if inner is None else inner.x
    if splat_value(value) == 0 and is_one(length):
        return -1
    x = as_iota(source)
    if x is None or not prove_eq(x.start, 0) or not prove_eq(x.step, 1):
        return None
    axis: int = x.axis % len(x.shape)
    if not prove_eq(x.shape[axis], length):
        return None
    return axis + lead - len(x.shape)


def _counted_axis_of_table(table: np.ndarray[Any, Any], length: Dim) -> int | None:
    """`_counted_axis` for an array of indices."""
    if length == 1 and not table.any():
        return -1
    for axis, n in enumerate(table.shape):
        if n == length and np.array_equal(
            table,
            np.broadcast_to(
                np.arange(n).reshape([-1 if d == axis else 1 for d in range(table.ndim)]), table.shape
            ),
        ):
            return axis
    return None


@pattern(graph.GatherNd)
def gather_at_positions(op: graph.GatherNd, rewriter: Rewriter) -> bool:
    """``x[iota_b, iota_s]`` written as a gather -> `x` broadcast: each index vector contains its own
    position.
    """
    depth = op.indices.type.shape[-1]
    rank = tensor_type(op.indices).rank
    x = tensor_type(op.x)
    joined = producer(op.indices, graph.Concat)
    table = array_of(op.indices)
    if op.batch_dims:
        return False
    if table is not None:
        axes = [_counted_axis_of_table(table[..., k], x.shape[k]) for k in range(depth)]
    elif joined is not None and len(joined.inputs) == depth and normalize_axis(joined.axis, rank) == rank - 1:
        if not all(is_one(v.type.shape[-1]) for v in joined.inputs):
            return False
        axes = [_counted_axis(v, x.shape[k]) for k, v in enumerate(joined.inputs)]
    else:
        return False
    if any(a is None for a in axes) or len({a for a in axes if a != -1}) != sum(a != -1 for a in axes):
        return False
    # Dimension k of x becomes result dimension axes[k]; the dimensions behind the indexed ones follow at the
    # end.
    shape: list[Dim] = [*[1] * (rank - 1), *x.shape[depth:]]
    places = {k: a for k, a in enumerate(axes) if a is not None and a != -1}
    places |= {depth + k: rank - 1 + k for k in range(x.rank - depth)}
    kept = list(places)
    order = sorted(kept, key=places.__getitem__)
    for k in kept:
        shape[places[k]] = x.shape[k]
    b = rewriter.builder
    dropped = reshape(b, op.x, [x.shape[k] for k in kept])
    ordered = transpose(b, dropped, [kept.index(k) for k in order])
    rewriter.replace(op, broadcast_to(b, reshape(b, ordered, shape), op.result.type.shape))
    return True


@pattern(graph.Symbolic)
def known_symbolic(op: graph.Symbolic, rewriter: Rewriter) -> bool:
    """Symbolic dimensions that are numbers -> a constant."""
    if not all(isinstance(v, int) for v in op.values):
        return False
    array = np.array(op.values, np.int64).reshape(op.shape)
    rewriter.replace(op, rewriter.builder(graph.Constant(value=Constant(array))))
    return True


INDEX_PATTERNS = [
    narrow_iota,
    constant_range,
    slice_of_iota,
    reshape_of_iota,
    cast_of_iota,
    arithmetic_on_iota,
    concat_of_iotas,
    known_comparison,
    ordered_comparison,
    cumsum_of_zeros,
    gather_of_range,
    gather_at_positions,
    known_symbolic,
]
