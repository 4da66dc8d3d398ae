"""Operators that move elements: reshape, transpose, slice, concatenate, pad. Bounds come from symbolic shape
values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects.graph.base import broadcast_shapes, normalize_axis
from ....errors import CompileError
from ....ir.core import Value
from ....ir.symbolic import Dim, Expr, prove_eq, prove_le, prove_lt, smax, smin
from ...unsupported import Unsupported
from ..registry import importer
from .run_time import expand_in_run, reshape_in_run, slice_in_run
from .run_time_axes import pads_in_run, slice_anywhere, squeeze_in_run, unsqueeze_in_run

if TYPE_CHECKING:
    from ..node import Node


def reshape(n: Node, x: Value, shape: Sequence[Dim]) -> Value:
    """Reshape `x`, unless it has the shape already."""
    return x if tuple(x.type.shape) == tuple(shape) else n.emit(g.Reshape(x, shape=tuple(shape)))


def product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def _reshape_target(n: Node, old: Sequence[Dim], wanted: list[Dim], allow_zero: bool) -> list[Dim]:
    if not allow_zero:
        wanted = [old[k] if isinstance(d, int) and d == 0 else d for k, d in enumerate(wanted)]
    unknown = [k for k, d in enumerate(wanted) if isinstance(d, int) and d == -1]
    if not unknown:
        return wanted
    size, rest = product(old), product([d for k, d in enumerate(wanted) if k != unknown[0]])
    if isinstance(rest, int) and rest == 0:
        raise CompileError(
            f"node {n.location} (Reshape): a dimension of -1 is ambiguous where another one is 0"
        )
    quotient = size // rest
    if not prove_eq(quotient * rest, size):
        raise CompileError(
            f"node {n.location} (Reshape): {size} elements of {tuple(old)} cannot be proven to be a "
            f"multiple of {rest}, which the shape {tuple(wanted)} needs"
        )
    wanted[unknown[0]] = quotient
    return wanted


@importer("Reshape")
def _reshape(n: Node) -> Value:
    if n.is_data(1, counted=True):
        return reshape_in_run(n)
    return reshape(
        n, n.value(0), _reshape_target(n, n.tensor(0).shape, n.dims(1), bool(n.attr("allowzero", 0)))
    )


@importer("Flatten")
def _flatten(n: Node) -> Value:
    shape = n.tensor(0).shape
    axis = n.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return reshape(n, n.value(0), (product(shape[:axis]), product(shape[axis:])))


@importer("Squeeze")
def _squeeze(n: Node) -> Value:
    if n.has(1) and n.is_data(1, counted=True):
        return squeeze_in_run(n)
    shape = n.tensor(0).shape
    axes = (
        {normalize_axis(a, len(shape)) for a in n.numbers(1)}
        if n.has(1)
        else {k for k, d in enumerate(shape) if isinstance(d, int) and d == 1}
    )
    return reshape(n, n.value(0), [d for k, d in enumerate(shape) if k not in axes])


@importer("Unsqueeze")
def _unsqueeze(n: Node) -> Value:
    if n.is_data(1, counted=True):
        return unsqueeze_in_run(n)
    shape = list(n.tensor(0).shape)
    axes = n.numbers(1)
    for a in sorted(normalize_axis(a, len(shape) + len(axes)) for a in axes):
        shape.insert(a, 1)
    return reshape(n, n.value(0), shape)


@importer("Transpose")
def _transpose(n: Node) -> Value:
    rank = n.tensor(0).rank
    return n.emit(g.Transpose(n.value(0), permutation=tuple(n.attr("perm") or range(rank - 1, -1, -1))))


@importer("Concat")
def _concat(n: Node) -> Value:
    axis = normalize_axis(n.attr("axis"), n.tensor(0).rank)
    parts = [n.value(k) for k in range(len(n.inputs)) if not _is_zero(n.tensor(k).shape[axis])]
    return n.emit(g.Concat(parts or [n.value(0)], axis=axis)) if len(parts) != 1 else parts[0]


def _is_zero(d: Dim) -> bool:
    return isinstance(d, int) and d == 0


def slice_(n: Node, x: Value, axis: int, start: Dim, stop: Dim) -> Value:
    """Return ``x[..., start:stop, ...]``; the bounds must lie within the dimension."""
    shape = x.type.shape
    starts: list[Dim] = [0] * len(shape)
    stops: list[Dim] = list(shape)
    starts[axis], stops[axis] = start, stop
    return n.emit(g.Slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(shape)))


@importer("Split")
def _split(n: Node) -> list[Value]:
    x = n.value(0)
    axis = normalize_axis(n.attr("axis", 0), x.type.rank)
    results: list[Value] = []
    start: Dim = 0
    for size in n.split_sizes(x.type.shape[axis]):
        results.append(slice_(n, x, axis, start, start + size))
        start = start + size
    return results


def _bound(n: Node, e: Dim, d: Dim, low: int, high: Dim) -> Dim:
    """Return a slice bound counted from the front (negative ones count from the end) and clamped to ``[low,
    high]``.
    """
    if prove_lt(e, 0):
        e = e + d
    elif not prove_le(0, e):
        raise CompileError(
            f"node {n.location} (Slice): the sign of the bound '{e}' is not known; "
            "give its symbols lower bounds with dims="
        )
    return smax(low, smin(e, high))


@importer("Slice")
def _slice(n: Node) -> Value:
    x = n.value(0)
    shape, rank = x.type.shape, x.type.rank
    if any(n.has(k) and n.is_data(k) for k in (3, 4)):
        return slice_anywhere(n)
    count = n.tensor(1).type.size
    axes = [normalize_axis(a, rank) for a in n.numbers(3)] if n.has(3) else list(range(as_number(count)))
    given_steps = n.numbers(4) if n.has(4) else [1] * len(axes)
    if n.tensor(1).content is None or n.tensor(2).content is None:
        return slice_in_run(n, axes, given_steps)
    given_starts, given_stops = n.dims(1), n.dims(2)
    starts: list[Dim] = [0] * rank
    stops: list[Dim] = list(shape)
    steps = [1] * rank
    for axis, start, stop, step in zip(axes, given_starts, given_stops, given_steps, strict=True):
        d = shape[axis]
        if step == 0:
            raise CompileError(f"node {n.location} (Slice): the step of dimension {axis} is 0")
        if step > 0:
            start, stop = _bound(n, start, d, 0, d), _bound(n, stop, d, 0, d)
            stop = smax(stop, start)
        else:
            start, stop = _bound(n, start, d, -1, d - 1), _bound(n, stop, d, -1, d - 1)
            stop = smin(stop, start)
        starts[axis], stops[axis], steps[axis] = start, stop, step
    if (
        all(isinstance(s, int) and s == 0 for s in starts)
        and all(s == 1 for s in steps)
        and tuple(stops) == tuple(shape)
    ):
        return x
    return n.emit(g.Slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps)))


@importer("Expand")
def _expand(n: Node) -> Value:
    if n.is_data(1, counted=True):
        return expand_in_run(n)
    x = n.value(0)
    return broadcast(n, x, broadcast_shapes(x.type.shape, n.dims(1)))


def broadcast(n: Node, x: Value, shape: Sequence[Dim]) -> Value:
    """Broadcast `x` to `shape`, unless it has the shape already."""
    return x if tuple(x.type.shape) == tuple(shape) else n.emit(g.BroadcastTo(x, shape=tuple(shape)))


@importer("Tile")
def _tile(n: Node) -> Value:
    return n.emit(g.Tile(n.value(0), repeats=tuple(n.sizes(1))))


@importer("Pad")
def _pad(n: Node) -> Value:
    x = n.value(0)
    rank = x.type.rank
    low: list[Dim] = [0] * rank
    high: list[Dim] = [0] * rank
    if n.has(3) and n.is_data(3):
        low, high = pads_in_run(n, rank)
    else:
        pads = n.sizes(1, None)
        axes = [normalize_axis(a, rank) for a in n.numbers(3)] if n.has(3) else list(range(rank))
        for k, axis in enumerate(axes):
            low[axis], high[axis] = pads[k], pads[k + len(axes)]
    mode, fill = n.attr("mode", "constant"), None
    value: Any = 0
    if mode == "constant" and n.has(2):
        if n.tensor(2).array is None:
            fill = reshape(n, n.value(2), ())
        else:
            value = n.array(2).reshape(-1)[0].item()
    return n.emit(g.Pad(x, fill, low=tuple(low), high=tuple(high), mode=mode, value=value))


@importer("DepthToSpace")
def _depth_to_space(n: Node) -> Value:
    x = n.value(0)
    batch, c, h, w = x.type.shape
    s = n.attr("blocksize")
    if n.attr("mode", "DCR") == "DCR":
        split, order = (batch, s, s, c // (s * s), h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (batch, c // (s * s), s, s, h, w), (0, 1, 4, 2, 5, 3)
    x = n.emit(g.Transpose(reshape(n, x, split), permutation=order))
    return reshape(n, x, (batch, c // (s * s), h * s, w * s))


@importer("SpaceToDepth")
def _space_to_depth(n: Node) -> Value:
    x = n.value(0)
    batch, c, h, w = x.type.shape
    s = n.attr("blocksize")
    x = n.emit(g.Transpose(reshape(n, x, (batch, c, h // s, s, w // s, s)), permutation=(0, 3, 5, 1, 2, 4)))
    return reshape(n, x, (batch, c * s * s, h // s, w // s))


@importer("Trilu", domain="com.microsoft")
@importer("Trilu")
def _trilu(n: Node) -> Value:
    diagonal = n.sizes(1, None)[0] if n.has(1) else 0
    return n.emit(g.Triangular(n.value(0), upper=bool(n.attr("upper", 1)), diagonal=diagonal))


def as_number(d: Dim) -> int:
    """Return a number of elements that must be static.

    Raises:
        Unsupported: it is symbolic.
    """
    if not isinstance(d, int):
        raise Unsupported(f"a vector of sizes has itself an unknown size, {d}")
    return d


def is_static(dims: Sequence[Dim]) -> bool:
    """Whether no dimension is symbolic."""
    return not any(isinstance(d, Expr) for d in dims)
