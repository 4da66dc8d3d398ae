"""Tensor-level passes: which operators become one kernel, that values do not change, and how much memory
traffic fusion saves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import func, graph, scalar, tensor
from tilewright.dialects.simd import Panel
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module, Value
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import Dim, bounds, symbol
from tilewright.ir.target_info import RegisterTile, TargetInfo
from tilewright.ir.types import DType, TensorType, f32
from tilewright.ir.verifier import verify
from tilewright.lowering.groups_to_kernels import moved_bytes
from tilewright.lowering.pipeline import LoweringOptions, lower, tensor_passes
from tilewright.targets.llvm.rules import RULES

OPTIONS = LoweringOptions(
    panel=lambda *_: Panel(32),
    rules=RULES,
    info=TargetInfo(vector_bits=256, register_tiles=((f32, RegisterTile(6, 32)),)),
)
BATCH, SEQ = symbol("batch", 1, 8), symbol("seq", 1, 40)


def build(
    inputs: dict[str, tuple[Any, ...]], body: Callable[..., Value | list[Value]], dtype: DType = f32
) -> Module:
    module = Module()
    names = tuple(inputs)
    f = func.Func(sym_name="main", arg_names=names)
    module.body.append(f)
    args = [f.body.add_arg(TensorType(dtype, shape), name) for name, shape in inputs.items()]
    b = Builder(f.body)
    result = body(b, *args)
    results = result if isinstance(result, list) else [result]
    f.result_names = tuple(f"y{k}" for k in range(len(results)))
    b.insert(func.Return(results))
    verify(module)
    return module


def weight(b: Builder, *shape: int, seed: int = 0) -> Value:
    data = np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32) * 0.3
    value: Value = b(graph.Constant(value=Constant(data)))
    return value


def arrays(module: Module, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    found = []
    for arg in module.symbol("main").body.args:
        shape = [d if isinstance(d, int) else sizes[d.name] for d in arg.type.shape]
        found.append(rng.standard_normal(shape).astype(np.float32))
    return found


def check_passes(module: Module, options: LoweringOptions = OPTIONS, /, **sizes: int) -> list[tensor.Group]:
    """Run every pass, and compare the interpreter's results after each. Returns the groups."""
    inputs = arrays(module, **sizes)
    wanted = Interpreter(module).run("main", inputs)
    for step in tensor_passes(options):
        step(module)
        verify(module)
        for y, z in zip(Interpreter(module).run("main", inputs), wanted, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-5, err_msg=f"after {step.__name__}")
    return [op for op in module.walk() if isinstance(op, tensor.Group)]


def linear_relu(b: Builder, x: Value) -> Value:
    y = b(graph.Add(b(graph.Matmul(x, weight(b, 24, 48))), weight(b, 48)))
    return b(graph.Relu(y))


def test_bias_and_activation_are_the_epilogue_of_a_matmul() -> None:
    groups = check_passes(build({"x": (BATCH, SEQ, 24)}, linear_relu), batch=3, seq=7)
    assert [g.kind for g in groups] == ["contraction"]


@pytest.mark.parametrize("shape", [(1, 7, 24), (1, 1, 24), (3, 1, 24)])
def test_dimensions_of_one_keep_nothing_apart(shape: tuple[int, ...]) -> None:
    groups = check_passes(build({"x": shape}, linear_relu))
    assert [g.kind for g in groups] == ["contraction"]


def test_matmul_bias_relu_moves_memory_once() -> None:
    module = build({"x": (64, 24)}, linear_relu)
    lowered = lower(module, OPTIONS, lambda step, m: step(m))
    assert (lowered.unfused[0], lowered.fused[0]) == (3, 1)
    x, w, y = 64 * 24 * 4, 24 * 48 * 4 + 48 * 4, 64 * 48 * 4  # Padding of the weight's panels is not read.
    assert lowered.fused[1] == x + w + y
    assert lowered.unfused[1] > x + w + 4 * y


@pytest.mark.parametrize("axis", [-1, 2])
def test_softmax_is_one_kernel(axis: int) -> None:
    groups = check_passes(
        build({"x": (BATCH, 4, SEQ)}, lambda b, x: b(graph.Softmax(x, axis=axis))), batch=2, seq=9
    )
    assert len(groups) == 1


def test_residual_and_layer_norm_are_one_kernel_with_two_results() -> None:
    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        s = b(graph.Add(x, y))
        return [s, b(graph.LayerNorm(s, weight(b, 32), weight(b, 32, seed=1)))]

    groups = check_passes(build({"x": (BATCH, SEQ, 32), "y": (BATCH, SEQ, 32)}, body), batch=2, seq=5)
    assert len(groups) == 1
    assert len(groups[0].results) == 2


def test_elementwise_siblings_share_a_kernel() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        e = b(graph.Exp(x))
        return [e, b(graph.Add(e, x))]

    groups = check_passes(build({"x": (SEQ, 6)}, body), seq=11)
    assert len(groups) == 1


def test_producers_without_a_common_operand_share_their_readers_kernel() -> None:
    """Two results that read two values, each of which is read twice, are computed in one pass over memory."""

    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        p, q = b(graph.Exp(x)), b(graph.Tanh(y))
        total = b(graph.Add(p, q))
        return [total, b(graph.Mul(b(graph.Sub(total, p)), q))]

    groups = check_passes(build({"x": (BATCH, 24), "y": (BATCH, 24)}, body), batch=3)
    assert len(groups) == 1


def test_producers_that_need_each_other_through_a_third_stay_apart() -> None:
    """For x -> p -> sum over all -> q, with p + q, the values p and q cannot be in one kernel."""

    def body(b: Builder, x: Value) -> list[Value]:
        p = b(graph.Exp(x))
        q = b(graph.Tanh(b(graph.Mul(p, b(graph.ReduceSum(p, axes=(0, 1), keepdims=True))))))
        total = b(graph.Add(p, q))
        return [total, b(graph.Mul(b(graph.Sub(total, p)), q))]

    check_passes(build({"x": (BATCH, 24)}, body), batch=3)


def attention(b: Builder, x: Value) -> Value:
    def heads(seed: int) -> Value:
        y = b(graph.Add(b(graph.Matmul(x, weight(b, 32, 32, seed=seed))), weight(b, 32, seed=seed)))
        return b(graph.Transpose(b(graph.Reshape(y, shape=(BATCH, SEQ, 4, 8))), permutation=(0, 2, 1, 3)))

    y = b(graph.Attention(heads(1), heads(2), heads(3), None))
    y = b(graph.Reshape(b(graph.Transpose(y, permutation=(0, 2, 1, 3))), shape=(BATCH, SEQ, 32)))
    return b(graph.Matmul(y, weight(b, 32, 32, seed=4)))


def test_no_transposition_is_left_in_attention() -> None:
    groups = check_passes(build({"x": (BATCH, SEQ, 32)}, attention), batch=2, seq=9)
    # Three projections, the packed keys, one kernel for scores, softmax and weighted values, and the output
    # projection.
    assert [g.kind for g in groups] == ["contraction"] * 3 + ["rows", "chain", "contraction"]


@pytest.mark.parametrize("lead", [(BATCH,), (1, SEQ)])
@pytest.mark.parametrize("columns,kinds", [(64, ["chain"]), (16384, ["contraction", "rows", "contraction"])])
def test_large_weights_are_read_for_many_rows_at_a_time(
    columns: int, kinds: list[str], lead: tuple[Dim, ...]
) -> None:
    """Large weights are not read in a chain, which would read them again for every few rows; also with an
    axis of extent 1, which both operands may be said to share.
    """

    def body(b: Builder, x: Value) -> Value:
        y = b(graph.LayerNorm(b(graph.Matmul(x, weight(b, 32, 32))), weight(b, 32), None))
        return b(graph.Matmul(y, weight(b, 32, columns)))

    groups = check_passes(build({"x": (*lead, 32)}, body), batch=3, seq=20)
    assert [g.kind for g in groups] == kinds


def test_equal_layers_share_kernels() -> None:
    def layers(b: Builder, x: Value) -> Value:
        for seed in range(6):
            y = b(graph.Gelu(b(graph.Matmul(x, weight(b, 32, 32, seed=seed)))))
            x = b(graph.LayerNorm(b(graph.Add(x, y)), weight(b, 32, seed=seed), None))
        return x

    module = build({"x": (BATCH, SEQ, 32)}, layers)
    lowered = lower(module, OPTIONS, lambda step, m: step(m))
    assert len(lowered.kernels) == 2
    assert sum(k.launches for k in lowered.kernels.values()) == 12


def test_a_row_too_long_for_the_cache_is_not_kept() -> None:
    groups = check_passes(build({"x": (2, 200_000)}, lambda b, x: b(graph.Softmax(x, axis=-1))))
    assert len(groups) > 1


def test_pad_concat_and_slice_melt_into_their_reader() -> None:
    def body(b: Builder, x: Value) -> Value:
        y = b(graph.Concat((x, x), axis=1))
        y = b(graph.Pad(y, low=(0, 2), high=(0, 1)))
        y = b(graph.Slice(y, starts=(0, 1), stops=(SEQ, 9), steps=(1, 2)))
        return b(graph.Mul(y, y))

    groups = check_passes(build({"x": (SEQ, 5)}, body), seq=6)
    assert len(groups) == 1


def test_moved_bytes_of_a_function_without_computations() -> None:
    module = build({"x": (4, 4)}, lambda b, x: x)
    assert moved_bytes(module.symbol("main").body) == (0, 0)


def test_flops_of_a_triangular_reduction_have_a_bound() -> None:
    module = build({"x": (SEQ, 4)}, lambda b, x: b(graph.Cumsum(x, axis=0)))
    lowered = lower(module, OPTIONS, lambda step, m: step(m))
    assert all(bounds(k.flops)[1] is not None for k in lowered.kernels.values())


def test_a_permutation_is_absorbed_past_dimensions_of_one() -> None:
    def body(b: Builder, x: Value) -> Value:
        y = b(graph.Einsum((x, weight(b, 4, 6, 8)), equation="bshd,hde->bhse"))
        return b(graph.Transpose(y, permutation=(0, 2, 1, 3)))

    (group,) = check_passes(build({"x": (1, SEQ, 4, 6)}, body), seq=9)
    assert group.kind == "contraction"


@pytest.mark.parametrize(
    ("inner", "outer", "selects"), [(0.0, 0.0, 0), (0.0, -0.0, 1), (5.0, 0.0, 1), (None, 2.0, 0)]
)
def test_a_guarded_element_falls_back_by_itself(inner: float | None, outer: float, selects: int) -> None:
    """The padding of an image needs no selection, unless there are two different padding values."""

    def body(b: Builder, x: Value) -> Value:
        y = b(graph.Transpose(x, permutation=(1, 0)))
        if inner is not None:
            y = b(graph.Pad(y, low=(1, 0), high=(0, 2), value=inner))
        return b(graph.Pad(y, low=(0, 1), high=(3, 0), value=outer))

    module = build({"x": (5, 4)}, body)
    (group,) = check_passes(module)
    assert sum(isinstance(op, scalar.Select) for op in group.walk()) == selects


def test_a_roll_over_two_axes_is_one_kernel_of_reads() -> None:
    """A roll inside another roll is read with the guards of both, so that one kernel without selections is
    left.
    """

    def rolled(b: Builder, x: Value, axis: int, by: int) -> Value:
        shape = list(x.type.shape)
        cut = shape[axis] - by
        parts = []
        for start, stop in ((cut, shape[axis]), (0, cut)):
            starts, stops = [0] * len(shape), list(shape)
            starts[axis], stops[axis] = start, stop
            parts.append(b(graph.Slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(shape))))
        return b(graph.Concat(parts, axis=axis))  # type: ignore[no-any-return]

    (group,) = check_passes(build({"x": (9, 40)}, lambda b, x: rolled(b, rolled(b, x, 0, 2), 1, 7)))
    (once,) = check_passes(build({"x": (9, 40)}, lambda b, x: rolled(b, x, 1, 7)))
    assert len(group.inputs) == 1
    assert not any(op.name == "scalar.select" for op in once.walk())


@pytest.mark.parametrize(("channels", "kernels"), [(64, 3), (4, 2)])
def test_rearrangements_along_short_axes_are_copied_for_arithmetic(channels: int, kernels: int) -> None:
    """The gradient of a weight has kernel elements outermost, its update has them innermost."""
    window = {"kernel": (3, 3), "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilations": (1, 1)}

    def body(b: Builder, x: Value, dy: Value, w: Value) -> Value:
        gradient = b(graph.ConvWeightGradient(x, dy, layout="channels_last", **window))
        return b(graph.Sub(w, b(graph.Neg(gradient))))

    module = build(
        {"x": (1, 6, 6, channels), "dy": (1, 4, 4, channels), "w": (channels, channels, 3, 3)}, body
    )
    assert len(check_passes(module)) == kernels
