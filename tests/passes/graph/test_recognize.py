"""Operators that exporters write out are recognized as one operator again, and near misses are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import graph as g
from tilewright.ir.types import boolean, f16, f32
from tilewright.passes.graph.fold_constants import fold_constants
from tilewright.passes.graph.recognize import recognize
from tilewright.passes.graph.simplify import simplify

from .graphs import BATCH, SEQ, build, literal, operators, run, weight

X: dict[str, Any] = {"x": (BATCH, SEQ, 8)}


def recognized(inputs: dict[str, Any], body: Callable[..., Any]) -> str:
    module = build(inputs, body)
    found = run(module, fold_constants, simplify, recognize, simplify)
    return " ".join(sorted(found.elements()))


def n(b: Any, value: float) -> Any:
    return literal(b, value)


def mul(b: Any, *xs: Any) -> Any:
    y = xs[0]
    for x in xs[1:]:
        y = b(g.Mul(y, x))
    return y


def add(b: Any, x: Any, y: Any) -> Any:
    return b(g.Add(x, y))


def one_plus_erf(b: Any, x: Any) -> Any:
    return add(b, b(g.Erf(b(g.Div(x, n(b, math.sqrt(2)))))), n(b, 1))


def one_plus_tanh(b: Any, x: Any, cube: Any) -> Any:
    inner = mul(b, add(b, x, mul(b, cube, n(b, 0.044715))), n(b, math.sqrt(2 / math.pi)))
    return add(b, n(b, 1), b(g.Tanh(inner)))


GELU: dict[str, Callable[..., Any]] = {
    "x (0.5 (1 + erf))": lambda b, x: mul(b, x, mul(b, n(b, 0.5), one_plus_erf(b, x))),
    "(x (1 + erf)) 0.5": lambda b, x: mul(b, mul(b, x, one_plus_erf(b, x)), n(b, 0.5)),
    "(0.5 x) (1 + erf)": lambda b, x: mul(b, mul(b, n(b, 0.5), x), one_plus_erf(b, x)),
    "x (1 + erf) / 2": lambda b, x: b(g.Div(mul(b, x, one_plus_erf(b, x)), n(b, 2))),
    "erf(x * 0.7071)": lambda b, x: mul(
        b, mul(b, x, n(b, 0.5)), add(b, b(g.Erf(mul(b, x, n(b, math.sqrt(0.5))))), n(b, 1))
    ),
}
GELU_TANH: dict[str, Callable[..., Any]] = {
    "pow": lambda b, x: mul(b, mul(b, n(b, 0.5), x), one_plus_tanh(b, x, b(g.Pow(x, n(b, 3))))),
    "x x x": lambda b, x: mul(b, x, mul(b, n(b, 0.5), one_plus_tanh(b, x, mul(b, x, x, x)))),
    "x (x x)": lambda b, x: mul(b, mul(b, x, one_plus_tanh(b, x, mul(b, x, mul(b, x, x)))), n(b, 0.5)),
    "factored": lambda b, x: mul(
        b,
        mul(b, n(b, 0.5), x),
        add(
            b,
            n(b, 1),
            b(
                g.Tanh(
                    mul(
                        b,
                        mul(b, x, n(b, math.sqrt(2 / math.pi))),
                        add(b, n(b, 1), mul(b, n(b, 0.044715), mul(b, x, x))),
                    )
                )
            ),
        ),
    ),
}
NOT_GELU: dict[str, Callable[..., Any]] = {
    "another factor": lambda b, x: mul(b, x, mul(b, n(b, 0.4), one_plus_erf(b, x))),
    "another argument": lambda b, x: mul(b, x, mul(b, n(b, 0.5), add(b, b(g.Erf(x)), n(b, 1)))),
    "another x": lambda b, x: mul(b, b(g.Neg(x)), mul(b, n(b, 0.5), one_plus_erf(b, x))),
    "another cube": lambda b, x: mul(b, mul(b, n(b, 0.5), x), one_plus_tanh(b, x, b(g.Pow(x, n(b, 2))))),
}


@pytest.mark.parametrize("body", GELU.values(), ids=GELU)
def test_gelu(body: Callable[..., Any]) -> None:
    assert recognized(X, body) == "Gelu"


@pytest.mark.parametrize("body", GELU_TANH.values(), ids=GELU_TANH)
def test_gelu_tanh(body: Callable[..., Any]) -> None:
    module = build(X, body)
    run(module, simplify, recognize)
    (op,) = [op for op in module.walk() if isinstance(op, g.Gelu)]
    assert op.approximate == "tanh"
    assert operators(module) == {"Gelu": 1}


@pytest.mark.parametrize("body", NOT_GELU.values(), ids=NOT_GELU)
def test_not_gelu(body: Callable[..., Any]) -> None:
    assert "Gelu" not in recognized(X, body)


def test_silu_mish_and_gated_gelu() -> None:
    assert recognized(X, lambda b, x: mul(b, x, b(g.Sigmoid(x)))) == "Silu"
    assert recognized(X, lambda b, x: mul(b, b(g.Tanh(b(g.Softplus(x)))), x)) == "Mish"
    assert recognized({**X, "y": X["x"]}, lambda b, x, y: mul(b, y, b(g.Sigmoid(x)))) == "Mul Sigmoid"
    gated = recognized(
        {**X, "y": X["x"]}, lambda b, x, y: mul(b, mul(b, x, mul(b, n(b, 0.5), one_plus_erf(b, x))), y)
    )
    assert gated == "Gelu Mul"


# -- Normalizations ------------------------------------------------------------------------------------------


def mean(b: Any, x: Any, *axes: int) -> Any:
    return b(g.ReduceMean(x, axes=axes or (-1,), keepdims=True))


def centered(b: Any, x: Any) -> Any:
    return b(g.Sub(x, mean(b, x)))


def affine(b: Any, y: Any) -> Any:
    return add(b, mul(b, y, weight(b, 8)), weight(b, 8, seed=1))


def torchscript_layer_norm(b: Any, x: Any) -> Any:
    d = centered(b, x)
    variance = mean(b, b(g.Pow(d, n(b, 2))))
    return affine(b, b(g.Div(d, b(g.Sqrt(add(b, variance, n(b, 1e-5)))))))


def layer_norm_by_rsqrt(b: Any, x: Any) -> Any:
    d = centered(b, x)
    return affine(b, mul(b, d, b(g.Rsqrt(add(b, mean(b, mul(b, d, d)), n(b, 1e-5))))))


def layer_norm_by_variance(b: Any, x: Any) -> Any:
    variance = b(g.Variance(x, axes=(2,), keepdims=True))
    return affine(b, mul(b, centered(b, x), b(g.Rsqrt(add(b, variance, n(b, 1e-5))))))


def layer_norm_by_pow(b: Any, x: Any) -> Any:
    d = centered(b, x)
    return affine(b, mul(b, d, b(g.Pow(add(b, mean(b, mul(b, d, d)), n(b, 1e-5)), n(b, -0.5)))))


@pytest.mark.parametrize(
    "body", [torchscript_layer_norm, layer_norm_by_rsqrt, layer_norm_by_variance, layer_norm_by_pow]
)
def test_layer_norm(body: Callable[..., Any]) -> None:
    module = build(X, body)
    assert run(module, simplify, recognize) == {"LayerNorm": 1}
    (op,) = [op for op in module.walk() if isinstance(op, g.LayerNorm)]
    assert op.scale is not None and op.bias is not None and op.epsilon == pytest.approx(1e-5)


def test_standardizing_along_another_axis_stays() -> None:
    def body(b: Any, x: Any) -> Any:
        d = b(g.Sub(x, mean(b, x, 1)))
        return b(g.Div(d, b(g.Sqrt(add(b, mean(b, mul(b, d, d), 1), n(b, 1e-5))))))

    assert "LayerNorm" not in recognized(X, body)


RMS: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda b, x: mul(
        b, weight(b, 8), mul(b, x, b(g.Rsqrt(add(b, mean(b, b(g.Pow(x, n(b, 2)))), n(b, 1e-6)))))
    ),
    "reciprocal": lambda b, x: mul(
        b, mul(b, x, b(g.Reciprocal(b(g.Sqrt(add(b, n(b, 1e-6), mean(b, mul(b, x, x)))))))), weight(b, 8)
    ),
    "div": lambda b, x: mul(
        b, b(g.Div(x, b(g.Sqrt(add(b, mean(b, mul(b, x, x)), n(b, 1e-6)))))), weight(b, 8)
    ),
    "one divided by the root": lambda b, x: mul(
        b, mul(b, x, b(g.Div(n(b, 1), b(g.Sqrt(add(b, mean(b, mul(b, x, x)), n(b, 1e-6))))))), weight(b, 8)
    ),
}


@pytest.mark.parametrize("body", RMS.values(), ids=RMS)
def test_rms_norm(body: Callable[..., Any]) -> None:
    assert recognized(X, body) == "RmsNorm"


def test_rms_norm_in_float32_of_float16() -> None:
    def body(b: Any, x: Any) -> Any:
        wide = b(g.Cast(x, dtype=f32))
        y = mul(b, wide, b(g.Rsqrt(add(b, mean(b, mul(b, wide, wide)), n(b, 1e-6)))))
        return b(g.Cast(y, dtype=f16))

    module = build({"x": ((BATCH, 8), f16)}, body)
    assert run(module, simplify, recognize, rtol=2e-3, atol=2e-3) == {"RmsNorm": 1}


# -- Rotary embedding and attention --------------------------------------------------------------------------


def half(b: Any, x: Any, first: bool) -> Any:
    shape = x.type.shape
    size = shape[-1] // 2
    start, stop = (0, size) if first else (size, size * 2)
    return b(
        g.Slice(
            x, starts=(*[0] * (len(shape) - 1), start), stops=(*shape[:-1], stop), steps=(1,) * len(shape)
        )
    )


def test_rotary() -> None:
    def body(b: Any, x: Any, cos: Any, sin: Any) -> Any:
        turned = b(g.Concat([b(g.Neg(half(b, x, False))), half(b, x, True)], axis=-1))
        return add(b, mul(b, x, cos), mul(b, turned, sin))

    def swapped(b: Any, x: Any, cos: Any, sin: Any) -> Any:
        turned = b(g.Concat([half(b, x, False), b(g.Neg(half(b, x, True)))], axis=-1))
        return add(b, mul(b, x, cos), mul(b, turned, sin))

    inputs = {"x": (BATCH, 2, SEQ, 8), "cos": (1, 1, SEQ, 8), "sin": (1, 1, SEQ, 8)}
    assert recognized(inputs, body) == "Rotary"
    assert "Rotary" not in recognized(inputs, swapped)


QKV: dict[str, Any] = dict.fromkeys("qkv", (BATCH, 2, SEQ, 8))


def keys(b: Any, k: Any) -> Any:
    return b(g.Transpose(k, permutation=(0, 1, 3, 2)))


def attention(
    b: Any, q: Any, k: Any, v: Any, scale: str = "scores", mask: Any = None, guard: bool = False
) -> Any:
    kt = keys(b, k)
    if scale == "both":
        q, kt = mul(b, q, n(b, 8**-0.25)), mul(b, kt, n(b, 8**-0.25))
    elif scale == "q":
        q = b(g.Div(q, n(b, math.sqrt(8))))
    scores = b(g.Matmul(q, kt))
    if scale == "scores":
        scores = b(g.Div(scores, n(b, math.sqrt(8))))
    if mask is not None:
        scores = add(b, scores, mask)
    w = b(g.Softmax(scores, axis=-1))
    if guard:
        w = b(g.Select(b(g.Isnan(w)), n(b, 0), w))
    return b(g.Matmul(w, v))


def the_attention(inputs: dict[str, Any], body: Callable[..., Any]) -> Any:
    """Return the only attention operator of the recognized module."""
    module = build(inputs, body)
    run(module, fold_constants, simplify, recognize, simplify)
    (op,) = [op for op in module.walk() if isinstance(op, g.Attention)]
    assert operators(module)["Softmax"] == operators(module)["Matmul"] == 0
    return op


@pytest.mark.parametrize("scale", ["scores", "q", "both", "none"])
@pytest.mark.parametrize("guard", [False, True])
def test_attention_scales(scale: str, guard: bool) -> None:
    op = the_attention(QKV, lambda b, q, k, v: attention(b, q, k, v, scale, guard=guard))
    assert op.scale == pytest.approx(1 if scale == "none" else 8**-0.5)
    assert op.mask is None and not op.causal


def test_attention_masks() -> None:
    inputs = {**QKV, "keep": ((BATCH, SEQ), boolean), "bias": (1, 2, SEQ, SEQ)}

    def mask(b: Any, keep: Any, low: float) -> Any:
        return b(g.Select(b(g.Reshape(keep, shape=(BATCH, 1, 1, SEQ))), n(b, 0), n(b, low)))

    def padding(b: Any, q: Any, k: Any, v: Any, keep: Any, bias: Any) -> Any:
        return attention(b, q, k, v, mask=mask(b, keep, -3e38))

    def positions(b: Any, q: Any, k: Any, v: Any, keep: Any, bias: Any) -> Any:
        scores = add(b, add(b, b(g.Matmul(q, keys(b, k))), bias), mask(b, keep, -3e38))
        return b(g.Matmul(b(g.Softmax(scores)), v))

    def infinite(b: Any, q: Any, k: Any, v: Any, keep: Any, bias: Any) -> Any:
        return attention(b, q, k, v, mask=mask(b, keep, -np.inf), guard=True)

    assert the_attention(inputs, padding).mask.type.dtype is f32
    assert the_attention(inputs, positions).mask.type.shape == (BATCH, 2, SEQ, SEQ)
    assert the_attention(inputs, infinite).mask.type.dtype is boolean


def causal(b: Any, rows: Any, columns: Any) -> Any:
    row = b(g.Reshape(b(g.Iota(shape=(rows,))), shape=(rows, 1)))
    column = b(g.Reshape(b(g.Iota(shape=(columns,))), shape=(1, 1, 1, columns)))
    return b(g.Le(column, row))


@pytest.mark.parametrize("length", [SEQ, 6])
@pytest.mark.parametrize("low", [-3.4e38, -np.inf])
def test_causal_attention(length: Any, low: float) -> None:
    inputs = dict.fromkeys("qkv", (BATCH, 2, length, 8))

    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        return attention(
            b, q, k, v, mask=b(g.Select(causal(b, length, length), n(b, 0), n(b, low))), guard=True
        )

    op = the_attention(inputs, body)
    assert op.causal and op.mask is None


def test_a_strictly_lower_mask_is_not_causal() -> None:
    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        hidden = b(g.Select(b(g.Lt(causal_count(b, 3), causal_count(b, 2))), n(b, 0), n(b, -np.inf)))
        return attention(b, q, k, v, mask=hidden, guard=True)

    def causal_count(b: Any, axis: int) -> Any:
        shape = [1, 1, 1, 1]
        shape[axis] = SEQ  # type: ignore[call-overload]
        return b(g.Iota(shape=tuple(shape), axis=axis))

    assert not the_attention(QKV, body).causal


def test_causal_and_padding_in_one_boolean_mask() -> None:
    inputs = {**QKV, "keep": ((BATCH, 1, 1, SEQ), boolean)}

    def body(b: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
        return b(g.Attention(q, k, v, b(g.And(keep, causal(b, SEQ, SEQ)))))

    op = the_attention(inputs, body)
    assert op.causal and op.mask.type.shape == (BATCH, 1, 1, SEQ)


def test_grouped_queries() -> None:
    inputs = {"q": (BATCH, 4, SEQ, 8), "k": (BATCH, 2, SEQ, 8), "v": (BATCH, 2, SEQ, 8)}

    def repeated(b: Any, x: Any) -> Any:
        wide = b(g.BroadcastTo(b(g.Reshape(x, shape=(BATCH, 2, 1, SEQ, 8))), shape=(BATCH, 2, 2, SEQ, 8)))
        return b(g.Reshape(wide, shape=(BATCH, 4, SEQ, 8)))

    op = the_attention(inputs, lambda b, q, k, v: attention(b, q, repeated(b, k), repeated(b, v)))
    assert op.k.type.shape == op.v.type.shape == (BATCH, 2, SEQ, 8)


def test_attention_over_merged_heads() -> None:
    inputs = dict.fromkeys("qkv", (BATCH * 2, SEQ, 8))

    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        scores = b(g.Matmul(q, b(g.Transpose(k, permutation=(0, 2, 1)))))
        return b(g.Matmul(b(g.Softmax(scores)), v))

    module = build({"b": (BATCH,), **inputs}, lambda b, _, *v: body(b, *v))
    assert run(module, simplify, recognize)["Attention"] == 1


def test_weights_that_others_read_stay() -> None:
    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        w = b(g.Softmax(b(g.Matmul(q, keys(b, k)))))
        return [b(g.Matmul(w, v)), w]

    assert "Attention" not in recognized(QKV, body)


def test_a_scale_behind_the_mask_is_the_mask_s_too() -> None:
    inputs = {**QKV, "mask": (BATCH, 1, 1, SEQ)}

    def body(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = mul(b, add(b, b(g.Matmul(q, keys(b, k))), mask), n(b, 2))
        return b(g.Matmul(b(g.Softmax(scores)), v))

    assert recognized(inputs, body) == "Attention Mul"
