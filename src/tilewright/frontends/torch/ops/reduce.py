"""Reductions, arg-reductions and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....dialects import graph as g
from ....dialects.graph.term import Term
from ....ir.core import Operation, Value
from ....ir.types import DType, boolean, i64
from ...unsupported import Unsupported
from ..gradient_rules import Rule, with_gradient
from ..importer import Node
from ..registry import importer
from .arithmetic import widened


def axes_of(x: Value, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return dimensions counted from the front; None or an empty list means all."""
    rank = x.type.rank
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    return tuple(sorted({d % max(rank, 1) for d in ([dim] if isinstance(dim, int) else dim)})) if rank else ()


def reduced(
    n: Node,
    kind: Callable[..., Operation],
    x: Value,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    **attributes: object,
) -> Value:
    """Return a reduction; a rank-0 tensor gets a dimension to reduce."""
    if not x.type.rank:
        return n.reshape(n.emit(kind(n.reshape(x, (1,)), axes=(0,), keepdims=False, **attributes)), ())
    return n.emit(kind(x, axes=axes_of(x, dim), keepdims=keepdim, **attributes))


OF_TRUTH: dict[type[g.GraphOp], type[g.GraphOp]] = {g.ReduceSum: g.ReduceAny, g.ReduceProd: g.ReduceAll}


def _sums(kind: type[g.GraphOp], *names: str) -> None:
    @importer(*names)
    def total(
        n: Node,
        x: Value,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: DType | None = None,
    ) -> Value:
        of_bools = OF_TRUTH.get(kind, kind) if n.result_dtype() is boolean else kind
        return reduced(n, of_bools, n.cast(x, n.result_dtype()), dim, keepdim)


_sums(g.ReduceSum, "aten.sum.default", "aten.sum.dim_IntList")
_sums(g.ReduceMean, "aten.mean.default", "aten.mean.dim")
_sums(g.ReduceProd, "aten.prod.default", "aten.prod.dim_int")


@importer("aten.amax.default", "aten.max.default")
def amax(n: Node, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    return reduced(n, g.ReduceMax, x, dim, keepdim)


@importer("aten.amin.default", "aten.min.default")
def amin(n: Node, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    return reduced(n, g.ReduceMin, x, dim, keepdim)


def _extreme(kind: type[g.GraphOp], where: type[g.GraphOp], name: str) -> None:
    @importer(name)
    def extreme(n: Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if not x.type.rank:
            return x, n.scalar(0, n.result_dtype(1))
        return reduced(n, kind, x, dim, keepdim), n.emit(where(x, axis=dim % x.type.rank, keepdims=keepdim))


_extreme(g.ReduceMax, g.Argmax, "aten.max.dim")
_extreme(g.ReduceMin, g.Argmin, "aten.min.dim")


def _arg(kind: type[g.GraphOp], name: str) -> None:
    @importer(name)
    def arg(n: Node, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None or not x.type.rank:
            return n.reshape(n.emit(kind(n.reshape(x, (x.type.size,)), axis=0)), n.result_shape())
        return n.emit(kind(x, axis=dim % x.type.rank, keepdims=keepdim))


_arg(g.Argmax, "aten.argmax.default")
_arg(g.Argmin, "aten.argmin.default")


def _logical(kind: type[g.GraphOp], name: str) -> None:
    @importer(f"aten.{name}.default", f"aten.{name}.dim", f"aten.{name}.dims")
    def logical(n: Node, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
        return n.cast(reduced(n, kind, n.cast(x, boolean), dim, keepdim), n.result_dtype())


_logical(g.ReduceAll, "all")
_logical(g.ReduceAny, "any")


@importer("aten.var.correction")
def var(
    n: Node,
    x: Value,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    return reduced(
        n, g.Variance, x, dim, keepdim, correction=1.0 if correction is None else float(correction)
    )


@importer("aten.std.correction")
def std(
    n: Node,
    x: Value,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    return n.cast(
        n.unary("sqrt", var(n, widened(n, x), dim, correction=correction, keepdim=keepdim)), x.type.dtype
    )


@importer("aten.var_mean.correction")
def var_mean(
    n: Node,
    x: Value,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    return var(n, x, dim, correction=correction, keepdim=keepdim), reduced(n, g.ReduceMean, x, dim, keepdim)


@importer("aten.logsumexp.default")
def logsumexp(n: Node, x: Value, dim: int | Sequence[int] | None, keepdim: bool = False) -> Value:
    return reduced(n, g.LogSumExp, n.cast(x, n.result_dtype()), dim, keepdim)


@importer("aten.linalg_vector_norm.default")
def vector_norm(
    n: Node,
    x: Value,
    order: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Value:
    return n.cast(_norm(n, widened(n, n.cast(x, n.result_dtype())), order, dim, keepdim), n.result_dtype())


def _norm(n: Node, x: Value, order: float, dim: int | Sequence[int] | None, keepdim: bool) -> Value:
    size = x.type.dtype
    if order == 2:
        root = n.unary("sqrt", reduced(n, g.ReduceSum, n.binary("mul", x, x), dim, keepdim))
        return with_gradient(n, x, root, _rule_of_norm(x, order, dim, keepdim))
    magnitude = n.unary("abs", x)
    if math.isinf(order):
        return reduced(n, g.ReduceMax if order > 0 else g.ReduceMin, magnitude, dim, keepdim)
    if order == 1:
        return reduced(n, g.ReduceSum, magnitude, dim, keepdim)
    if order == 0:
        counted = n.cast(n.binary("ne", x, n.constant(0, size)), size)
        return reduced(n, g.ReduceSum, counted, dim, keepdim)
    total = reduced(n, g.ReduceSum, n.binary("pow", magnitude, n.constant(order, size)), dim, keepdim)
    root = n.binary("pow", total, n.constant(1.0 / order, size))
    return with_gradient(n, x, root, _rule_of_norm(x, order, dim, keepdim))


def _rule_of_norm(x: Value, order: float, dim: int | Sequence[int] | None, keepdim: bool) -> Rule:
    """The gradient ``sign(x) (|x| / norm)^(order - 1)``, which is 0 where the norm or the element is 0."""
    axes = () if keepdim else axes_of(x, dim)

    def rule(x: Term, y: Term, dy: Term) -> Term:
        y, dy = y.unsqueeze(*axes), dy.unsqueeze(*axes)
        none = y.equals(0)
        outer = dy * none.select(0, none.select(1, y) ** (1.0 - order))
        if order == 2:
            return outer * x
        zero = x.equals(0)
        return outer * zero.select(0, zero.select(1, x.abs()) ** (order - 1.0)) * x.unary("sign")

    return rule


@importer("aten.cumsum.default")
def cumsum(n: Node, x: Value, dim: int, *, dtype: DType | None = None) -> Value:
    x = n.cast(x, n.result_dtype())
    return n.emit(g.Cumsum(x, axis=dim % x.type.rank)) if x.type.rank else x


@importer("aten.cumprod.default")
def cumprod(n: Node, x: Value, dim: int, *, dtype: DType | None = None) -> Value:
    x = n.cast(x, n.result_dtype())
    return n.emit(g.Cumprod(x, axis=dim % x.type.rank)) if x.type.rank else x


@importer("aten.diff.default")
def diff(
    n: Node,
    x: Value,
    order: int = 1,
    dim: int = -1,
    prepend: Value | None = None,
    append: Value | None = None,
) -> Value:
    from .shape import sliced

    axis = dim % x.type.rank
    parts = [v for v in (prepend, x, append) if v is not None] if order else [x]
    if len(parts) > 1:
        x = n.emit(g.Concat([n.cast(v, x.type.dtype) for v in parts], axis=axis))
    for _ in range(order):
        if x.type.shape[axis] == 0:
            break
        length = x.type.shape[axis] - 1
        later, earlier = sliced(n, x, axis, 1, length), sliced(n, x, axis, 0, length)
        x = n.binary("xor" if x.type.dtype is boolean else "sub", later, earlier)
    return x


@importer("aten.softmax.int", "aten._softmax.default")
def softmax(n: Node, x: Value, dim: int, _: object = None) -> Value:
    return _normalized(n, g.Softmax, x, dim)


@importer("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(n: Node, x: Value, dim: int, _: object = None) -> Value:
    return _normalized(n, g.LogSoftmax, x, dim)


def _normalized(n: Node, kind: type[g.GraphOp], x: Value, dim: int) -> Value:
    x = n.cast(x, n.result_dtype())
    if not x.type.rank:
        return n.reshape(n.emit(kind(n.reshape(x, (1,)), axis=0)), ())
    return n.emit(kind(x, axis=dim % x.type.rank))


@importer("aten._safe_softmax.default")
def safe_softmax(n: Node, x: Value, dim: int, dtype: DType | None = None) -> Value:
    """Import softmax that gives zeros for rows of -inf alone."""
    x = n.cast(x, n.result_dtype())
    axis = dim % x.type.rank
    zero = n.constant(0, x.type.dtype)
    hidden = n.binary("eq", x, n.constant(-math.inf, x.type.dtype))
    empty = n.emit(g.ReduceAll(hidden, axes=(axis,), keepdims=True))
    y = n.emit(g.Select(empty, zero, n.emit(g.Softmax(x, axis=axis))))

    def rule(x: Term, y: Term, dy: Term) -> Term:
        y, dy = y.wide(), dy.wide()
        return (y * (dy - (y * dy).sum(axis, True))).cast(x.dtype)

    return with_gradient(n, x, y, rule)


@importer("aten._cdist_forward.default", "aten.cdist.default")
def cdist(n: Node, a: Value, b: Value, order: float = 2.0, _: object = None) -> Value:
    """Return the norm of the difference of each row of `a` and each of `b`."""
    *lead, rows, width = a.type.shape
    *others, columns, _width = b.type.shape
    difference = n.binary(
        "sub", n.reshape(a, (*lead, rows, 1, width)), n.reshape(b, (*others, 1, columns, width))
    )
    return vector_norm(n, difference, order, -1)


@importer("aten._pdist_forward.default")
def pdist(n: Node, x: Value, order: float = 2.0) -> Value:
    """Return the norms of the differences of all pairs of rows."""
    import numpy as np

    rows = x.type.shape[0]
    if not isinstance(rows, int):
        raise Unsupported("distances between a dynamic number of rows; use cdist")
    a, b = (n.emit(g.Gather(x, n.constant(i, i64), axis=0)) for i in np.triu_indices(rows, 1))
    return vector_norm(n, n.binary("sub", a, b), order, -1)
