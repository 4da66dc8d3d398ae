"""Constant folding: which operators are folded, which are not, and that data is shared."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph as g
from tilewright.ir.constant import Constant
from tilewright.ir.types import f32
from tilewright.passes.graph.fold_constants import fold_constants

from .graphs import BATCH, SEQ, build, literal, outputs, run, weight


def array(value: Any) -> np.ndarray:
    found: np.ndarray = value.defining_op.value.array
    return found


def test_arithmetic_on_constants() -> None:
    module = build(
        {"x": (BATCH, 3)}, lambda b, x: b(g.Add(x, b(g.Exp(b(g.Mul(weight(b, 3), literal(b, 2.0)))))))
    )
    assert run(module, fold_constants) == {"Add": 1}


def test_weights_are_transposed_and_reshaped_without_a_copy() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)

    def body(b: Any, x: Any) -> Any:
        w = b(g.Constant(value=Constant(data, "fc.weight")))
        turned = b(g.Transpose(w, permutation=(1, 0)))
        return [b(g.Matmul(x, turned)), b(g.Reshape(w, shape=(12,)))]

    module = build({"x": (BATCH, 4)}, body)
    assert run(module, fold_constants) == {"Matmul": 1}
    product, flat = (v.defining_op for v in outputs(module))
    assert np.shares_memory(array(product.b), data)
    assert np.shares_memory(flat.value.array, data)
    assert product.b.defining_op.value.name == "fc.weight"


def test_several_results() -> None:
    module = build(
        {"x": (2,)},
        lambda b, x: list(b.insert(g.Topk(literal(b, np.array([3, 1, 2], np.float32)), k=2)).results),
    )
    assert run(module, fold_constants) == {}
    assert array(outputs(module)[1]).tolist() == [0, 2]


def test_without_elements_nothing_is_computed() -> None:
    module = build(
        {"x": (0, 3), "y": (BATCH, 0)},
        lambda b, x, y: [b(g.Exp(x)), b(g.Neg(y)), b(g.ReduceSum(x, axes=(0,)))],
    )
    assert run(module, fold_constants) == {"Reshape": 1, "ReduceSum": 1}
    assert array(outputs(module)[0]).shape == (0, 3)


def test_large_results_are_left() -> None:
    module = build({"x": (1,)}, lambda b, x: b(g.Add(weight(b, 1, 1000), weight(b, 1000, 1))))
    assert run(module, fold_constants) == {"Add": 1}
    module = build({"x": (1,)}, lambda b, x: b(g.Iota(shape=(1 << 20,))))
    assert run(module, fold_constants) == {"Iota": 1}


def test_a_broadcast_element_stays_one_element() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b(g.BroadcastTo(literal(b, 2.0), shape=(1000, 1000)))
        return b(g.Transpose(b(g.Reshape(y, shape=(10, 100, 1000))), permutation=(2, 0, 1)))

    module = build({"x": (1,)}, body)
    assert run(module, fold_constants) == {}
    (y,) = outputs(module)
    assert array(y).shape == (1000, 10, 100)
    assert not any(array(y).strides)
    assert y.defining_op.value.is_splat


def test_a_broadcast_row_is_not_multiplied_out() -> None:
    module = build({"x": (1,)}, lambda b, x: b(g.BroadcastTo(weight(b, 300), shape=(1000, 300))))
    assert run(module, fold_constants) == {"BroadcastTo": 1}


def test_symbols_are_not_constants() -> None:
    def body(b: Any, x: Any) -> Any:
        return [
            b(g.Slice(weight(b, 40, 2), starts=(SEQ - 1, 0), stops=(SEQ, 2), steps=(1, 1))),
            b(g.Symbolic(values=(SEQ,))),
            b(g.Iota(shape=(4,), start=SEQ)),
        ]

    module = build({"x": (SEQ,)}, body)
    assert run(module, fold_constants) == {"Slice": 1, "Symbolic": 1, "Iota": 1}


def test_products_of_weights_are_folded_as_far_as_they_are_quick() -> None:
    """Products of weights are folded if NumPy computes them fast: products of floats, such as DeBERTa's
    projections of its position embeddings, and not those of integers.
    """

    def body(dtype: Any) -> Any:
        left, right = (Constant(np.ones(s, dtype)) for s in ((1024, 768), (768, 512)))
        return lambda b, x: b(g.Matmul(b(g.Constant(value=left)), b(g.Constant(value=right))))

    assert run(build({"x": (BATCH,)}, body(np.float32)), fold_constants, draws=1) == {}
    assert run(build({"x": (BATCH,)}, body(np.int32)), fold_constants, draws=1) == {"Matmul": 1}


def test_a_product_takes_what_follows_from_constants_with_it() -> None:
    """A product is folded together with the computations from constants before it. Sinusoidal positions alone
    are not folded, because they are computed faster than read.
    """

    def body(b: Any, x: Any) -> Any:
        places = b(g.Reshape(b(g.Cast(b(g.Iota(shape=(300,))), dtype=f32)), shape=(300, 1)))
        waves = b(g.Sin(b(g.Mul(places, weight(b, 1, 100)))))
        return [b(g.Matmul(waves, weight(b, 100, 100))), b(g.Matmul(b(g.Reshape(x, shape=(1, 300))), waves))]

    module = build({"x": (300,)}, body)
    assert "Sin" in run(module, fold_constants)
    product, other = (v.defining_op for v in outputs(module))
    assert isinstance(product, g.Constant) and not isinstance(other, g.Constant)


def test_views_of_what_is_made_when_needed_are_made_then() -> None:
    rows = np.arange(300 * 400, dtype=np.float32).reshape(300, 400)
    made = 0

    def write(out: np.ndarray) -> None:
        nonlocal made
        made += 1
        out[...] = rows

    def body(b: Any, x: Any) -> Any:
        w = b(g.Constant(value=Constant.made(rows.shape, np.float32, write, "w", recipe="rows")))
        turned = b(g.Transpose(w, permutation=(1, 0)))
        return [b(g.Matmul(x, turned)), b(g.Reshape(turned, shape=(4, 100, 300)))]

    module = build({"x": (2, 400)}, body)
    fold_constants(module)
    constants = [op.value for op in module.walk() if isinstance(op, g.Constant) and op.result.users]
    assert made == 0 and all(c.is_made for c in constants)
    for found, expected in zip(constants, (rows.T, rows.T.reshape(4, 100, 300)), strict=True):
        np.testing.assert_array_equal(found.array, expected)
    assert constants[1].parameters[0][0] == "w" and constants[1].steps == ("transpose", "reshape")
