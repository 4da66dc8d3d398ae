"""Computes only what is read of a result, where that is one element of a dimension.

The logits after a prompt need the last token alone, and many classifiers need the first one. Fusion moves
such a slice ``y[n - 1]`` into the computation that reads y. Its producers, such as the feed-forward block of
the last layer, would still compute all n tokens: ``y[i] = f(x[i])`` for i < n. They become
``y[0] = f(x[n - 1])``, which reads one token of x, and so on up to computations of which more is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...analysis.index_maps import product
from ...dialects import tensor
from ...dialects.tensor_builder import TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Value
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr, prove_eq, prove_le, prove_lt, symbol
from ...ir.types import TensorType


def shrink_results(module: Module) -> None:
    """Reduce every dimension of a computation of which all readers read the same element to that element."""
    for block in tensor.blocks_of_computations(module):
        for op in reversed(list(block.ops)):  # readers are reduced before what they read
            if isinstance(op, tensor.Compute) and op.result.has_uses:
                for d in range(len(op.axes)):
                    if (place := _only_place(op, d)) is not None:
                        op = _reduced(op, d, place)
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and notes.QUANTIZED.present(op):
                _read_from_start(op)


def _reads(value: Value, d: int) -> Iterator[tuple[tensor.Read, int] | None]:
    """The reads of a tensor, directly or through views, each with the number of its index that is that of
    dimension `d`; None for each other use, and for a view without the dimension.
    """
    for user, _ in value.uses:
        if isinstance(user, tensor.Read):
            yield user, d
        elif isinstance(user, tensor.Reshape) and (shown := _dimension(user, d)) is not None:
            yield from _reads(user.result, shown)
        else:
            yield None


def _dimension(view: tensor.Reshape, d: int) -> int | None:
    """The dimension of a view whose index is that of dimension `d` of what it shows; None if it has none."""
    shape = view.x.type.shape
    before = product(shape[:d])
    return next(
        (
            k
            for k, n in enumerate(view.shape)
            if prove_eq(n, shape[d]) and prove_eq(product(view.shape[:k]), before)
        ),
        None,
    )


def _only_place(op: tensor.Compute, d: int) -> Dim | None:
    """The index of dimension `d` at which everything reads a result; None if there are several, if it is not
    certain to lie within the dimension, or if the dimension has one element.

    The index may contain sizes of the result only: others may become known behind the computation.
    """
    n = op.shape[d]
    known = {s for size in op.shape for s in tensor.free_symbols_of(size)}
    if prove_eq(n, 1):
        return None
    found: Dim | None = None
    for use in _reads(op.result, d):
        if use is None:
            return None
        read, k = use
        reader = read.parent_op
        if not isinstance(reader, tensor.Compute) or reader.parent is not op.parent:
            return None
        place = _same(read.indices[k], reader)
        if (
            place is None
            or not tensor.free_symbols_of(place) <= known
            or (found is not None and not prove_eq(place, found))
        ):
            return None
        found = place
    return found if found is not None and prove_le(0, found) and prove_lt(found, n) else None


def _same(index: Dim, reader: tensor.Compute) -> Dim | None:
    """The index of a read, if it is the same at all points of the reader."""
    axes = (*reader.axes, *reader.reduce_axes)
    index = substitute(index, {axis: 0 for axis in axes if prove_eq(tensor.extent(axis), 1)})
    moving = any(s in axes or tensor.is_dynamic_symbol(s) for s in tensor.free_symbols_of(index))
    return None if moving else index


def _reduced(op: tensor.Compute, d: int, place: Dim) -> tensor.Compute:
    """Replace a computation by that of its element `place` of dimension `d`, and let its readers read it."""
    axis = op.axes[d]
    only = symbol(axis.name, 0, 0)
    mapping: dict[Expr, Dim] = {axis: only + place}
    for r in op.reduce_axes:
        if axis in tensor.free_symbols_of(r.upper):
            mapping[r] = symbol(r.name, 0, substitute(r.upper, mapping))
    shape = op.result.type.shape
    new = tensor.Compute(
        axes=(*op.axes[:d], only, *op.axes[d + 1 :]),
        reduce_axes=tuple(mapping.get(r, r) for r in op.reduce_axes),
        combiner=op.combiner,
        result_types=[TensorType(op.dtype, (*shape[:d], 1, *shape[d + 1 :]))],
        location=op.location,
    )
    notes.copy(op, new)
    tensor.clone_body(op, new, mapping)
    Builder.before(op).insert(new)
    _redirect(op.result, new.result, d, place)
    op.erase()
    return new


def _redirect(old: Value, new: Value, d: int, place: Dim) -> None:
    """Let everything that reads `old` read `new`, its element `place` of dimension `d`."""
    for user, k in list(old.uses):
        if isinstance(user, tensor.Reshape):
            shown = _dimension(user, d)
            assert shown is not None
            shape = (*user.shape[:shown], 1, *user.shape[shown + 1 :])
            view = Builder.before(user)(tensor.Reshape(new, shape=shape, location=user.location))
            _redirect(user.result, view, shown, place)
            user.erase()
        else:
            assert isinstance(user, tensor.Read)
            user.set_operand(k, new)
            user.indices = (*user.indices[:d], user.indices[d] - place, *user.indices[d + 1 :])


def _read_from_start(op: tensor.Compute) -> None:
    """Copy the element of a dimension that a product with quantized weights reads by an axis of one element:
    weights are packed only for rows that are read from the first one on (`pack_quantized`).
    """
    t = TensorBuilder(Builder.before(op))
    single = {axis for axis in op.axes if prove_eq(tensor.extent(axis), 1)}
    for read in op.reads:
        for d, index in enumerate(read.indices):
            axis = next((s for s in tensor.free_symbols_of(index) if s in single), None)
            if axis is None or index is axis:
                continue
            x, place = t.wrap(read.source), index - axis
            shape = (*x.shape[:d], 1, *x.shape[d + 1 :])
            row = t.compute(shape, lambda *i, x=x, d=d, place=place: x[*i[:d], i[d] + place, *i[d + 1 :]])
            read.set_operand(0, row.value)
            read.indices = (*read.indices[:d], axis, *read.indices[d + 1 :])


__all__ = ["shrink_results"]
