"""Splits elementwise computations that compute different things in several ranges of an axis: concatenations.

``y[i, c] = x[i, c] if c < n else z[i, c - n]`` becomes ``tensor.concat(x, z)``: two computations, each of
which writes its slice of one buffer. If a piece only repeats what another computation computes for it alone,
that computation writes the slice itself. A piece that computes with another's result becomes its epilogue, or
a member of its row group, like any consumer. Elements are no longer compared with the limits of the ranges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from ...analysis.index_maps import flatten_index, product, substitute_all, symbols_of
from ...dialects import tensor
from ...dialects.tensor import extent
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Operation, Value
from ...ir.substitution import linear_in
from ...ir.symbolic import Dim, Expr, bounds, prove_eq, prove_le, prove_lt, symbol
from ...ir.types import Shape, TensorType
from ...ir.walk import post_order

MANY = 4
"""Number of pieces from which on splitting pays, whoever computes them: unsplit, each element is compared
with the limits of all pieces. A larger value splits fewer concatenations.
"""

RUN = 16
"""Least number of contiguous elements in a piece: one vector. In every piece, or where each piece is one run,
on average. A larger value splits fewer concatenations.
"""


def split_concat(module: Module) -> None:
    """Split elementwise computations that concatenate others' results, if that saves a pass over memory or
    many comparisons.
    """
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and not op.is_reduction and (cuts := _cuts(op)) is not None:
                _cut(op, cuts)


@dataclass(frozen=True)
class _Cuts:
    """The ranges of an axis.

    `ends` are the limits of the ranges, the last of which is the axis's extent. `holding` has the ranges in
    which the guards of a read hold; they hold nowhere else.
    """

    axis: int
    ends: tuple[Dim, ...]
    holding: dict[Operation, range]


def _cuts(op: tensor.Compute) -> _Cuts | None:
    """The axis along which all guarded reads choose between ranges that cover it; None where there is
    none.
    """
    guarded = [r for r in op.reads if r.guard]
    guards = [e for r in guarded for e in r.guard]
    used = symbols_of(guards) & set(op.axes)
    if len(used) != 1 or any(r.dynamic for r in guarded):
        return None
    (axis,) = used
    position = op.axes.index(axis)
    ends: list[Dim] = [extent(axis)]
    limits: dict[Expr, tuple[bool, Dim]] = {}
    """For each guard: whether it holds from a limit on (else before it), and that limit."""
    for e in guards:
        parts = linear_in(e, axis)
        if parts is None or parts[0] not in (1, -1):
            return None
        end = -parts[1] if parts[0] == 1 else parts[1] + 1
        end = 0 if prove_le(end, 0) else ends[-1] if prove_le(ends[-1], end) else end
        at = bisect_left(ends, True, key=lambda other: prove_le(end, other))
        if at < len(ends) and prove_eq(end, ends[at]):
            end = ends[at]  # the same limit, perhaps written in another way
        elif end != 0:
            if at == len(ends) or not prove_lt(end, ends[at]) or (at > 0 and not prove_lt(ends[at - 1], end)):
                return None  # the order of the limits depends on symbols
            ends.insert(at, end)
        limits[e] = (parts[0] == 1, end)
    if len(ends) == 1:
        return None
    numbers: dict[Dim, int] = {0: 0, **{end: k + 1 for k, end in enumerate(ends)}}
    holding: dict[Operation, range] = {}
    for r in guarded:
        places = [limits[e] for e in r.guard]
        first = max((numbers[place] for is_start, place in places if is_start), default=0)
        last = min((numbers[place] for is_start, place in places if not is_start), default=len(ends))
        holding[r] = range(first, last)
    return _Cuts(position, tuple(ends), holding)


def _cut(op: tensor.Compute, cuts: _Cuts) -> None:
    pieces: list[tensor.Compute] = []
    start: Dim = 0
    for number, end in enumerate(cuts.ends):
        piece = _piece(op, cuts, number, start)
        pieces.append(piece)
        start = end
    if all(piece.reads and not any(r.guard for r in piece.reads) for piece in pieces) and _pays(
        op, cuts, pieces
    ):
        for piece in pieces:
            notes.CONCAT_AXIS.set(piece, cuts.axis)
        parts = [_made_for(op, piece, cuts.axis) or piece.result for piece in pieces]
        op.replace_by(Builder.before(op)(tensor.Concat(parts, axis=cuts.axis, location=op.location)))
    for piece in pieces:
        if not piece.result.has_uses:
            piece.erase()


def _pays(op: tensor.Compute, cuts: _Cuts, pieces: list[tensor.Compute]) -> bool:
    inner = product(op.shape[cuts.axis + 1 :])
    runs = [bounds(extent(piece.axes[cuts.axis]) * inner)[1] for piece in pieces]
    known = [run for run in runs if run is not None]
    is_one_run = product(op.shape[: cuts.axis]) == 1
    if len(known) == len(runs) and is_one_run:
        known = [sum(known) // len(known)]
    if any(run < RUN for run in known):
        return False
    return len(pieces) >= MANY or any(_own_sources(op, piece) for piece in pieces)


def _own_sources(op: tensor.Compute, piece: tensor.Compute) -> list[Value]:
    """Results, perhaps reshaped, that only this piece reads, each element for the same element."""
    sources = []
    for read in piece.reads:
        base = read.source
        while isinstance(view := base.defining_op, tensor.Reshape) and view.x.has_one_use:
            base = view.x
        source = base.defining_op
        if (
            isinstance(source, tensor.Compute)
            and source.parent is op.parent
            and prove_eq(base.type.size, piece.result.type.size)
            and prove_eq(_address(read.indices, read.source), _address(piece.axes, piece.result))
            and {user.parent_op for user in read.source.users} == {op, piece}
            and sum(r.source is read.source for r in op.reads) == 1
            and (base is read.source or base.has_one_use)
        ):
            sources.append(read.source)
    return sources


def _address(indices: tuple[Dim, ...], value: Value) -> Dim:
    return flatten_index(indices, value.type.shape)


def _made_for(op: tensor.Compute, piece: tensor.Compute, position: int) -> Value | None:
    """The result of another computation that a piece only repeats and that has no other use; None where there
    is none.

    Notes the axis of the concatenation at that computation.
    """
    sources = _own_sources(op, piece)
    if len(sources) != 1 or len(piece.body) != 2:
        return None
    value = base = sources[0]
    while isinstance(view := base.defining_op, tensor.Reshape):
        base = view.x
    run, base_shape = product(piece.shape[position:]), base.type.shape
    axis = next((d for d in range(len(base_shape)) if prove_eq(product(base_shape[d:]), run)), None)
    if axis is None:
        return None
    assert view is not None
    notes.CONCAT_AXIS.set(view, axis)
    return reshaped(Builder.before(op), value, piece.result.type.shape)


def reshaped(b: Builder, value: Value, shape: Shape) -> Value:
    """A value reshaped to `shape`, which has as many elements; the value itself if it has that shape."""
    return value if value.type.shape == shape else b(tensor.Reshape(value, shape=shape))


def _piece(op: tensor.Compute, cuts: _Cuts, number: int, start: Dim) -> tensor.Compute:
    """The computation of one range of an axis, inserted before `op`.

    Guards that hold throughout the range are dropped, and so are reads whose guards never hold in it.
    """
    axis = op.axes[cuts.axis]
    piece_axis = symbol(axis.name, 0, cuts.ends[number] - start - 1)
    axes = tuple(piece_axis if a is axis else a for a in op.axes)
    new = tensor.Compute(
        axes=axes,
        result_types=[TensorType(op.dtype, tuple(extent(a) for a in axes))],
        location=op.location,
    )
    notes.copy(op, new)
    mapping: dict[Expr, Dim] = {axis: piece_axis + start}

    def chosen(value: Value) -> Value:
        """The value that replaces a value of the body in this range."""
        while isinstance(read := value.defining_op, tensor.Read) and number not in cuts.holding.get(
            read, (number,)
        ):
            assert read.otherwise is not None
            value = read.otherwise
        return value

    copy_body(op, new, mapping, chosen, lambda read: read in cuts.holding)
    return new


def copy_body(
    op: tensor.Compute,
    new: tensor.Compute,
    mapping: dict[Expr, Dim],
    chosen: Callable[[Value], Value],
    is_certain: Callable[[tensor.Read], bool],
) -> None:
    """Copy what the result of a computation depends on into `new`, the computation of a part of its points,
    and insert that before it.

    Args:
        op: The computation.
        new: The computation of the part, with an empty body.
        mapping: The axes of `op` as expressions of the axes of `new`.
        chosen: The value that replaces a value of the body in the part.
        is_certain: Whether a read is inside its source at all points of the part, so that it needs no guard.
    """

    def used(child: Operation) -> list[Operation]:
        """The operations of the body that compute an operation's operands in this part."""
        values = child.dynamic if isinstance(child, tensor.Read) and is_certain(child) else child.operands
        makers = [chosen(v).defining_op for v in values]
        return [maker for maker in makers if maker is not None and maker.parent is op.body]

    copies: dict[Value, Value] = {}
    for child in post_order([op.body.terminator], used):
        if isinstance(child, tensor.Read) and is_certain(child):
            copy: Operation = tensor.Read(
                child.source,
                [copies[chosen(v)] for v in child.dynamic],
                None,
                indices=substitute_all(child.indices, mapping),
                location=child.location,
            )
            copies[child.result] = copy.results[0]
        else:
            for v in child.operands:
                if (value := chosen(v)) is not v:
                    copies[v] = copies[value]
            copy = child.clone(copies)
            tensor.substitute_indices(copy, mapping)
        new.body.append(copy)
    Builder.before(op).insert(new)


__all__ = ["split_concat"]
