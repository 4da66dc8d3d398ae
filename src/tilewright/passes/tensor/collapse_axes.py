"""Collapses adjacent axes of a group that all accesses traverse as one, which gives fewer, longer loops.

``y[b, s, n] = f(x[b, s, n], w[n])`` becomes ``y[f, n] = f(x[f // S, f % S, n], w[n])``, whose addresses are
affine in ``f``. A view gives results their original shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...analysis.axis_roles import Roles
from ...analysis.index_maps import flatten_index, substitute_all, symbols_of
from ...dialects import scalar, tensor
from ...dialects.tensor import extent
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Operation, Value
from ...ir.substitution import linear_in, substitute
from ...ir.symbolic import Dim, Expr, free_symbols, prove_eq, symbol
from ...ir.types import Shape, TensorType


def collapse_axes(module: Module) -> None:
    """Collapse the axes of every group as far as its accesses allow."""
    for block in tensor.blocks_of_computations(module):
        for group in [op for op in block.ops if isinstance(op, tensor.Group)]:
            _collapse(group)


def _collapse(group: tensor.Group) -> None:
    members = [op for op in group.body.ops if isinstance(op, tensor.Compute)]
    apart = (tensor.GroupKind.SCATTER, tensor.GroupKind.CHAIN, tensor.GroupKind.TILES)
    if group.kind in apart or len(members) + 1 != len(group.body):
        return
    shapes: dict[Value, Shape] = {m.result: m.result.type.shape for m in members}
    rows = notes.ROW_AXES.get(group, len(members[0].axes))
    shared = rows if group.kind == tensor.GroupKind.ROWS else len(members[0].axes)
    d = 0
    while d + 1 < shared:
        if _roles_agree(members, d) and all(_can_merge(m, d, members) for m in members):
            _merge(members, d)
            shared -= 1
            if group.kind == tensor.GroupKind.ROWS:
                notes.ROW_AXES.set(group, notes.ROW_AXES.of(group) - 1)
        else:
            d += 1
    if group.kind == tensor.GroupKind.ROWS:
        _collapse_tails(members, shared)
    for m in members:
        _collapse_reductions(m)
    _restore_shapes(group, shapes)


def _collapse_tails(members: Sequence[tensor.Compute], shared: int) -> None:
    """Collapse axes behind the rows, where all members with these axes agree."""
    if len(members) == 1:
        return  # all axes of a single elementwise computation are rows already
    d = shared
    while any(len(m.axes) > d + 1 for m in members):
        deep = [m for m in members if len(m.axes) > d + 1]
        same = all(
            prove_eq(a, b)
            for m in deep
            for a, b in zip(m.result.type.shape[d : d + 2], deep[0].result.type.shape[d : d + 2], strict=True)
        )
        shallow_read = any(
            r.source in {m.result for m in deep} for m in members if m not in deep for r in m.reads
        )
        if same and not shallow_read and all(_can_merge(m, d, members) for m in deep):
            _merge(deep, d)
        else:
            d += 1


def _roles_agree(members: Sequence[tensor.Compute], d: int) -> bool:
    """Whether merging keeps roles: in a contraction only axes of one role may merge."""
    for m in members:
        roles = Roles.of(m)
        if roles is not None:
            return any(d in group and d + 1 in group for group in (roles.batch, roles.m, roles.n[:-1]))
    return True


def _expressions(op: tensor.Compute) -> list[Dim]:
    """The expressions besides addresses; an axis that occurs in one of them cannot be merged."""
    expressions: list[Dim] = [axis.upper for axis in op.reduce_axes]
    for x in op.body.ops:
        if isinstance(x, tensor.Read):
            expressions += x.guard
            if x.dynamic:
                expressions += x.indices
        elif isinstance(x, scalar.Index):
            expressions.append(x.expr)
    return expressions


def _can_merge(op: tensor.Compute, d: int, members: Sequence[tensor.Compute]) -> bool:
    outer, inner = op.axes[d], op.axes[d + 1]
    if extent(inner) == 0:
        return False  # division by an extent of 0 has no meaning
    if symbols_of(_expressions(op)) & {outer, inner} or notes.CONCAT_AXIS.get(op) == d + 1:
        return False
    if d + 1 in notes.BOX_AXES.get(op, ()) and extent(outer) != 1 and extent(inner) != 1:
        return False
    results = {m.result for m in members}
    for read in op.reads:
        if read.source in results:
            if len(read.indices) <= d + 1 or not (
                _is(read.indices[d], outer) and _is(read.indices[d + 1], inner)
            ):
                return False
            others = (*read.indices[:d], *read.indices[d + 2 :])
            if symbols_of(others) & {outer, inner}:
                return False
        elif not read.dynamic and not _walks_as_one(read, outer, inner):
            return False
    return True


def _is(index: Dim, axis: Expr) -> bool:
    return index is axis or (extent(axis) == 1 and index == 0)


def _walks_as_one(read: tensor.Read, outer: Expr, inner: Expr) -> bool:
    if extent(outer) == 1 or extent(inner) == 1:
        return True  # one of them is always 0, whether it occurs in the address or not
    address = flatten_index(read.indices, read.source.type.shape)
    first = linear_in(address, outer)
    if first is None:
        return False
    second = linear_in(first[1], inner)
    if second is None or symbols_of((first[0], second[0])) & {outer, inner}:
        return False
    return prove_eq(first[0], second[0] * extent(inner))


def _merged(axes: Sequence[Expr], d: int, letter: str) -> tuple[tuple[Expr, ...], dict[Expr, Dim]]:
    """The axes with one in place of `axes[d]` and `axes[d + 1]`, and the replacements of the old axes.

    Names of later axes are renumbered, so that equal groups remain equal.
    """
    outer, inner = axes[d], axes[d + 1]
    n = extent(inner)
    merged = symbol(f"{letter}{d}", 0, extent(outer) * n - 1)
    renamed = [symbol(f"{letter}{k}", 0, axis.upper) for k, axis in enumerate(axes[d + 2 :], d + 1)]
    mapping: dict[Expr, Dim] = {outer: merged // n, inner: merged % n}
    mapping |= zip(axes[d + 2 :], renamed, strict=True)
    return (*axes[:d], merged, *renamed), mapping


def _merge(members: Sequence[tensor.Compute], d: int) -> None:
    results = {m.result for m in members}
    for op in members:
        axes, mapping = _merged(op.axes, d, "i")
        for axis in op.reduce_axes:  # the extent may depend on a renamed axis, as in a cumulative sum
            if not isinstance(axis.upper, int) and not free_symbols(axis.upper).isdisjoint(mapping):
                mapping[axis] = symbol(axis.name, axis.lower, substitute(axis.upper, mapping))
        _rename(op, mapping, dict.fromkeys(results, axes[d]), d)
        op.axes = axes
        _set_shape(op)
        _shift_roles(op, d)
        if notes.CONCAT_AXIS.get(op, 0) > d:
            notes.CONCAT_AXIS.set(op, notes.CONCAT_AXIS.of(op) - 1)
        if (box := notes.BOX_AXES.get(op)) is not None:
            notes.BOX_AXES.set(op, tuple(dict.fromkeys(k - (k > d) for k in box)))


def _rename(op: tensor.Compute, mapping: dict[Expr, Dim], internal: dict[Value, Expr], d: int) -> None:
    for x in op.body.ops:
        if isinstance(x, tensor.Read):
            if x.source in internal:
                x.indices = (
                    *substitute_all(x.indices[:d], mapping),
                    internal[x.source],
                    *substitute_all(x.indices[d + 2 :], mapping),
                )
            else:
                x.indices = substitute_all(x.indices, mapping)
            x.guard = substitute_all(x.guard, mapping)
        elif isinstance(x, scalar.Index):
            x.expr = substitute(x.expr, mapping)
    op.reduce_axes = tuple(substitute(axis, mapping) for axis in op.reduce_axes)


def _set_shape(op: tensor.Compute) -> None:
    op.result.type = TensorType(op.result.type.dtype, tuple(extent(a) for a in op.axes))


def _shift_roles(op: tensor.Compute, d: int) -> None:
    """Decrement the positions behind the merged pair."""
    roles = Roles.of(op)
    if roles is None:
        return

    def shifted(positions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(p if p <= d else p - 1 for p in positions if p != d + 1)

    notes.CONTRACTION.set(
        op, replace(roles, batch=shifted(roles.batch), m=shifted(roles.m), n=shifted(roles.n)).as_attribute()
    )


def _collapse_reductions(op: tensor.Compute) -> None:
    """Merge adjacent reduction axes that every read traverses as one."""
    d = 0
    while d + 1 < len(op.reduce_axes):
        outer, inner = op.reduce_axes[d], op.reduce_axes[d + 1]
        free = symbols_of([e for e in _expressions(op)])
        reads = op.reads
        if (
            extent(inner) == 0
            or {outer, inner} & free
            or any(r.dynamic or not _walks_as_one(r, outer, inner) for r in reads)
        ):
            d += 1
            continue
        axes, mapping = _merged(op.reduce_axes, d, "r")
        for x in op.body.ops:
            if isinstance(x, tensor.Read):
                x.indices = substitute_all(x.indices, mapping)
                x.guard = substitute_all(x.guard, mapping)
            elif isinstance(x, scalar.Index):
                x.expr = substitute(x.expr, mapping)
        op.reduce_axes = axes
        roles = Roles.of(op)
        if roles is not None:
            k_order = tuple(p if p <= d else p - 1 for p in roles.k if p != d + 1)
            notes.CONTRACTION.set(op, replace(roles, k=k_order).as_attribute())


def _restore_shapes(group: tensor.Group, shapes: dict[Value, Shape]) -> None:
    for result, value in zip(group.results, group.body.terminator.operands, strict=True):
        shape = shapes[value]
        if value.type.shape == shape:
            continue
        result.type = value.type
        uses: list[tuple[Operation, int]] = list(result.uses)
        view = Builder.after(group)(tensor.Reshape(result, shape=shape))
        for user, k in uses:
            user.set_operand(k, view)


__all__ = ["collapse_axes"]
