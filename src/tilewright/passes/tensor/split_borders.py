"""Splits computations that put a border of constants around others' results: convolutions' padded images.

``y[h, w] = f(x[h - 1, w - 1]) if 1 <= h <= n and 1 <= w <= m else 0`` becomes nested concatenations, row by
row, then column by column: ``concat(top, concat(left, f(x), right), bottom)``. The interior is written by the
computation of ``x`` itself, with ``f`` as its epilogue, into its place between the borders, so that the pass
over memory that copied it is saved. A padded concatenation is divided along one more axis, and each part has
its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...analysis.axis_roles import Roles
from ...analysis.index_maps import flatten_index, product, symbols_of
from ...dialects import scalar, tensor
from ...dialects.places import dimension_groups
from ...dialects.tensor import extent
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Operation, Value
from ...ir.substitution import linear_in, substitute
from ...ir.symbolic import Dim, Expr, prove_eq, prove_le, prove_lt, symbol
from ...ir.types import TensorType
from .split_concat import copy_body, reshaped

SMALLEST = 1 << 14
"""Least number of elements that are no longer copied. Each border is a kernel of its own, whose start costs
about as much as copying this many elements. A larger value splits fewer images.
"""
RUN = 16
"""Least number of contiguous elements in every piece that is no border: one vector."""
MOST_PIECES = 12
"""The most pieces of one image, borders included. A larger value splits more padded concatenations."""


def split_borders(module: Module) -> None:
    """Split elementwise computations that put constants around others' results, if that saves a pass over
    memory.
    """
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and not op.is_reduction and (limits := _limits(op)) is not None:
                _split(op, limits)


Limits = dict[tensor.Read, list[tuple[int, bool, int]]]
"""For each guarded read, its guards: an axis, whether it holds from a limit on (else before it), and that
limit.
"""


def _limits(op: tensor.Compute) -> Limits | None:
    """The limits of all guarded reads; None unless each guard compares one axis with a number, and all sizes
    are known.
    """
    if not all(isinstance(n, int) and n > 0 for n in op.shape):
        return None
    limits: Limits = {}
    for read in op.reads:
        if read.dynamic:
            return None
        for e in read.guard:
            used = [k for k, axis in enumerate(op.axes) if axis in symbols_of([e])]
            parts = linear_in(e, op.axes[used[0]]) if len(used) == 1 else None
            if parts is None or parts[0] not in (1, -1) or not isinstance(parts[1], int):
                return None
            limit = -parts[1] if parts[0] == 1 else parts[1] + 1
            limits.setdefault(read, []).append((used[0], parts[0] == 1, limit))
    return limits or None


@dataclass
class _Piece:
    """A part of the points: their ranges (start, end) in each axis, the guarded reads that hold in all of
    them, and what the part consists of: either a computation, or parts along an axis.
    """

    ranges: tuple[tuple[int, int], ...]
    holding: frozenset[tensor.Read]
    axis: int = 0
    parts: Sequence[_Piece] = ()
    compute: tensor.Compute | None = None

    def leaves(self) -> Iterator[_Piece]:
        """The parts that are computations."""
        for part in self.parts:
            yield from part.leaves()
        if not self.parts:
            yield self


def _pieces(op: tensor.Compute, limits: Limits, ranges: tuple[tuple[int, int], ...], axis: int) -> _Piece:
    """Divide the ranges at the limits of reads, along `axis` and those behind it, while a read is left."""

    def state(read: tensor.Read) -> bool | None:
        """Whether a read holds in all of the points or in none; None if neither."""
        found: bool | None = True
        for k, rising, limit in limits[read]:
            start, end = ranges[k]
            if (end <= limit) if rising else (limit <= start):
                return False
            if (start < limit) if rising else (limit < end):
                found = None
        return found

    states = {read: state(read) for read in limits}
    alive = [read for read, found in states.items() if found is not False]
    unguarded = any(not read.guard for read in op.reads)
    holding = frozenset(read for read, found in states.items() if found)
    if all(found is not None for found in states.values()) or axis == len(ranges):
        return _Piece(ranges, holding)
    if not alive and not unguarded:
        return _Piece(ranges, holding)
    start, end = ranges[axis]
    cuts = {limit for read in alive for k, _, limit in limits[read] if k == axis and start < limit < end}
    ends = [start, *sorted(cuts), end]
    parts = [
        _pieces(op, limits, (*ranges[:axis], (a, b), *ranges[axis + 1 :]), axis + 1)
        for a, b in pairwise(ends)
    ]
    return parts[0] if len(parts) == 1 else _Piece(ranges, holding, axis, parts)


def _split(op: tensor.Compute, limits: Limits) -> None:
    tree = _pieces(op, limits, tuple((0, n) for n in op.shape if isinstance(n, int)), 0)
    leaves = list(tree.leaves())
    if not 1 < len(leaves) <= MOST_PIECES:
        return
    for leaf in leaves:
        leaf.compute = _computation(op, leaf)
    makers: dict[int, Value] = {}
    saved = 0
    for leaf in leaves:
        assert leaf.compute is not None
        maker = _maker(op, leaf.compute)
        if maker is not None:
            makers[id(leaf)] = maker
            saved += _points(leaf)
    borders = [leaf for leaf in leaves if leaf.compute is not None and not leaf.compute.reads]
    last = _last_cut(tree)
    short = any(
        leaf not in borders and prove_lt(product([b - a for a, b in leaf.ranges[last:]]), RUN)
        for leaf in leaves
    )
    if saved < SMALLEST or short or not borders:
        for leaf in leaves:
            assert leaf.compute is not None
            leaf.compute.erase()
        return
    op.replace_by(_joined(op, tree, makers))
    for leaf in leaves:
        assert leaf.compute is not None
        if not leaf.compute.result.has_uses:
            leaf.compute.erase()


def _points(leaf: _Piece) -> int:
    """The number of points of a piece."""
    total = 1
    for start, end in leaf.ranges:
        total *= end - start
    return total


def _last_cut(tree: _Piece) -> int:
    """The last axis along which parts are joined."""
    return max((tree.axis, *(_last_cut(part) for part in tree.parts if part.parts)))


def _joined(op: tensor.Compute, piece: _Piece, makers: dict[int, Value]) -> Value:
    """The value of a piece, of concatenations of its parts."""
    b = Builder.before(op)
    if piece.parts:
        parts = [_joined(op, part, makers) for part in piece.parts]
        joined: Value = b(tensor.Concat(parts, axis=piece.axis, location=op.location))
        return joined
    own = piece.compute
    assert own is not None
    if (source := makers.get(id(piece))) is None:
        notes.BOX_AXES.set(own, tuple(range(len(own.axes))))
        return own.result
    base = source
    while isinstance(view := base.defining_op, tensor.Reshape):
        base = view.x
    maker = base.defining_op
    assert isinstance(maker, tensor.Compute)
    groups = dimension_groups(base.type.shape, own.shape)
    assert groups is not None
    # A dimension of 1 begins no group: axes that later become one are those after it.
    starts = tuple(
        dict.fromkeys(
            next((d for d in group if not prove_eq(base.type.shape[d], 1)), group.start) for group in groups
        )
    )
    if len(own.body) == 2:  # it only repeats the source
        notes.BOX_AXES.set(maker, starts)
        return reshaped(b, source, own.result.type.shape)
    epilogue = _over(own, base)
    b.insert(epilogue)
    notes.BOX_AXES.set(epilogue, starts)
    return reshaped(b, epilogue.result, own.result.type.shape)


def _over(own: tensor.Compute, base: Value) -> tensor.Compute:
    """The computation `own`, whose only read is of a view of `base`, over the shape of `base`."""
    axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(base.type.shape))
    new = tensor.Compute(
        axes=axes, result_types=[TensorType(own.dtype, base.type.shape)], location=own.location
    )
    notes.copy(own, new)
    copies: dict[Value, Value] = {}
    for child in own.body.ops:
        if isinstance(child, tensor.Read):
            copy: Operation = tensor.Read(base, [], None, indices=axes, location=child.location)
            copies[child.result] = copy.results[0]
        else:
            copy = child.clone(copies)
        new.body.append(copy)
    return new


def _maker(op: tensor.Compute, piece: tensor.Compute) -> Value | None:
    """The value that a piece reads, element by element, if no other operation reads it and the computation of
    it can write it to the piece's place; else None.

    A product without a window (a 1×1 convolution) has the points of an image in one axis. Tiles that end
    where a row of the image ends take as much longer as the copy takes.
    """
    if len(piece.reads) != 1 or any(isinstance(child, scalar.Index) for child in piece.body.ops):
        return None
    (read,) = piece.reads
    base = read.source
    while isinstance(view := base.defining_op, tensor.Reshape) and view.x.has_one_use:
        base = view.x
    maker = base.defining_op
    if (
        not isinstance(maker, tensor.Compute)
        # A concatenation is itself split into its parts, for which a reshape of it has no place.
        or (any(own.guard for own in maker.reads) and base.type.shape != piece.result.type.shape)
        or maker.parent is not op.parent
        or (base is not read.source and not base.has_one_use)
        or not {user.parent_op for user in read.source.users} <= {op, piece}
        or sum(r.source is read.source for r in op.reads) != 1
        or not prove_eq(base.type.size, piece.result.type.size)
        or not prove_eq(
            flatten_index(read.indices, read.source.type.shape),
            flatten_index(piece.axes, piece.result.type.shape),
        )
        or dimension_groups(base.type.shape, piece.shape) is None
    ):
        return None
    roles = Roles.of(maker)
    if roles is not None and _is_collapsed(maker, roles):
        return None
    source: Value = read.source
    return source


def _is_collapsed(maker: tensor.Compute, roles: Roles) -> bool:
    """Whether a product has no window, and two axes of its rows, or of its columns, lie beside each other, so
    that they become one.
    """
    if sum(extent(axis) != 1 for axis in maker.reduce_axes) > 1:
        return False
    wide = [p for p, axis in enumerate(maker.axes) if extent(axis) != 1]
    pairs = set(pairwise(wide))
    return any((p, q) in pairs for group in (roles.m, roles.n) for p in group for q in group)


def _computation(op: tensor.Compute, piece: _Piece) -> tensor.Compute:
    """The computation of a piece, inserted before `op`, without guards, and without conditions that are the
    same in all of its points.
    """
    axes = tuple(
        symbol(axis.name, 0, end - start - 1)
        for axis, (start, end) in zip(op.axes, piece.ranges, strict=True)
    )
    mapping: dict[Expr, Dim] = {
        axis: new + start for axis, new, (start, _) in zip(op.axes, axes, piece.ranges, strict=True)
    }
    new = tensor.Compute(
        axes=axes,
        result_types=[TensorType(op.dtype, tuple(extent(a) for a in axes))],
        location=op.location,
    )
    notes.copy(op, new)
    known: dict[Value, bool] = {}

    def chosen(value: Value) -> Value:
        """The value that replaces a value of the body."""
        while (maker := value.defining_op) is not None:
            if isinstance(maker, tensor.Read) and maker.guard and maker not in piece.holding:
                assert maker.otherwise is not None
                value = maker.otherwise
            elif isinstance(maker, scalar.Select) and maker.condition in known:
                value = maker.a if known[maker.condition] else maker.b
            else:
                break
        return value

    for child in op.body.ops:  # operands stand before their users
        if (found := _decided(child, known, mapping)) is not None:
            known[child.results[0]] = found
    copy_body(op, new, mapping, chosen, lambda read: True)
    return new


def _decided(child: Operation, known: dict[Value, bool], mapping: dict[Expr, Dim]) -> bool | None:
    """Whether a condition of the body holds for all points or for none; None if neither is known."""
    if child.name == "scalar.and":
        found = [known.get(v) for v in child.operands]
        return False if False in found else True if all(found) else None
    if child.name != "scalar.ge":
        return None
    index, bound = (v.defining_op for v in child.operands)
    if not isinstance(index, scalar.Index) or not isinstance(bound, scalar.Constant):
        return None
    e, limit = substitute(index.expr, mapping), int(bound.value)
    return True if prove_le(limit, e) else False if prove_lt(e, limit) else None


__all__ = ["split_borders"]
