"""Contractions with 16-bit factors: which values are rounded, where, and how few conversions there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.passes.graph.graphs import BATCH, SEQ, build, weight

from tilewright.dialects import graph, scalar, tensor
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module, Value
from tilewright.ir.passes import CheckOptions, Pipeline
from tilewright.ir.types import DType, bf16, f16, f32
from tilewright.lowering.pipeline import Lowered, lower
from tilewright.passes.graph.choose_layout import choose_layout
from tilewright.passes.tensor.fuse_elementwise import absorb_permutations, fuse_elementwise
from tilewright.passes.tensor.lower_precision import CONVERSION, lower_precision
from tilewright.passes.tensor.lower_to_tensor import lower_to_tensor
from tilewright.targets.registry import resolve

pytestmark = pytest.mark.every_isa

G: Any = graph


def lowered(module: Module, dtype: DType = bf16) -> list[tensor.Compute]:
    """Return the computations after the pass, which keeps results within the type's rounding."""
    for step in (choose_layout, lower_to_tensor, fuse_elementwise, absorb_permutations):
        step(module)
    loose = CheckOptions(rtol=3e-2, atol=6e-2)

    def narrow(m: Module) -> None:
        lower_precision(m, dtype)

    Pipeline([narrow]).run(module, verify_each=True, check=loose)
    return [op for op in module.walk() if isinstance(op, tensor.Compute)]


def made(module: Module) -> Lowered:
    """Return the kernels for the cpu target."""
    return lower(module, resolve("cpu:x86-64-v4").lowering, lambda step, m: step(m), bf16)


def sums(ops: list[tensor.Compute]) -> list[tensor.Compute]:
    return [op for op in ops if op.combiner == "sum"]


def conversions(ops: list[tensor.Compute]) -> list[tensor.Compute]:
    return [op for op in ops if notes.ORIGIN.get(op) == CONVERSION]


def factors(op: tensor.Compute) -> list[DType]:
    return [r.source.type.dtype for r in op.reads]


def mlp(b: Builder, x: Value) -> Value:
    hidden = b(G.Relu(b(G.Add(b(G.Matmul(x, weight(b, 24, 32))), weight(b, 32)))))
    return b(G.Matmul(hidden, weight(b, 32, 16, seed=1)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_factors_are_narrow_and_sums_wide(dtype: DType) -> None:
    ops = lowered(build({"x": (BATCH, 24)}, mlp), dtype)
    for op in sums(ops):
        assert factors(op) == [dtype, dtype] and op.dtype is f32
    # The input is converted by a computation; between the layers, the epilogue stores rounded values.
    assert len(conversions(ops)) == 1
    assert [op.dtype for op in ops if notes.ORIGIN.of(op) == "relu"] == [dtype]


def test_weights_are_rounded_to_nearest_even_at_compile_time() -> None:
    import ml_dtypes

    module = build({"x": (3, 24)}, lambda b, x: b(G.Matmul(x, weight(b, 24, 16))))
    before = next(op.value.array for op in module.walk() if isinstance(op, graph.Constant))
    lowered(module)
    (after,) = (op.value.array for op in module.walk() if isinstance(op, graph.Constant))
    np.testing.assert_array_equal(after, before.astype(ml_dtypes.bfloat16))


def test_the_residual_stream_stays_wide() -> None:
    """A normalization that both a projection and the residual connection read is stored in both types by its
    own kernel.
    """

    def body(b: Builder, x: Value) -> Value:
        y = b(G.LayerNorm(x, weight(b, 32), weight(b, 32, seed=2)))
        return b(G.Add(y, b(G.Relu(b(G.Matmul(y, weight(b, 32, 32)))))))  # type: ignore[no-any-return]

    ops = lowered(build({"x": (BATCH, SEQ, 32)}, body))
    (copy,) = conversions(ops)
    (norm,) = (r.source.defining_op for r in copy.reads)
    assert isinstance(norm, tensor.Compute) and norm.dtype is f32
    assert all(t is f32 for op in sums(ops) if notes.ORIGIN.of(op) == "layer_norm" for t in factors(op))
    result = made(build({"x": (BATCH, SEQ, 32)}, body))
    assert result.conversions == 0 and result.contractions == {"bf16": 1}


def test_attention_rounds_probabilities_not_statistics() -> None:
    def body(b: Builder, q: Value, k: Value, v: Value) -> Value:
        return b(G.Attention(q, k, v, causal=True))  # type: ignore[no-any-return]

    shape = (BATCH, 2, SEQ, 16)
    ops = lowered(build({"q": shape, "k": shape, "v": shape}, body))
    contracted = [op for op in sums(ops) if len(op.reads) == 2 and factors(op) == [bf16, bf16]]
    assert len(contracted) == 2
    statistics = [op for op in ops if op.is_reduction and op not in contracted]
    assert len(statistics) == 2 and all(op.dtype is f32 and set(factors(op)) == {f32} for op in statistics)


def residual_block(b: Builder, x: Value) -> Value:
    def conv(x: Value, outputs: int, inputs: int, size: int, seed: int, groups: int = 1) -> Value:
        return b(  # type: ignore[no-any-return]
            G.Conv(
                x,
                weight(b, outputs, inputs // groups, size, size, seed=seed),
                None,
                strides=(1, 1),
                padding=((size // 2, size // 2),) * 2,
                dilations=(1, 1),
                groups=groups,
            )
        )

    x = b(G.Relu(conv(x, 16, 3, 3, 0)))
    y = b(G.Relu(conv(x, 16, 16, 3, 1)))
    y = b(G.Relu(conv(y, 16, 16, 3, 2, groups=16)))
    z = b(G.Relu(b(G.Add(conv(y, 16, 16, 1, 3), x))))
    z = b(G.MaxPool(z, kernel=(2, 2), strides=(2, 2), padding=((0, 0), (0, 0))))
    return conv(z, 8, 16, 1, 4)


def test_a_convolutional_network_keeps_activations_narrow() -> None:
    ops = lowered(build({"x": (BATCH, 3, 8, 8)}, residual_block))
    # A first layer of three channels keeps float32 factors. Every activation after it is stored in 16 bits,
    # also where it is padded, pooled and added.
    first, *others = (op for op in sums(ops) if notes.ORIGIN.of(op) == "conv")
    assert factors(first) == [f32, f32]
    assert all(op.reads[0].source.type.dtype is bf16 for op in others)
    stored = {op.dtype for op in ops if not op.is_reduction and notes.ORIGIN.of(op) != "transpose"}
    assert stored == {bf16, f32}
    wide = [op for op in ops if not op.is_reduction and op.dtype is f32]
    assert all(op.reads[0].source in module_inputs(op) for op in wide[:-1])
    assert made(build({"x": (BATCH, 3, 8, 8)}, residual_block)).conversions == 0


def test_of_contractions_added_up_one_goes_on_in_float32() -> None:
    """If two contractions are added, one of them is stored in 16 bits, such as the shortcut of a residual
    block. The other one adds it in its epilogue, in float32.
    """

    def body(b: Builder, x: Value) -> Value:
        y = b(G.Relu(b(G.Matmul(x, weight(b, 24, 32)))))
        main, shortcut = b(G.Matmul(y, weight(b, 32, 32, seed=1))), b(G.Matmul(x, weight(b, 24, 32, seed=2)))
        return b(G.Matmul(b(G.Relu(b(G.Add(main, shortcut)))), weight(b, 32, 16, seed=3)))  # type: ignore[no-any-return]

    ops = lowered(build({"x": (BATCH, 24)}, body))
    (added,) = (op for op in ops if not op.is_reduction and len(op.reads) == 2)
    assert [r.source.type.dtype for r in added.reads] == [f32, bf16] and added.dtype is bf16
    # The kernels are the input's conversion and four products.
    assert len(made(build({"x": (BATCH, 24)}, body)).kernels) == 5


def module_inputs(op: tensor.Compute) -> list[Value]:
    assert op.parent is not None
    return list(op.parent.args)


def test_moving_elements_converts_nothing() -> None:
    """Elements that are only moved between two contractions are not converted."""

    def body(b: Builder, x: Value) -> Value:
        y = b(G.Transpose(b(G.Matmul(x, weight(b, 8, 12))), permutation=(1, 0)))
        y = b(G.Pad(y, low=(2, 1), high=(0, 0), mode="constant", value=0))
        return b(G.Matmul(y, weight(b, 8, 4)))  # type: ignore[no-any-return]

    ops = lowered(build({"x": (7, 8)}, body))
    movers = [op for op in ops if not op.is_reduction and notes.ORIGIN.of(op) in ("pad", "transpose")]
    assert movers and all(not any(isinstance(x, scalar.Cast) for x in op.body.ops) for op in movers)


def test_models_in_other_types_keep_them() -> None:
    from tilewright.ir.types import f64

    module = build({"x": ((4, 8), f64), "y": ((8, 5), f64)}, lambda b, x, y: b(G.Matmul(x, y)))
    (op,) = lowered(module)
    assert factors(op) == [f64, f64]


def test_products_behind_a_checkpoint_are_narrow() -> None:
    """A value that is read again after others is converted there; the product stays a product of 16 bits."""

    def again(b: Builder, x: Value) -> list[Value]:
        other = b(G.Exp(x))
        return [other, b(G.Matmul(b(G.After(x, [other])), weight(b, 64, 64)))]

    (product,) = sums(lowered(build({"x": (BATCH, 64)}, again)))
    assert factors(product) == [bf16, bf16]
