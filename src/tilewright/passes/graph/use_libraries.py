"""Puts calls of vendors' libraries in the place of products of matrices and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...dialects import graph
from ...dialects.graph.base import tensor_type
from ...dialects.kernels import Apply, KernelDefinition
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.core import Module, Operation, Value
from ...ir.symbolic import Dim, bounds, prove_eq
from .fold_constants import fold_constants
from .library_forms import Convolution, Form, Product, Shape, known
from .match import reshape, transpose

Choose = Callable[[Form, Shape], KernelDefinition | None]
"""The kernel for a form of this shape; None: the compiler computes it."""


def use_libraries(module: Module, choose: Choose) -> dict[str, int]:
    """Replace operators by the kernels that `choose` returns; return the number of each kernel's by name."""
    counts: dict[str, int] = {}
    for op in list(module.walk()):
        name = ""
        if isinstance(op, graph.Matmul) and op.dtype is None:
            name = _replace_product(op, choose)
        elif isinstance(op, graph.Conv) and op.dtype is None:
            name = _replace_convolution(op, choose)
        if name:
            counts[name] = counts.get(name, 0) + 1
    if counts:
        fold_constants(module)  # weights whose dimensions the library has in another order
    dce(module)
    return counts


def _replace_product(op: graph.Matmul, choose: Choose) -> str:
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
    shape = Shape(known((batch, rows, b.shape[-1], a.shape[-1])), _is_constant(right))
    for epilogue, last, bias in reversed(_epilogues(op)):
        kernel = choose(Product(a.dtype, batched, transposed, epilogue), shape)
        if kernel is None:
            continue
        operands = [op.a, right, *([bias] if bias is not None else [])]
        last.replace_by((_applied(Builder.before(last), kernel, operands, op),))
        last.erase()
        return kernel.name
    return ""


def _replace_convolution(op: graph.Conv, choose: Choose) -> str:
    x, w = tensor_type(op.x), tensor_type(op.w)
    padding = tuple(low for low, high in op.padding if low == high)
    if len(padding) < len(op.padding) or min(padding) < 0 or (bounds(w.shape[1])[0] or 0) < 1:
        return ""
    last = op.layout == "channels_last"
    kernel_size = tuple(k for k in w.shape[2:] if isinstance(k, int))
    dilations = tuple(op.dilations) or (1,) * len(kernel_size)
    form = Convolution(x.dtype, kernel_size, tuple(op.strides), padding, dilations, op.groups, last)
    spatial = x.shape[1:-1] if last else x.shape[2:]
    channels = x.shape[-1] if last else x.shape[1]
    kernel = choose(form, Shape(known((x.shape[0], *spatial, channels, w.shape[0])), _is_constant(op.w)))
    if kernel is None:
        return ""
    b = Builder.before(op)
    weight = transpose(b, op.w, (0, *range(2, w.rank), 1)) if last else op.w
    y = _applied(b, kernel, [op.x, weight], op)
    if op.bias is not None:
        bias = op.bias if last else reshape(b, op.bias, (w.shape[0], *(1 for _ in kernel_size)))
        y = b(graph.Add(y, bias, location=op.location))
    op.replace_by((y,))
    op.erase()
    return kernel.name


def _applied(b: Builder, kernel: KernelDefinition, operands: Sequence[Value], op: Operation) -> Value:
    """The first result of `kernel`, in the place of `op`."""
    apply = Apply(operands, kernel=kernel.name, digest=kernel.digest, location=op.location)
    b.insert(apply)
    return apply.results[0]


def _is_constant(value: Value) -> bool:
    return isinstance(value.defining_op, graph.Constant)


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


__all__ = ["Choose", "use_libraries"]
