"""Products with packed qvalues of few bits, in vector tiles, matrix registers and tails, compared with
products of the same groups in NumPy.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func, graph
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import DType, TensorType, bf16, f32, i8
from tilewright.targets.registry import resolve

pytestmark = pytest.mark.every_isa

PLAIN = "cpu:x86-64-v3"


def model(
    rows: tuple[Dim, ...],
    depth: int,
    columns: int,
    groups: int,
    bits: int,
    scale: Any = np.float16,
    epilogue: bool = False,
    factors: DType = i8,
) -> tuple[Module, Any]:
    """Return a product with constant weights, and the weights."""
    rng = np.random.default_rng(0)
    qvalues = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (columns, depth))
    scales = (rng.uniform(0.01, 0.1, (columns, groups)) * rng.choice((-1, 1), (columns, groups))).astype(
        scale
    )
    scales[0, 0] = 3e-6  # subnormal in float16
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(main)
    x = main.body.add_arg(TensorType(f32, (*rows, depth)))
    b = Builder(main.body)
    parts = (qvalues.astype(ml_dtypes.int4 if bits == 4 else np.int8), "qvalues"), (scales, "scales")
    weights = [b(graph.Constant(value=Constant(*part))) for part in parts]
    y = b(graph.QuantizedMatMul(x, *weights, factors=factors))
    if epilogue:
        y = b(graph.Add(b(graph.Sigmoid(y)), y))
    b.insert(func.Return([y]))
    grouped = qvalues.reshape(columns, groups, -1) * scales[..., None].astype(np.float64)
    return module, grouped.reshape(columns, depth)


def nearest(x: Any) -> Any:
    """Return the numbers rounded to bf16, as float64."""
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def rounded(x: Any, groups: int, bits: int) -> Any:
    """Return the rows as 8-bit quantization rounds them: a group's scale is its largest magnitude over 127,
    or, with 4-bit weights, that of its row divided by a power of two.
    """
    parts = x.reshape(*x.shape[:-1], groups, -1)
    scale = np.abs(parts).max(-1, keepdims=True)
    if bits == 4:
        largest = scale.max(-2, keepdims=True)
        most = 31 - (parts.shape[-1] * 127 * 8).bit_length()
        power = np.clip(np.floor(np.log2(largest.astype(np.float64) / scale)), 0, most)
        scale = largest / 2 ** power.astype(np.float32)
    return (np.rint(parts * (np.float32(127) / scale)).astype(np.float64) * scale / 127).reshape(x.shape)


def close(y: Any, x: Any, weights: Any, groups: int, bits: int) -> None:
    left = rounded(x, groups, bits)
    np.testing.assert_allclose(
        y, left @ weights.T, rtol=0, atol=1e-6 * (np.abs(left) @ np.abs(weights).T).max()
    )


def rows_of(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("columns", (64, 70, 33, 1))
@pytest.mark.parametrize(
    ("bits", "depth", "groups"), ((4, 96, 3), (4, 128, 1), (8, 128, 2), (8, 36, 3), (8, 256, 1), (4, 64, 4))
)
def test_any_number_of_rows(bits: int, depth: int, groups: int, columns: int) -> None:
    module, weights = model((symbol("m", 1, 40),), depth, columns, groups, bits)
    with tw.compile(module, cache=False) as library:
        for m in (1, 2, 5, 6, 7, 13, 16, 17, 33, 40):
            x = rows_of(m, depth)
            close(library(x), x, weights, groups, bits)


@pytest.mark.parametrize("scale", (np.float32, np.float16, ml_dtypes.bfloat16))
@pytest.mark.parametrize("rows", ((1,), (3,), (2, 20), (300,)))
def test_known_rows_with_an_epilogue(rows: tuple[int, ...], scale: Any) -> None:
    module, weights = model(rows, 64, 200, 2, 4, scale, epilogue=True)
    x = rows_of(*rows, 64)
    y = rounded(x, 2, 4) @ weights.T
    with tw.compile(module, cache=False) as library:
        np.testing.assert_allclose(library(x), y + 1 / (1 + np.exp(-y)), rtol=0, atol=1e-5 * np.abs(y).max())


def test_batch_and_sequence() -> None:
    module, weights = model((symbol("b", 1, 3), symbol("s", 1, 30)), 64, 50, 2, 4)
    with tw.compile(module, cache=False) as library:
        for b, s in ((1, 1), (3, 30), (2, 9)):
            x = rows_of(b, s, 64)
            close(library(x), x, weights, 2, 4)


def test_a_row_is_the_same_among_any_others() -> None:
    """A row has the same result to the bit among any other rows, so that a server's answer does not depend on
    other requests.
    """
    module, _ = model((symbol("m", 1, 40),), 512, 48, 16, 4)
    x = rows_of(40, 512)
    with tw.compile(module, cache=False) as library:
        alone = np.concatenate([library(x[i : i + 1]) for i in range(40)])
        for m in (3, 8, 16, 21, 40):
            np.testing.assert_array_equal(library(x[:m]), alone[:m])


def test_sums_of_groups_are_made_once() -> None:
    """Two products of the same rows, which are not merged, share the rounded rows and their groups' sums."""
    rng = np.random.default_rng(0)
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x",), result_names=("y", "z"))
    module.body.append(main)
    x, b = main.body.add_arg(TensorType(f32, (symbol("m", 1, 40), 128))), Builder(main.body)
    results, weights = [], []
    for bits in (3, 4):
        qvalues = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (48, 128))
        scales = rng.uniform(0.01, 0.1, (48, 4)).astype(np.float32)
        arrays = (qvalues.astype(np.int8), f"qvalues{bits}"), (scales, f"scales{bits}")
        constants = [b(graph.Constant(value=Constant(*array))) for array in arrays]
        results.append(b(graph.QuantizedMatMul(x, *constants, factors=i8, bits=bits)))
        weights.append(qvalues * np.repeat(scales.astype(np.float64), 32, -1))
    b.insert(func.Return(results))
    with tw.compile(module, cache=False) as library:
        loops = library.ir("loop")
        if "simd.quantized_gemm" not in loops:
            pytest.skip("this machine has no products of bytes")
        assert loops.count("simd.quantized_gemm") == 2 and loops.count('combiners = ["sum"]') == 1
        for m in (1, 40):
            rows = rows_of(m, 128)
            for y, matrix in zip(library(rows), weights, strict=True):
                close(y, rows, matrix, 4, 4)


@pytest.mark.parametrize("m", (1, 7))
def test_rows_that_are_given_rounded(m: int) -> None:
    """Rows that are an argument have a kernel of its own for the sums of their groups."""
    rng = np.random.default_rng(0)
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x", "x_scales"), result_names=("y",))
    module.body.append(main)
    x = main.body.add_arg(TensorType(i8, (m, 3, 32)))
    x_scales, b = main.body.add_arg(TensorType(f32, (m, 3))), Builder(main.body)
    qvalues, scales = rng.integers(-8, 8, (48, 96)), rng.uniform(0.01, 0.1, (48, 3)).astype(np.float32)
    arrays = (qvalues.astype(ml_dtypes.int4), "qvalues"), (scales, "scales")
    weights = [b(graph.Constant(value=Constant(*array))) for array in arrays]
    b.insert(func.Return([b(graph.ScaledMatMul(x, x_scales, *weights))]))
    left = rng.integers(-127, 128, (m, 3, 32)).astype(np.int8)
    powers = 2.0 ** rng.integers(0, 5, (m, 3)).astype(np.float32)
    matrix = qvalues.reshape(48, 3, 32) * scales[..., None].astype(np.float64)
    wanted = (left * powers[..., None]).reshape(m, 96) @ matrix.reshape(48, 96).T
    with tw.compile(module, cache=False) as library:
        np.testing.assert_allclose(library(left, powers), wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(("depth", "value"), ((128, 7), (4096, -8), (4128, 7), (8192, -8)))
def test_the_largest_products_are_exact(depth: int, value: int) -> None:
    """Extreme activations times extreme quantized values stay exact where products are summed in 16 bits, and
    in groups up to and beyond the length that biased sums allow.
    """
    module, _ = model((symbol("m", 1, 8),), depth, 16, 1, 4, scale=np.float32)
    constants = [op for op in module.walk() if isinstance(op, graph.Constant)]
    qvalues, scales = np.full((16, depth), value, ml_dtypes.int4), np.ones((16, 1), np.float32)
    for op, array in zip(constants, (qvalues, scales), strict=True):
        op.value = Constant(array, "extreme")
    for target in ("cpu", PLAIN):
        if not resolve(target).runs_here:
            continue
        with tw.compile(module, target=target, cache=False) as library:
            for m in (1, 8):
                for x in (127, -127):
                    found = library(np.full((m, depth), x, np.float32))
                    np.testing.assert_array_equal(found, value * x * depth)


def test_qvalues_are_packed_two_to_a_byte() -> None:
    module, _ = model((1,), 256, 64, 8, 4)
    with tw.compile(module, cache=False) as library:
        if "simd.quantized_gemm" not in library.ir("loop"):
            pytest.skip("this machine has no products of bytes")
        assert library.report.memory["weights_bytes"] == 64 * 256 // 2 + 64 * 8 * 2


@pytest.mark.parametrize(("bits", "groups"), ((4, 3), (4, 1), (8, 2), (8, 24)))
@pytest.mark.parametrize("factors", (i8, bf16), ids=str)
def test_machines_without_dot_products(factors: DType, bits: int, groups: int) -> None:
    """Without ``vpdpbusd``, bytes are multiplied in pairs, exactly; weights are packed all the same."""
    if not resolve(PLAIN).runs_here:
        pytest.skip("for x86-64 only")
    module, weights = model((symbol("m", 1, 40),), 96, 33, groups, bits, factors=factors)
    with tw.compile(module, target=PLAIN, cache=False) as library:
        assert ("simd.quantized_gemm" in library.ir("loop")) == (factors is i8)
        for m in (1, 5, 40):
            x = rows_of(m, 96)
            if factors is i8:
                close(library(x), x, weights, groups, bits)
            else:
                left, right = nearest(x), nearest(weights)
                np.testing.assert_allclose(
                    library(x), left @ right.T, rtol=0, atol=1e-6 * (np.abs(left) @ np.abs(right).T).max()
                )


@pytest.mark.parametrize("columns", (64, 70, 33, 1))
@pytest.mark.parametrize(("bits", "groups"), ((4, 3), (4, 1), (8, 2), (8, 96)))
def test_factors_of_bf16(bits: int, groups: int, columns: int) -> None:
    module, weights = model((symbol("m", 1, 600),), 96, columns, groups, bits, factors=bf16)
    with tw.compile(module, cache=False) as library:
        for m in (1, 2, 5, 16, 17, 33, 70, 300, 600):
            x = rows_of(m, 96)
            left, right = nearest(x), nearest(weights)
            np.testing.assert_allclose(
                library(x), left @ right.T, rtol=0, atol=1e-6 * (np.abs(left) @ np.abs(right).T).max()
            )


def test_long_sums_come_in_pieces() -> None:
    module, weights = model((symbol("m", 1, 40),), 4096 + 64, 40, 65, 4, factors=bf16)
    with tw.compile(module, cache=False) as library:
        x = rows_of(40, 4096 + 64)
        left, right = nearest(x), nearest(weights)
        np.testing.assert_allclose(
            library(x), left @ right.T, rtol=0, atol=1e-6 * (np.abs(left) @ np.abs(right).T).max()
        )


@pytest.mark.parametrize("bits", (4, 8))
def test_relaxed_products_are_exact(bits: int) -> None:
    """WebAssembly's relaxed products of bytes are used where their result is that of every machine."""
    pytest.importorskip("wasmtime")
    groups, depth = 2, 512
    module, weights = model((7,), depth, 33, groups, bits)
    x = rows_of(7, depth)
    results = {}
    for target in ("wasm32", "wasm32:relaxed"):
        with tw.compile(module, target=target, cache=False) as library:
            results[target] = library(x)
            code = library.ir("asm")
            used = "i32x4.relaxed_dot_i8x16_i7x16_add_s" in code
            assert used == (target == "wasm32:relaxed" and bits == 4)
            loops = [part.partition("end_function")[0] for part in code.split("\nqtile_")[1:]]
            assert loops and all("v128.load\t16" in loop for loop in loops)  # the load adds the distance
        close(results[target], x, weights, groups, bits)
    np.testing.assert_allclose(results["wasm32:relaxed"], results["wasm32"], rtol=1e-6, atol=1e-6)
