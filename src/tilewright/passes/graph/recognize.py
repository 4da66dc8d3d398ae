"""Recognizes operators that exporters write out: activations, normalizations, rotary embeddings and
attention.

The forms are those of torch.onnx (both exporters), of ATen decompositions and of common hand-written ONNX
graphs. Run after `simplify`, which moves constants to the right and removes double movements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...dialects import graph
from ...dialects.graph.base import normalize_axis, tensor_type
from ...dialects.graph.elementwise import same_shape
from ...ir.core import Module, Value
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.symbolic import Dim, prove_eq
from .match import array_of, close, is_one, number, producer, rebuild, reshape
from .recognize_attention import ATTENTION_PATTERNS
from .simplify import PATTERNS as SIMPLIFY
from .simplify import materialize, sliced_axis


def recognize(module: Module) -> int:
    """Apply all recognizers until none applies.

    Returns the number of rewrites. A replacement may have to be simplified before another recognizer matches
    it, so simplification patterns run together with the recognizers.
    """
    total = 0
    while count := apply_patterns(module, [*PATTERNS, *SIMPLIFY], materialize=materialize):
        total += count
    return total


# -- Products --


def factors(value: Value, limit: int = 6) -> tuple[float, list[Value]]:
    """The number and the other factors of a product, through multiplications and divisions that are used only
    here.
    """
    scale = 1.0
    rest: list[Value] = []
    pending = [value]
    while pending:
        v = pending.pop()
        n = number(v)
        if n is not None and not isinstance(n, bool):
            scale *= n
            continue
        op = v.defining_op
        inner = v is value or v.has_one_use
        if inner and isinstance(op, graph.Mul) and len(pending) + len(rest) < limit:
            pending += [op.b, op.a]
        elif inner and isinstance(op, graph.Div) and (d := number(op.b)):
            scale /= d
            pending.append(op.a)
        else:
            rest.append(v)
    return scale, rest


def _plus_number(value: Value) -> tuple[Value, float] | None:
    """``x`` and ``c`` of ``x + c``."""
    op = producer(value, graph.Add)
    if op is None:
        return None
    for x, c in ((op.a, op.b), (op.b, op.a)):
        n = number(c)
        if n is not None:
            return x, n
    return None


def _scaled(value: Value, x: Value) -> float | None:
    """``c`` when `value` is ``c * x``."""
    if value is x:
        return 1.0
    scale, rest = factors(value)
    return scale if len(rest) == 1 and rest[0] is x else None


def _same(value: Value, shape: Sequence[Dim]) -> bool:
    return same_shape(tensor_type(value).shape, shape)


# -- Activations --


def _cube(value: Value, x: Value) -> bool:
    """Whether `value` is ``x ** 3``."""
    power = producer(value, graph.Pow)
    if power is not None:
        return power.a is x and number(power.b) == 3
    product = producer(value, graph.Mul)
    if product is None:
        return False
    return any(a is x and _square(c, x) for a, c in ((product.a, product.b), (product.b, product.a)))


def _square(value: Value, x: Value) -> bool:
    """Whether `value` is ``x ** 2``."""
    power = producer(value, graph.Pow)
    if power is not None:
        return power.a is x and number(power.b) == 2
    product = producer(value, graph.Mul)
    return product is not None and product.a is x and product.b is x


def _tanh_argument(value: Value, x: Value) -> bool:
    """Whether `value` is ``sqrt(2 / pi) * (x + 0.044715 x^3)``, in any of its usual factorizations."""
    scale, rest = factors(value)
    outer = math.sqrt(2 / math.pi)
    if not close(scale, outer):
        return False
    if len(rest) == 1:  # x + 0.044715 * x^3
        add = producer(rest[0], graph.Add)
        if add is None:
            return False
        for a, c in ((add.a, add.b), (add.b, add.a)):
            if a is x:
                inner, parts = factors(c)
                if close(inner, 0.044715) and (
                    (len(parts) == 1 and _cube(parts[0], x))
                    or (len(parts) == 2 and any(p is x and _square(q, x) for p, q in (parts, parts[::-1])))
                    or (len(parts) == 3 and all(p is x for p in parts))
                ):
                    return True
        return False
    if len(rest) == 2:  # x * (1 + 0.044715 * x^2)
        for a, c in (rest, rest[::-1]):
            plus = _plus_number(c) if a is x else None
            if plus is not None and plus[1] == 1:
                inner, parts = factors(plus[0])
                if close(inner, 0.044715) and (
                    (len(parts) == 1 and _square(parts[0], x))
                    or (len(parts) == 2 and all(p is x for p in parts))
                ):
                    return True
    return False


@pattern(graph.Mul, graph.Div)
def activation_product(op: graph.Mul | graph.Div, rewriter: Rewriter) -> bool:
    """``0.5 x (1 + erf(x / sqrt 2))`` -> gelu, also with tanh; ``x sigmoid(x)`` -> silu; ``x
    tanh(softplus(x))`` -> mish.
    """
    shape = op.result.type.shape
    scale, rest = factors(op.result)
    if len(rest) != 2:
        return False
    b = rewriter.builder
    for x, f in (rest, rest[::-1]):
        if not _same(x, shape):
            continue
        source = f.defining_op
        activation: Any = None
        if isinstance(source, graph.Sigmoid) and scale == 1 and source.x is x:
            activation = graph.Silu(x)
        elif (
            isinstance(source, graph.Tanh) and scale == 1 and isinstance(source.x.defining_op, graph.Softplus)
        ):
            inner = source.x.defining_op
            if inner.x is x and inner.beta == 1 and inner.threshold >= 20:
                activation = graph.Mish(x)
        elif close(scale, 0.5) and (plus := _plus_number(f)) is not None and plus[1] == 1:
            inner = plus[0].defining_op
            if isinstance(inner, graph.Erf) and close(_scaled(inner.x, x), math.sqrt(0.5)):
                activation = graph.Gelu(x)
            elif isinstance(inner, graph.Tanh) and _tanh_argument(inner.x, x):
                activation = graph.Gelu(x, approximate="tanh")
        if activation is not None:
            rewriter.replace(op, b(activation))
            return True
    return False


# -- Normalizations --


def _reciprocal_root(value: Value) -> tuple[Value, float] | None:
    """``v`` and ``epsilon`` of ``1 / sqrt(v + epsilon)``."""
    op = value.defining_op
    inner: Value | None = None
    if isinstance(op, graph.Rsqrt):
        inner = op.x
    elif isinstance(op, graph.Reciprocal) and isinstance(op.x.defining_op, graph.Sqrt):
        inner = op.x.defining_op.x
    elif isinstance(op, graph.Div) and number(op.a) == 1 and isinstance(op.b.defining_op, graph.Sqrt):
        inner = op.b.defining_op.x
    elif isinstance(op, graph.Pow) and number(op.b) == -0.5:
        inner = op.a
    return _plus_epsilon(inner) if inner is not None else None


def _plus_epsilon(value: Value) -> tuple[Value, float] | None:
    plus = _plus_number(value)
    return plus if plus is not None and 0 < plus[1] < 0.1 else None


def _normalized(op: graph.Div | graph.Mul) -> tuple[Value, Value, float] | None:
    """``x``, ``v`` and epsilon of ``x / sqrt(v + epsilon)``, in any of its forms."""
    if isinstance(op, graph.Div):
        root = producer(op.b, graph.Sqrt)
        parts = _plus_epsilon(root.x) if root is not None else None
        return None if parts is None else (op.a, *parts)
    for x, f in ((op.a, op.b), (op.b, op.a)):
        parts = _reciprocal_root(f)
        if parts is not None:
            return (x, *parts)
    return None


def _mean(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """``x`` and the axes of a mean that keeps its dimensions."""
    op: Any = producer(value, graph.ReduceMean)
    if op is not None and op.keepdims:
        return op.x, op.normalized
    # A sum over a dimension divided by its size.
    quotient = value.defining_op
    if isinstance(quotient, (graph.Div, graph.Mul)):
        total: Any = producer(quotient.a, graph.ReduceSum)
        n = number(quotient.b)
        if total is not None and total.keepdims and n:
            size: Any = 1
            for a in total.normalized:
                size = size * tensor_type(total.x).shape[a]
            if isinstance(size, int) and close(n if isinstance(quotient, graph.Div) else 1 / n, size):
                return total.x, total.normalized
    return None


def _trailing(axes: tuple[int, ...], rank: int) -> bool:
    return bool(axes) and axes == tuple(range(rank - len(axes), rank))


@pattern(graph.Div, graph.Mul)
def normalization(op: graph.Div | graph.Mul, rewriter: Rewriter) -> bool:
    """``(x - mean(x)) / sqrt(var(x) + eps)`` -> layer norm; ``x / sqrt(mean(x^2) + eps)`` -> RMS norm.

    Neither has a scale or a bias yet.
    """
    parts = _normalized(op)
    if parts is None or not op.result.type.dtype.is_float:
        return False
    x, v, epsilon = parts
    rank = op.result.type.rank
    if not _same(x, op.result.type.shape):
        return False
    b = rewriter.builder
    variance: Any = producer(v, graph.Variance)
    centered = producer(x, graph.Sub)
    if centered is not None and (mean := _mean(centered.b)) is not None and mean[0] is centered.a:
        source, axes = mean
        whole = (
            variance is not None
            and variance.x is source
            and variance.normalized == axes
            and variance.keepdims
        )
        moment = _mean(v)
        fits = (whole and variance.correction == 0) or (
            moment is not None and moment[1] == axes and _squared(moment[0], x)
        )
        if fits and _trailing(axes, rank):
            rewriter.replace(op, b(graph.LayerNorm(source, None, None, axes=axes, epsilon=epsilon)))
            return True
    moment = _mean(v)
    if moment is not None and _squared(moment[0], x) and _trailing(moment[1], rank):
        rewriter.replace(op, b(graph.RmsNorm(x, None, axes=moment[1], epsilon=epsilon)))
        return True
    return False


def _squared(value: Value, x: Value) -> bool:
    """Whether `value` is the square of `x`, or of a subtraction equal to `x`."""
    if _square(value, x):
        return True
    power, product = producer(value, graph.Pow), producer(value, graph.Mul)
    base = power.a if power is not None and number(power.b) == 2 else None
    if product is not None and product.a is product.b:
        base = product.a
    if base is None:
        return False
    a, c = producer(base, graph.Sub), producer(x, graph.Sub)
    if a is None or c is None or a.a is not c.a:
        return False
    first, second = _mean(a.b), _mean(c.b)
    return first is not None and first == second


def _row(value: Value, norm: graph.LayerNorm | graph.RmsNorm) -> Value | None:
    """`value` as a scale or bias of a normalization, if it has the shape of the normalized dimensions;
    otherwise None.
    """
    shape = tensor_type(norm.x).shape
    axes = [normalize_axis(a, len(shape)) for a in norm.axes]
    wanted = [shape[a] for a in axes]
    given = tensor_type(value).shape
    while len(given) > len(wanted) and is_one(given[0]):
        given = given[1:]
    return value if same_shape(given, wanted) else None


@pattern(graph.Mul)
def norm_scale(op: graph.Mul, rewriter: Rewriter) -> bool:
    """``norm(x) * w`` -> the normalization with scale."""
    for y, w in ((op.a, op.b), (op.b, op.a)):
        norm: Any = y.defining_op
        if not isinstance(norm, (graph.LayerNorm, graph.RmsNorm)) or not y.has_one_use:
            continue
        if norm.scale is not None or (isinstance(norm, graph.LayerNorm) and norm.bias is not None):
            continue
        if not _is_weight(w) or (row := _row(w, norm)) is None:
            continue
        b = rewriter.builder
        row = reshape(b, row, tensor_type(row).shape[-len(norm.axes) :])
        more = (None,) if isinstance(norm, graph.LayerNorm) else ()
        rewriter.replace(op, b(type(norm)(norm.x, row, *more, axes=norm.axes, epsilon=norm.epsilon)))
        return True
    return False


def _is_weight(value: Value) -> bool:
    """Whether a value is a constant or a movement of an argument, and so does not depend on the
    normalization.
    """
    return array_of(value) is not None or value.defining_op is None


@pattern(graph.Add)
def norm_bias(op: graph.Add, rewriter: Rewriter) -> bool:
    """``layer_norm(x) + b`` -> the normalization with bias."""
    for y, w in ((op.a, op.b), (op.b, op.a)):
        norm: Any = producer(y, graph.LayerNorm)
        if norm is None or not y.has_one_use or norm.bias is not None:
            continue
        if not _is_weight(w) or (row := _row(w, norm)) is None:
            continue
        b = rewriter.builder
        row = reshape(b, row, tensor_type(row).shape[-len(norm.axes) :])
        rewriter.replace(
            op, b(graph.LayerNorm(norm.x, norm.scale, row, axes=norm.axes, epsilon=norm.epsilon))
        )
        return True
    return False


@pattern(graph.Cast)
def norm_in_float32(op: graph.Cast, rewriter: Rewriter) -> bool:
    """``cast16(norm(cast32(x)))`` without weights -> ``norm(x)``, which computes in float32 internally."""
    norm: Any = op.x.defining_op
    if (
        not isinstance(norm, (graph.RmsNorm, graph.LayerNorm))
        or not op.x.has_one_use
        or len(norm.operands) != 1
    ):
        return False
    wide = producer(norm.x, graph.Cast)
    if wide is None or tensor_type(wide.x).dtype is not op.dtype or op.dtype.bits != 16:
        return False
    rewriter.replace(op, rewriter.builder(rebuild(norm, [wide.x])))
    return True


# -- Rotary embedding --


def _half(value: Value, first: bool) -> Value | None:
    """``x`` if `value` is the first or second half of its last dimension; otherwise None."""
    op: Any = producer(value, graph.Slice)
    if op is None or sliced_axis(op) != op.x.type.rank - 1:
        return None
    n = tensor_type(op.x).shape[-1]
    if not isinstance(n, int) or n % 2:
        return None
    start, stop = (0, n // 2) if first else (n // 2, n)
    return op.x if prove_eq(op.starts[-1], start) and prove_eq(op.stops[-1], stop) else None


def _rotated(value: Value) -> Value | None:
    """``x`` of ``concat(-second half, first half)``; otherwise None."""
    op: Any = producer(value, graph.Concat)
    if op is None or len(op.inputs) != 2 or normalize_axis(op.axis, value.type.rank) != value.type.rank - 1:
        return None
    negative = producer(op.inputs[0], graph.Neg)
    if negative is None:
        return None
    x = _half(negative.x, first=False)
    return x if x is not None and _half(op.inputs[1], first=True) is x else None


@pattern(graph.Add)
def rotary(op: graph.Add, rewriter: Rewriter) -> bool:
    """``x * cos + rotated(x) * sin`` -> rotary."""
    left, right = producer(op.a, graph.Mul), producer(op.b, graph.Mul)
    if left is None or right is None:
        return False
    for plain, rotated in ((left, right), (right, left)):
        for t, sin in ((rotated.a, rotated.b), (rotated.b, rotated.a)):
            x = _rotated(t)
            if x is None or not _same(x, op.result.type.shape):
                continue
            for p, cos in ((plain.a, plain.b), (plain.b, plain.a)):
                if p is x:
                    rewriter.replace(op, rewriter.builder(graph.Rotary(x, cos, sin)))
                    return True
    return False


PATTERNS = [
    activation_product,
    normalization,
    norm_scale,
    norm_bias,
    norm_in_float32,
    rotary,
    *ATTENTION_PATTERNS,
]
