"""Notes the roles of axes at contractions, for targets that read their operands where they lie."""

from __future__ import annotations

from ...analysis.axis_roles import Roles
from ...analysis.contraction import match_contraction
from ...dialects import tensor
from ...ir import notes
from ...ir.core import Module, Value
from ...ir.substitution import free_symbols
from ...ir.symbolic import Expr


def mark_contractions(module: Module) -> None:
    """Note the roles of axes at every product of two matrices, or of a vector and a matrix, and every
    convolution.

    A product with one term is left out. A product of a vector and a matrix that is computed element by
    element is left out, too: it is better fused with that computation as a reduction.
    """
    for block in tensor.blocks_of_computations(module):
        for op in block.ops:
            if isinstance(op, tensor.Compute) and not notes.QUANTIZED.present(op):
                roles = _roles(op)
                if roles is not None:
                    notes.CONTRACTION.set(op, roles.as_attribute())


def _roles(compute: tensor.Compute) -> Roles | None:
    found = match_contraction(compute)
    if found is None or found.index is not None:
        return None
    has_rows, *others = (any(axis.upper != 0 for axis in axes) for axes in (found.m, found.n, found.k))
    if not all(others) or (not has_rows and _is_computed(found.b.value)):
        return None
    for axis in compute.reduce_axes:
        if isinstance(axis.upper, Expr) and set(compute.axes) & set(free_symbols(axis.upper)):
            return None
    places = {axis: k for k, axis in enumerate(compute.axes)}
    batch, m, n = (tuple(places[a] for a in axes) for axes in (found.batch, found.m, found.n))
    return Roles(batch, m, n, tuple(range(len(compute.reduce_axes))), nr=0, padded=False)


def _is_computed(value: Value) -> bool:
    """Whether a value is the result of a computation other than a contraction, through views."""
    op = value.defining_op
    while isinstance(op, tensor.View):
        op = op.x.defining_op
    return isinstance(op, tensor.Compute) and not notes.CONTRACTION.present(op)


__all__ = ["mark_contractions"]
