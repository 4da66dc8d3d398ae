"""Notes the roles of axes at contractions, for targets that read their operands where they lie."""

from __future__ import annotations

from ...analysis.axis_roles import Roles
from ...analysis.contraction import match_contraction
from ...dialects import scalar, tensor
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Operation, Value
from ...ir.substitution import free_symbols
from ...ir.symbolic import Expr


def mark_contractions(module: Module) -> None:
    """Note the roles of axes at every product of two matrices, or of a vector and a matrix, and every
    convolution.

    A product with one term is left out. A product of a vector and a matrix that is computed from sums is left
    out, too: it may be computed row by row with them.
    """
    for block in tensor.blocks_of_computations(module):
        for op in block.ops:
            if isinstance(op, tensor.Compute):
                roles = _quantized_roles(op) if notes.QUANTIZED.present(op) else _roles(op)
                if roles is not None and notes.QUANTIZED.present(op):
                    _separate_factors(op)
                if roles is not None:
                    notes.CONTRACTION.set(op, roles.as_attribute())


def _roles(compute: tensor.Compute) -> Roles | None:
    found = match_contraction(compute)
    if found is None or found.index is not None:
        return None
    has_rows, *others = (any(axis.upper != 0 for axis in axes) for axes in (found.m, found.n, found.k))
    if not all(others) or (not has_rows and _follows_sums(found.b.value)):
        return None
    for axis in compute.reduce_axes:
        if isinstance(axis.upper, Expr) and set(compute.axes) & set(free_symbols(axis.upper)):
            return None
    places = {axis: k for k, axis in enumerate(compute.axes)}
    batch, m, n = (tuple(places[a] for a in axes) for axes in (found.batch, found.m, found.n))
    return Roles(batch, m, n, tuple(range(len(compute.reduce_axes))), nr=0, padded=False)


def _quantized_roles(compute: tensor.Compute) -> Roles | None:
    """The roles of a product with quantized weights, whose terms are groups and elements of them; None where
    each row chooses its matrix.
    """
    if any(read.dynamic for read in compute.reads) or len(compute.reduce_axes) != 2:
        return None
    column = len(compute.axes) - 1
    rows = tuple(k for k in range(column))
    return Roles((), rows, (column,), (0, 1), nr=0, padded=False)


def _separate_factors(compute: tensor.Compute) -> None:
    """Make a term ``(x q) (x_scale scale)`` of quantized numbers the product ``(x x_scale) (q scale)``, whose
    factors are dequantized.
    """
    end = compute.body.terminator
    term = end.operands[0].defining_op
    if not isinstance(term, scalar.BINARY["mul"]):
        return
    numbers, factors = (x.defining_op for x in term.operands)
    products = numbers.x.defining_op if isinstance(numbers, scalar.Cast) else None
    if not isinstance(products, scalar.BINARY["mul"]) or not isinstance(factors, scalar.BINARY["mul"]):
        return
    b = Builder.before(end)
    made = []
    for value, scale in zip(products.operands, factors.operands, strict=True):
        number = value.defining_op.x if isinstance(value.defining_op, scalar.Cast) else value
        made.append(b(scalar.BINARY["mul"](b(scalar.Cast(number, dtype=compute.dtype)), scale)))
    end.set_operand(0, b(scalar.BINARY["mul"](*made)))
    for op in reversed(list(compute.body.ops)):
        if op.results and not any(r.users for r in op.results):
            op.erase()


def _follows_sums(value: Value) -> bool:
    """Whether a value is the result of a reduction other than a contraction, or computed from one."""
    op = _source(value)
    if not isinstance(op, tensor.Compute) or notes.CONTRACTION.present(op):
        return False
    return op.is_reduction or any(
        isinstance(other := _source(read.source), tensor.Compute)
        and other.is_reduction
        and not notes.CONTRACTION.present(other)
        for read in op.reads
    )


def _source(value: Value) -> Operation | None:
    """The operation that computes a value, through views."""
    op = value.defining_op
    while isinstance(op, tensor.View):
        op = op.x.defining_op
    return op


__all__ = ["mark_contractions"]
