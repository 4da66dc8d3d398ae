"""Puts calls of vendors' libraries in the place of products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...dialects import graph
from ...dialects.graph.base import tensor_type
from ...dialects.kernels import Apply, KernelDefinition
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.core import Module, Operation, Value
from ...ir.symbolic import Dim, bounds, prove_eq
from ...ir.types import DType


@dataclass(frozen=True)
class Shape:
    """The shape of a product in a model; sizes are None where they are known at run time only."""

    batch: int | None
    rows: int | None
    columns: int | None
    terms: int | None
    constant: bool
    """Whether the right factor is a constant, which the compiler may arrange."""


Choose = Callable[[DType, bool, bool, str, Shape], KernelDefinition | None]
"""The kernel for a product of an element type, ``batched``, with the right factor ``transposed``, with an
epilogue (``bias`` or none), of this shape; None: the compiler computes it.
"""


def use_libraries(module: Module, choose: Choose) -> dict[str, int]:
    """Replace products by the kernels that `choose` returns; return the number of each kernel's by name."""
    counts: dict[str, int] = {}
    for op in list(module.walk()):
        if isinstance(op, graph.Matmul) and op.dtype is None and (name := _replace(op, choose)):
            counts[name] = counts.get(name, 0) + 1
    dce(module)
    return counts


def _replace(op: graph.Matmul, choose: Choose) -> str:
    a, b = tensor_type(op.a), tensor_type(op.b)
    batched = b.rank > 2
    if a.rank < 2 or b.rank < 2 or (bounds(a.shape[-1])[0] or 0) < 1:
        return ""
    same = len(a.shape) == len(b.shape) and all(
        prove_eq(m, n) for m, n in zip(a.shape[:-2], b.shape[:-2], strict=True)
    )
    if batched and not same:
        return ""
    right, transposed = op.b, False
    source = op.b.defining_op
    if isinstance(source, graph.Transpose):
        swapped = (*range(b.rank - 2), b.rank - 1, b.rank - 2)
        if tuple(source.permutation) == swapped:
            right, transposed = source.x, True
    batch, rows = _product(a.shape[:-2]), a.shape[-2]
    if not batched:
        batch, rows = 1, batch * rows
    known = [d if isinstance(d, int) else None for d in (batch, rows, b.shape[-1], a.shape[-1])]
    shape = Shape(known[0], known[1], known[2], known[3], isinstance(right.defining_op, graph.Constant))
    for epilogue, last, bias in reversed(_epilogues(op)):
        kernel = choose(a.dtype, batched, transposed, epilogue, shape)
        if kernel is None:
            continue
        operands = [op.a, right, *([bias] if bias is not None else [])]
        apply = Apply(operands, kernel=kernel.name, digest=kernel.digest, location=op.location)
        Builder.before(last).insert(apply)
        last.replace_by((apply.results[0],))
        last.erase()
        return kernel.name
    return ""


def _product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def _epilogues(op: graph.Matmul) -> Sequence[tuple[str, Operation, Value | None]]:
    """The epilogues that follow a product: the name, the last operator, and the bias."""
    found: list[tuple[str, Operation, Value | None]] = [("", op, None)]
    added = _only_user(op)
    if not isinstance(added, graph.Add):
        return found
    bias = added.b if added.a is op.result else added.a
    columns = tensor_type(op.result).shape[-1]
    type_ = tensor_type(bias)
    if (
        type_.rank != 1
        or not prove_eq(type_.shape[0], columns)
        or tensor_type(added.result) != op.result.type
    ):
        return found
    return [*found, ("bias", added, bias)]


def _only_user(op: Operation) -> Operation | None:
    users = list(op.result.users)
    return users[0] if len(users) == 1 and users[0].parent is op.parent else None


__all__ = ["Choose", "Shape", "use_libraries"]
