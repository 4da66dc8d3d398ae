"""Sliding windows: pooling, running sums, and their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_eq
from ....ir.types import boolean, i32
from ...complex import Complex
from ...unsupported import Unsupported
from ..registry import importer
from .control_flow import scan_over
from .reduce import body_of, combiner, is_neutral
from .shape import pad, positions, strided

if TYPE_CHECKING:
    from ..node import Node

MAX_TAPS = 256


@importer("reduce_window", complex="whole")
def _reduce_window(n: Node) -> list[Any]:
    """Reduce windows; a sum of complex numbers is a sum of each part."""
    if any(isinstance(x, Complex) for x in n.inputs) and combiner(n.block(), n.dtype()) == "sum":
        x, initial = n.inputs
        parts = [
            _reduced(n, [getattr(x, part)], [getattr(initial, part)])[0] for part in ("real", "imaginary")
        ]
        return [Complex(*parts)]
    count = len(n.inputs) // 2
    return _reduced(n, n.inputs[:count], n.inputs[count:])


def _reduced(n: Node, xs: Sequence[Any], initial: Sequence[Any]) -> list[Any]:
    rank = xs[0].type.rank
    ones = [1] * rank
    sizes, strides = n.ints("window_dimensions"), n.ints("window_strides", ones)
    apart, dilations = n.ints("base_dilations", ones), n.ints("window_dilations", ones)
    padding = n.pairs("padding", rank)
    name = combiner(n.block(), xs[0].type.dtype) if len(xs) == 1 else None
    if name is not None and is_neutral(initial[0], name) and apart == ones:
        y = _prefix(n, xs[0], name, sizes, strides, padding, dilations)
        y = y or _pool(n, xs[0], name, sizes, strides, padding, dilations)
        if y is not None:
            return [y]
    low, high = [p[0] for p in padding], [p[1] for p in padding]
    parts = [pad(n, x, i, low, high, [a - 1 for a in apart]) for x, i in zip(xs, initial, strict=True)]
    combine = body_of(n)
    for axis, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        if size == 1 and stride == 1:
            continue
        length = parts[0].type.shape[axis]

        def shifted(values: Sequence[Any], by: int, count: Dim, axis: int = axis) -> list[Any]:
            return [strided(n, v, axis, by, count) for v in values]

        # Windows of 1, 2, 4, ... elements; those whose sizes add up to `size` are placed one behind the
        # other.
        done, power, width, whole = 0, parts, 1, None
        while True:
            if size & width:
                reach = length - (done + width - 1) * dilation
                block = shifted(power, done * dilation, reach)
                whole = block if whole is None else combine(shifted(whole, 0, reach), block)
                done += width
            if done == size:
                break
            reach = length - (2 * width - 1) * dilation
            power = combine(shifted(power, 0, reach), shifted(power, width * dilation, reach))
            width *= 2
        assert whole is not None
        parts = [strided(n, v, axis, 0, positions(length, size, stride, dilation), stride) for v in whole]
    start = [n.broadcast(i, parts[0].type.shape) for i in initial]
    return combine(start, parts)


def _prefix(
    n: Node,
    x: Value,
    name: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilations: Sequence[int],
) -> Value | None:
    """Return a cumulative sum or product: a window as long as the dimension that ends, or begins, at each
    element. Returns None for another window.
    """
    axes = [d for d, size in enumerate(sizes) if size > 1]
    if len(axes) != 1 or name not in ("sum", "prod") or any(s != 1 for s in (*strides, *dilations)):
        return None
    axis = axes[0]
    size = sizes[axis]
    if not prove_eq(x.type.shape[axis], size) or any(p != (0, 0) for d, p in enumerate(padding) if d != axis):
        return None
    if padding[axis] not in ((size - 1, 0), (0, size - 1)):
        return None
    return n.emit((g.Cumsum if name == "sum" else g.Cumprod)(x, axis=axis, reverse=padding[axis][0] == 0))


def _pool(
    n: Node,
    x: Value,
    name: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilations: Sequence[int],
) -> Value | None:
    """Return a pooling of floats whose windows span neither the first dimension nor one more, or None for
    another window.
    """
    idle = [d for d in range(x.type.rank) if sizes[d] == strides[d] == 1 and padding[d] == (0, 0)]
    moving = [d for d in range(x.type.rank) if d not in idle]
    if not x.type.dtype.is_float or name not in ("sum", "max") or len(idle) != 2 or not moving:
        return None
    if any(p < 0 for pair in padding for p in pair):
        return None
    order = [*idle, *moving]
    attributes = {
        "kernel": tuple(sizes[d] for d in moving),
        "strides": tuple(strides[d] for d in moving),
        "padding": tuple(padding[d] for d in moving),
        "dilations": tuple(dilations[d] for d in moving),
    }
    y = n.transpose(x, order)
    y = n.emit(g.MaxPool(y, **attributes) if name == "max" else g.AvgPool(y, divisor=1, **attributes))
    return n.transpose(y, [order.index(d) for d in range(x.type.rank)])


@importer("stablehlo.dynamic_reduce_window", dialect="custom_call")
def _dynamic(n: Node) -> list[Value]:
    """Reduce windows of one tensor, with sizes, strides, dilations and padding as operands; the body is a
    function.

    A window whose size depends on dynamic dimensions must be that of a cumulative reduction.
    """
    x, initial = n.inputs[:2]
    rank = x.type.rank
    sizes, strides, apart, dilations, flat = (n.sizes(k) for k in range(2, 7))
    name = n.attr("called_computations")[0].value
    block = n.importer.functions[name].regions[0].blocks[0]
    axes = [d for d in range(rank) if not prove_eq(sizes[d], 1)]
    if len(axes) != 1 or any(not prove_eq(s, 1) for s in (*strides, *apart, *dilations)):
        raise Unsupported("windows of dynamic sizes other than those of cumulative reductions")
    axis = axes[0]
    size, before, behind = sizes[axis], *flat[2 * axis : 2 * axis + 2]
    others = [p for k, p in enumerate(flat) if k // 2 != axis]
    forward = prove_eq(before, size - 1) and prove_eq(behind, 0)
    backward = prove_eq(before, 0) and prove_eq(behind, size - 1)
    if (
        not prove_eq(size, x.type.shape[axis])
        or not (forward or backward)
        or any(not prove_eq(p, 0) for p in others)
    ):
        raise Unsupported("windows of dynamic sizes other than those of cumulative reductions")
    kind = combiner(block, x.type.dtype)
    if kind in ("sum", "prod") and is_neutral(initial, kind):
        return [n.emit((g.Cumsum if kind == "sum" else g.Cumprod)(x, axis=axis, reverse=not forward))]

    def step(state: Value, row: Value, _: Value) -> tuple[list[Value], list[Value]]:
        both = [state, row] if forward else [row, state]
        after = n.apply(block, both)
        return after, after

    order = [axis, *(d for d in range(rank) if d != axis)]
    rows = n.transpose(x, order)
    start = n.broadcast(initial, rows.type.shape[1:])
    _, stacked = scan_over(n, [start], [rows], step, not forward)
    return [n.transpose(stacked, [order.index(d) for d in range(rank)])]


@importer("select_and_scatter")
def _select_and_scatter(n: Node) -> Value:
    """Return the gradient of pooling: each window's selected element gets the window's element of `source`;
    others get the initial value.
    """
    x, source, initial = n.inputs
    rank = x.type.rank
    ones = [1] * rank
    sizes, strides = n.ints("window_dimensions", ones), n.ints("window_strides", ones)
    padding = n.pairs("padding", rank)
    taps = list(itertools.product(*(range(s) for s in sizes)))
    if len(taps) > MAX_TAPS:
        raise Unsupported(f"a window of {len(taps)} elements; at most {MAX_TAPS} are supported")
    low, high = [p[0] for p in padding], [p[1] for p in padding]
    shape = source.type.shape
    padded = pad(n, x, n.like(0, x), low, high)
    inside = n.broadcast(n.constant(True, boolean), x.type.shape)
    inside = pad(n, inside, n.constant(False, boolean), low, high)

    def window(v: Value, tap: Sequence[int]) -> Value:
        stops = [t + (c - 1) * s + 1 for t, c, s in zip(tap, shape, strides, strict=True)]
        return n.slice(v, tap, stops, strides)

    best = valid = chosen = None
    for k, tap in enumerate(taps):
        value, ok, number = window(padded, tap), window(inside, tap), n.constant(k, i32)
        if best is None or valid is None or chosen is None:
            best, valid, chosen = value, ok, n.broadcast(number, shape)
            continue
        keeps = n.apply(n.block(0), [best, value])[0]
        keeps = n.binary("and", valid, n.binary("or", keeps, n.unary("not", ok)))
        best, chosen = n.select(keeps, best, value), n.select(keeps, chosen, number)
        valid = n.binary("or", valid, ok)
    assert chosen is not None
    # For each tap, the windows that selected it add their number to its element.
    name = combiner(n.block(1), x.type.dtype)
    plain = name == "sum" and is_neutral(initial, "sum")
    total = n.broadcast(initial, padded.type.shape)
    zero = n.like(0, x)
    for k, tap in enumerate(taps):
        here = n.binary("eq", chosen, k)
        ends = [
            size - t - ((c - 1) * s + 1)
            for size, t, c, s in zip(padded.type.shape, tap, shape, strides, strict=True)
        ]

        def spread(
            v: Value, fill: Value, low: Sequence[int] = tap, high: Sequence[Dim] = tuple(ends)
        ) -> Value:
            return pad(n, v, fill, low, high, [s - 1 for s in strides])

        if plain:
            total = n.binary("add", total, spread(n.select(here, source, zero), zero))
        else:
            joined = n.apply(n.block(1), [total, spread(source, zero)])[0]
            total = n.select(spread(here, n.constant(False, boolean)), joined, total)
    starts = [p[0] for p in padding]
    return n.slice(total, starts, [s + size for s, size in zip(starts, x.type.shape, strict=True)])
