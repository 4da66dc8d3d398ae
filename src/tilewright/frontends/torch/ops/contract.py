"""Matrix products, einsum and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import graph as g
from ....ir.core import Value
from ...unsupported import Unsupported
from ..importer import Node, Number
from ..registry import importer
from .arithmetic import mul, widened


def _product(n: Node, a: Value, b: Value) -> Value:
    return n.emit(g.Matmul(a, b))


@importer("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def matmul(n: Node, a: Value, b: Value) -> Value:
    return _product(n, a, b)


@importer("aten.linear.default")
def linear(n: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.type.rank == 1:
        return _biased(n, _product(n, x, weight), bias)
    return _biased(n, _product(n, x, n.transpose(weight, (1, 0))), bias)


def _biased(n: Node, y: Value, bias: Value | None) -> Value:
    return y if bias is None else n.binary("add", y, bias)


def _scaled(n: Node, x: Value, factor: Number) -> Value:
    return x if factor == 1 else n.binary("mul", x, n.scalar(factor, x.type.dtype))


@importer("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def addmm(n: Node, bias: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    if bias.type.rank == 1 and (beta, alpha) == (
        1,
        1,
    ):  # A layer, whose product has its element type.
        return n.binary("add", _product(n, a, b), bias)
    bias, a, b = (widened(n, x) for x in (bias, a, b))
    return _sum(n, bias, _product(n, a, b), beta, alpha)


@importer("aten.addbmm.default")
def addbmm(n: Node, bias: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    bias, a, b = (widened(n, x) for x in (bias, a, b))
    return _sum(n, bias, n.emit(g.ReduceSum(_product(n, a, b), axes=(0,))), beta, alpha)


def _sum(n: Node, bias: Value, product: Value, beta: Number, alpha: Number) -> Value:
    y = _scaled(n, product, alpha)
    y = n.broadcast(y, n.result_shape()) if beta == 0 else n.binary("add", y, _scaled(n, bias, beta))
    return n.cast(y, n.result_dtype())


@importer("aten.outer.default")
def outer(n: Node, a: Value, b: Value) -> Value:
    return mul(n, n.reshape(a, (a.type.shape[0], 1)), b)


@importer("aten._trilinear.default")
def trilinear(
    n: Node,
    a: Value,
    b: Value,
    c: Value,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    summed: Sequence[int],
    *_: object,
) -> Value:
    """Return the product of three tensors, with unit dimensions inserted at the given places, summed over
    dimensions.
    """
    dtype = a.type.dtype
    factors = []
    for x, places in ((a, expand_a), (b, expand_b), (c, expand_c)):
        shape = list(x.type.shape)
        for place in sorted(places):
            shape.insert(place, 1)
        factors.append(n.reshape(widened(n, x), shape))
    product = n.binary("mul", n.binary("mul", factors[0], factors[1]), factors[2])
    return n.cast(n.emit(g.ReduceSum(product, axes=tuple(summed), keepdims=False)), dtype)


@importer("aten.einsum.default")
def einsum(n: Node, equation: str, operands: Sequence[Value], **_: object) -> Value:
    """Return an Einstein summation. More than two operands are contracted in pairs from the left. They may
    differ in type; a sum over one has the type of sums.
    """
    text = equation.replace(" ", "")
    operands = [n.cast(operand, n.result_dtype()) for operand in operands]
    if len(operands) <= 2:
        return n.emit(g.Einsum(list(operands), equation=text))
    left, arrow, output = text.partition("->")
    if not arrow or "..." in text:
        raise Unsupported("einsum of more than two operands with '...' or without '->'")
    terms = left.split(",")
    value, term = operands[0], terms[0]
    for k in range(1, len(operands)):
        later = set("".join(terms[k + 1 :]) + output)
        joined = "".join(dict.fromkeys(term + terms[k]))
        kept = output if k == len(operands) - 1 else "".join(c for c in joined if c in later)
        value = n.emit(g.Einsum([value, operands[k]], equation=f"{term},{terms[k]}->{kept}"))
        term = kept
    return value


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one number for each spatial dimension; in torch a single one holds for all."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * rank if len(values) == 1 else values)


def _batched(n: Node, x: Value, rank: int) -> tuple[Value, bool]:
    """Return `x` with a batch dimension, and whether it had none."""
    if x.type.rank == rank + 2:
        return x, False
    return n.reshape(x, (1, *x.type.shape)), True


def _conv(
    n: Node,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> Value:
    rank = w.type.rank - 2
    x, single = _batched(n, x, rank)
    strides, dilations = _each(stride, rank), _each(dilation, rank)
    if isinstance(padding, str):
        kernel = w.type.shape[2:]
        totals = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilations, strict=True)]
        pads = tuple((t // 2, t - t // 2) for t in totals)
    else:
        pads = tuple((p, p) for p in _each(padding, rank))
    y = n.emit(g.Conv(x, w, bias, strides=strides, padding=pads, dilations=dilations, groups=groups))
    return n.reshape(y, n.result_shape()) if single else y


@importer(
    "aten.conv1d.default",
    "aten.conv2d.default",
    "aten.conv3d.default",
    "aten.conv1d.padding",
    "aten.conv2d.padding",
    "aten.conv3d.padding",
)
def conv(
    n: Node,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    return _conv(n, x, w, bias, stride, padding, dilation, groups)


def _transposed(
    n: Node,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    output_padding: int | Sequence[int],
    groups: int,
    dilation: int | Sequence[int],
) -> Value:
    rank = w.type.rank - 2
    x, single = _batched(n, x, rank)
    y = n.emit(
        g.ConvTranspose(
            x,
            w,
            bias,
            strides=_each(stride, rank),
            padding=tuple((p, p) for p in _each(padding, rank)),
            output_padding=_each(output_padding, rank),
            dilations=_each(dilation, rank),
            groups=groups,
        )
    )
    return n.reshape(y, n.result_shape()) if single else y


@importer("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    n: Node,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Value:
    return _transposed(n, x, w, bias, stride, padding, output_padding, groups, dilation)


@importer("aten.convolution.default")
def convolution(
    n: Node,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    transposed: bool,
    output_padding: int | Sequence[int],
    groups: int,
) -> Value:
    if transposed:
        return _transposed(n, x, w, bias, stride, padding, output_padding, groups, dilation)
    return _conv(n, x, w, bias, stride, padding, dilation, groups)
