"""Products with quantized weights of all forms: bit planes, tables, units of scales, minimums, zero points,
8-bit floats; compared with weights that NumPy computes from their parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func, graph
from tilewright.dialects.weight_form import TERNARY, WeightForm, integer_table, joined_digits, split_digits
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module
from tilewright.ir.symbolic import ceildiv, symbol
from tilewright.ir.types import DType, TensorType, bf16, f32, i8
from tilewright.llm.quantization.tables import E2M1, IQ4_NL, NF4
from tilewright.targets.cpu.isa import host_isa, isa_named
from tilewright.targets.llvm.brgemm.weight_parts import tripled
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.registry import resolve

pytestmark = pytest.mark.every_isa
PLAIN = "cpu:x86-64-v3"
DEPTH = 512
DRAW = np.random.default_rng(0)


@dataclass
class Weights:
    """Values [n, depth] and parts, and the matrix that they stand for."""

    values: Any
    parts: dict[str, Any]
    bits: float | None = None
    table: tuple[float, ...] | None = None

    @property
    def matrix(self) -> Any:
        parts = {name: part.astype(np.float64) for name, part in self.parts.items()}
        scales = parts["scales"]
        if "units" in parts:
            scales = scales * np.kron(parts["units"], np.ones(scales.shape[1] // parts["units"].shape[1]))
        minimums = parts.get("minimums", np.zeros(scales.shape))
        if "minimum_units" in parts:
            units = parts["minimum_units"]
            minimums = minimums * np.kron(units, np.ones(scales.shape[1] // units.shape[1]))
        elif "minimums" in parts and self.parts["minimums"].dtype == np.uint8:
            minimums = minimums * scales
        values = self.values.astype(np.float64)
        if self.table is not None:
            values = np.array([[self.table[int(q)] for q in row] for row in values])
        size = values.shape[1] // scales.shape[1]
        return values * np.repeat(scales, size, 1) - np.repeat(minimums, size, 1)


def numbers(rows: int, groups: int, dtype: Any = np.float16) -> Any:
    return DRAW.uniform(0.01, 0.1, (rows, groups)).astype(dtype)


def integers(rows: int, count: int, low: int, high: int, dtype: Any) -> Any:
    return DRAW.integers(low, high, (rows, count)).astype(np.int16).astype(dtype)


def k_quants(rows: int, bits: int, dtype: Any) -> Weights:
    """As GGUF's Q4_K and Q5_K: eight groups of 32 share a unit of scales and one of minimums."""
    parts = {
        "scales": integers(rows, 16, 0, 64, np.uint8),
        "units": numbers(rows, 2),
        "minimums": integers(rows, 16, 0, 64, np.uint8),
        "minimum_units": numbers(rows, 2),
    }
    return Weights(integers(rows, DEPTH, 0, 1 << bits, dtype), parts, bits)


def small_groups(rows: int, bits: int, dtype: Any) -> Weights:
    """As GGUF's Q3_K and Q6_K: 16 groups of 16 share a unit of scales."""
    limit = 1 << (bits - 1)
    parts = {"scales": integers(rows, 32, -32, 32, np.int8), "units": numbers(rows, 2)}
    return Weights(integers(rows, DEPTH, -limit, limit, dtype), parts, bits)


def of_4_bits(rows: int, groups: int = 32, dtype: Any = ml_dtypes.uint4) -> Weights:
    """As GGUF's Q2_K: groups of 16 whose scales and minimums have 4 bits."""
    draw = np.random.default_rng(rows)
    scales, minimums = draw.integers(0, 16, (2, rows, groups)).astype(np.uint8).astype(dtype)
    units, minimum_units = draw.uniform(0.01, 0.1, (2, rows, 1)).astype(np.float16)
    values = draw.integers(0, 4, (rows, 16 * groups)).astype(np.uint8).astype(ml_dtypes.uint4)
    parts = {"scales": scales, "units": units, "minimums": minimums, "minimum_units": minimum_units}
    return Weights(values, parts, 2)


def ternary(rows: int, groups: int = 2, bits: float = TERNARY) -> Weights:
    """As GGUF's TQ1_0 (and, with 2 bits, TQ2_0): -1, 0 and 1, with a scale for each 256."""
    draw = np.random.default_rng(rows)
    values = draw.integers(-1, 2, (rows, 512)).astype(np.int8).astype(ml_dtypes.int4)
    return Weights(values, {"scales": draw.uniform(-0.1, 0.1, (rows, groups)).astype(np.float16)}, bits)


def looked_up(rows: int, table: tuple[float, ...], parts: dict[str, Any]) -> Weights:
    return Weights(integers(rows, DEPTH, 0, 16, ml_dtypes.uint4), parts, 4, table)


def made(name: str, rows: int) -> Weights:
    """Weights of a form with random numbers."""
    if name in ("q4_k", "q5_k"):
        return k_quants(rows, int(name[1]), ml_dtypes.uint4 if name == "q4_k" else np.uint8)
    if name in ("q3_k", "q6_k"):
        return small_groups(rows, int(name[1]), ml_dtypes.int4 if name == "q3_k" else np.int8)
    if name == "q2_k":
        return of_4_bits(rows)
    if name == "tq1_0":
        return ternary(rows)
    if name == "q2, minimums":
        parts = {"scales": numbers(rows, 32), "minimums": numbers(rows, 32)}
        return Weights(integers(rows, DEPTH, 0, 4, ml_dtypes.uint4), parts, 2)
    if name == "q5, minimums":
        parts = {"scales": numbers(rows, 16), "minimums": numbers(rows, 16)}
        return Weights(integers(rows, DEPTH, 0, 32, np.uint8), parts, 5)
    if name in ("4 bits, zeros", "8 bits, zeros"):
        bits = int(name[0])
        parts = {"scales": numbers(rows, 4), "minimums": integers(rows, 4, 0, 1 << bits, np.uint8)}
        dtype = ml_dtypes.uint4 if bits == 4 else np.uint8
        return Weights(integers(rows, DEPTH, 0, 1 << bits, dtype), parts, bits)
    if name == "mxfp4":
        exponents = (2.0 ** DRAW.integers(-9, 0, (rows, 16))).astype(ml_dtypes.float8_e8m0fnu)
        return looked_up(rows, E2M1, {"scales": exponents})
    if name == "iq4_xs":
        parts = {"scales": integers(rows, 16, -32, 32, np.int8), "units": numbers(rows, 2)}
        return looked_up(rows, IQ4_NL, parts)
    if name == "nf4":
        return looked_up(rows, NF4, {"scales": numbers(rows, 8)})
    if name.endswith((" in i8", " in u8")):  # fewer bits than their type has
        bits, signed = int(name[0]), name.endswith("i8")
        low = -(1 << (bits - 1)) if signed else 0
        values = integers(rows, DEPTH, low, low + (1 << bits), np.int8 if signed else np.uint8)
        return Weights(values, {"scales": numbers(rows, 16)}, bits)
    dtype = ml_dtypes.float8_e5m2 if name == "e5m2" else ml_dtypes.float8_e4m3fn
    groups = 1 if name == "e4m3, one scale" else 4
    return Weights(
        DRAW.standard_normal((rows, DEPTH)).astype(dtype), {"scales": numbers(rows, groups, np.float32)}
    )


NAMES = ("tq1_0", "q2_k", "q2, minimums", "q3_k", "q4_k", "q5_k", "q5, minimums", "q6_k",
         "4 bits, zeros", "8 bits, zeros", "2 bits in i8", "3 bits in u8", "4 bits in i8", "4 bits in u8",
         "mxfp4", "iq4_xs", "nf4", "e4m3", "e4m3, one scale", "e5m2")  # fmt: skip


def product(weights: Weights, factors: DType, matrices: int = 0) -> Module:
    """The product of up to 40 rows with the weights; of the same ones `matrices` times, which rows choose."""
    return products([weights], factors, matrices)


def products(
    factors_of_rows: list[Weights], factors: DType, matrices: int = 0, count: int | None = None
) -> Module:
    """The products of the same rows with several weights, as in `product`; of `count` rows, if given."""
    module, rows = Module(), symbol("m", 1, 40) if count is None else count
    names = ("x", "index")[: 1 + bool(matrices)]
    results = tuple(f"y{k}" for k in range(len(factors_of_rows)))
    main = func.Func(sym_name="main", arg_names=names, result_names=results)
    module.body.append(main)
    x = main.body.add_arg(TensorType(f32, (rows, factors_of_rows[0].values.shape[1])))
    index = main.body.add_arg(TensorType(tw.ir.types.i64, (rows,))) if matrices else None
    b, made = Builder(main.body), []

    def constant(array: Any, name: str) -> Any:
        array = np.stack([array] * matrices) if matrices else array
        return b(graph.Constant(value=Constant(array, name)))

    for k, w in enumerate(factors_of_rows):
        values = constant(w.values, f"values{k}")
        parts = {name: constant(part, f"{name}{k}") for name, part in w.parts.items()}
        rest = [parts.get(name) for name in ("units", "minimums", "minimum_units")]
        choices = {"factors": factors, "bits": w.bits, "table": w.table}
        made.append(b(graph.QuantizedMatMul(x, values, parts["scales"], index, *rest, **choices)))
    b.insert(func.Return(made))
    return module


def repeated(weights: Weights, times: int) -> Weights:
    """The same weights `times` times along the sum."""
    parts = {name: np.concatenate([part] * times, 1) for name, part in weights.parts.items()}
    return Weights(np.concatenate([weights.values] * times, 1), parts, weights.bits, weights.table)


def error_of(y: Any, expected: Any) -> float:
    return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("name", NAMES)
def test_products_of_integers(name: str) -> None:
    """Rounding rows to 8 bits is the error: about 0.5 to 1 %; in products of bf16 about 0.2 %."""
    weights = made(name, 70)
    with tw.compile(product(weights, i8), cache=False) as library:
        packed = "simd.quantized_gemm" in library.ir("loop")
        for m in (1, 3, 6, 40):
            x = np.random.default_rng(m).standard_normal((m, DEPTH)).astype(np.float32)
            assert error_of(library(x), x @ weights.matrix.T) < 1.2e-2
        if packed:
            # 70 columns fill panels of 3 vectors. Each array begins at a multiple of 64 bytes.
            columns = {512: 96, 256: 72}[host_isa().vector_bits]
            bytes_of = [int(DEPTH * (weights.bits or 8) / 8)]
            bytes_of += [
                part.shape[1] // 2 if part.dtype == ml_dtypes.uint4 else part.shape[1] * part.dtype.itemsize
                for part in weights.parts.values()
            ]
            stored = sum(ceildiv(columns * size, 64) * 64 for size in bytes_of)
            assert library.report.memory["weights_bytes"] == stored


@pytest.mark.parametrize("groups", [32, 2, 7])
@pytest.mark.parametrize("factors", [i8, bf16])
def test_scales_of_4_bits_give_the_bits_of_bytes(groups: int, factors: DType) -> None:
    """Also an odd number of groups, whose scales take a byte each."""
    x = np.random.default_rng(0).standard_normal((5, 16 * groups)).astype(np.float32)
    found = []
    for dtype in (ml_dtypes.uint4, np.uint8):
        with tw.compile(product(of_4_bits(70, groups, dtype), factors), cache=False) as library:
            found.append(library(x))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("target", ("cpu", PLAIN))
@pytest.mark.parametrize("groups", (2, 1, 16))
@pytest.mark.parametrize("factors", [i8, bf16])
def test_digits_of_base_3_give_the_bits_of_two_bits(factors: DType, groups: int, target: str) -> None:
    """Also where a group has several chunks, or a chunk several groups, which begin within a byte."""
    if not resolve(target).runs_here:
        pytest.skip("for x86-64 only")
    x = np.random.default_rng(0).standard_normal((40, DEPTH)).astype(np.float32)
    found = []
    for bits in (TERNARY, 2):
        module = product(ternary(70, groups, bits), factors)
        with tw.compile(module, target=target, cache=False) as library:
            found.append([library(x[:m]) for m in (1, 5, 40)])
    for digits, two_bits in zip(*found, strict=True):
        np.testing.assert_array_equal(digits, two_bits)


@pytest.mark.parametrize(
    ("target", "emulated", "register"),
    [
        ("cpu:x86-64-v4", (), "v"),
        ("cpu:x86-64-v4", ("avx512f", "avx512bw"), ""),
        ("cpu:x86-64-v3", (), "x"),
        ("aarch64-linux:i8mm", (), "w"),
        ("hexagon-linux:hvx", (), ""),
    ],
)
def test_assembly_has_vectors_that_the_machine_has(
    target: str, emulated: tuple[str, ...], register: str
) -> None:
    """LLVM ends the process if there is no register for an operand of assembly."""
    isa = replace(isa_named(target), emulated=emulated)
    e = Emitter()
    tripled(e, isa, isa.for_type(i8).lanes(32), "%x")
    assert (f'asm "", "={register},0"' in e.text()) if register else ("asm" not in e.text())


@pytest.mark.parametrize("name", NAMES)
def test_products_of_bf16(name: str) -> None:
    check_products_of_bf16(made(name, 33))


def check_products_of_bf16(weights: Weights, **choices: Any) -> None:
    schedules = [tw.pin("quantized_matmul_2", **choices)] if choices else []
    with tw.compile(product(weights, bf16), cache=False, schedules=schedules) as library:
        for m in (1, 17):
            x = np.random.default_rng(m).standard_normal((m, weights.values.shape[1])).astype(np.float32)
            left, right = (a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (x, weights.matrix))
            np.testing.assert_allclose(
                library(x), left @ right.T, rtol=0, atol=2e-4 * (np.abs(left) @ np.abs(right).T).max()
            )


def in_units(groups: int, size: int, units: int, minimum_units: int) -> Weights:
    """Values of 4 bits with scales and minimums of 8 bits, whose units cover as many groups each."""
    rows = 33
    parts = {
        "scales": integers(rows, groups, 1, 64, np.uint8),
        "units": numbers(rows, groups // units),
        "minimums": integers(rows, groups, 0, 64, np.uint8),
        "minimum_units": numbers(rows, groups // minimum_units),
    }
    return Weights(integers(rows, groups * size, 0, 16, ml_dtypes.uint4), parts, 4)


@pytest.mark.parametrize(("size", "units", "minimum_units"), ((16, 3, 3), (32, 2, 3)))
def test_pieces_of_a_sum_have_whole_units_and_chunks(size: int, units: int, minimum_units: int) -> None:
    """Two pieces of nine groups would cut a chunk of two groups, or a unit of two."""
    with tw.compile(product(in_units(12, size, units, minimum_units), bf16), cache=False) as library:
        if "simd.dequantize" not in library.ir("loop"):
            pytest.skip("this machine has no products of bf16")
    check_products_of_bf16(in_units(12, size, units, minimum_units), depth_pieces=2)
    weights = in_units(18, size, units, minimum_units)
    check_products_of_bf16(weights, depth_pieces=3)
    with pytest.raises(tw.CompileError, match="depth_pieces cannot be 2; its values are 1, 3"):
        check_products_of_bf16(weights, depth_pieces=2)


@pytest.mark.parametrize("factors", [i8, bf16])
@pytest.mark.parametrize("scale", [0, 3])
def test_scales_and_minimums_may_be_equal(scale: int, factors: DType) -> None:
    weights = in_units(12, 32, 2, 2)
    for name in ("scales", "minimums"):
        weights.parts[name] = np.full_like(weights.parts[name], scale)
    weights.parts["minimum_units"] = weights.parts["units"]
    x = np.random.default_rng(0).standard_normal((5, 384)).astype(np.float32)
    with tw.compile(product(weights, factors), cache=False) as library:
        largest = (np.abs(x) @ np.abs(weights.matrix).T).max()
        np.testing.assert_allclose(library(x), x @ weights.matrix.T, rtol=0, atol=1e-2 * largest)


@pytest.mark.parametrize("name", ("tq1_0", "q3_k", "q5_k", "q6_k", "mxfp4", "iq4_xs"))
def test_machines_without_dot_products(name: str) -> None:
    if not resolve(PLAIN).runs_here:
        pytest.skip("for x86-64 only")
    weights = made(name, 20)
    with tw.compile(product(weights, i8), target=PLAIN, cache=False) as library:
        assert "simd.quantized_gemm" in library.ir("loop")
        x = np.random.default_rng(1).standard_normal((7, DEPTH)).astype(np.float32)
        assert error_of(library(x), x @ weights.matrix.T) < 1.2e-2


@pytest.mark.parametrize("name", ("q4_k", "mxfp4"))
def test_rows_choose_matrices(name: str) -> None:
    weights = made(name, 33)
    with tw.compile(product(weights, i8, matrices=3), cache=False) as library:
        x = np.random.default_rng(1).standard_normal((9, DEPTH)).astype(np.float32)
        y = library(x, np.array([0, 0, 1, 1, 1, 2, 2, 2, 2]))
        assert error_of(y, x @ weights.matrix.T) < 1.2e-2


@pytest.mark.parametrize("name", ("tq1_0", "q4_k", "q5, minimums", "q6_k", "mxfp4"))
def test_a_row_is_the_same_among_any_others(name: str) -> None:
    """Also among so many that panels are unpacked once for all of them, in two pieces of the sum."""
    weights = repeated(made(name, 70), 5)
    x = np.random.default_rng(1).standard_normal((40, 5 * DEPTH)).astype(np.float32)
    with tw.compile(product(weights, i8), cache=False) as library:
        alone = np.concatenate([library(x[k : k + 1]) for k in range(40)])
        assert error_of(alone, x @ weights.matrix.T) < 1.2e-2
        for m in (2, 6, 7, 13, 24, 40):
            np.testing.assert_array_equal(library(x[:m]), alone[:m])


@pytest.mark.parametrize("target", ("cpu", PLAIN))
@pytest.mark.parametrize(("value", "scale", "minimum"), ((-32, -128, None), (15, 255, 0), (0, 255, 254)))
def test_the_largest_sums_of_blocks_are_exact(
    value: int, scale: int, minimum: int | None, target: str
) -> None:
    if not resolve(target).runs_here:
        pytest.skip("for x86-64 only")
    size = 16 if minimum is None else 32
    groups, signed = 256 // size, minimum is None
    parts = {
        "scales": np.full((16, groups), scale, np.int8 if signed else np.uint8),
        "units": np.ones((16, 1), np.float16),
    }
    if minimum is not None:
        parts["minimums"] = np.full((16, groups), minimum, np.uint8)
        parts["minimum_units"] = np.full((16, 1), 0.5, np.float16)
    weights = Weights(np.full((16, 256), value, np.int8 if signed else np.uint8), parts, 6 if signed else 4)
    wanted = weights.matrix.sum(1) * 127
    with tw.compile(product(weights, i8), target=target, cache=False) as library:
        for m in (1, 7, 40):
            for sign in (1, -1):
                found = library(np.full((m, 256), 127 * sign, np.float32))
                np.testing.assert_allclose(found, np.tile(sign * wanted, (m, 1)), rtol=1e-6)


@pytest.mark.parametrize("bits", range(1, 9))
def test_values_are_packed_in_bit_planes(bits: int) -> None:
    form = WeightForm(bits, "uint")
    values = DRAW.integers(0, 1 << bits, (2, 16, 64)).astype(np.uint8)
    packed = form.packed(values)
    assert packed.nbytes == values.size * bits / 8
    np.testing.assert_array_equal(form.unpacked(packed.reshape(-1), 2, 64, 16), values)


def test_digits_of_base_3_share_bytes() -> None:
    """All 243 bytes of five digits, as the format defines them; and the last byte of a chunk, with four."""
    digits = np.stack([np.arange(243) // 3**k % 3 for k in reversed(range(5))], -1).astype(np.uint8)
    octets = joined_digits(digits)[:, 0].astype(int)
    for k in range(5):
        np.testing.assert_array_equal(((octets * 3**k % 256) * 3) >> 8, digits[:, k])
    np.testing.assert_array_equal(split_digits(joined_digits(digits[:, :4]), 4), digits[:, :4])
    form, values = WeightForm(2, "ternary"), DRAW.integers(-1, 2, (2, 16, 512)).astype(np.int8)
    packed = form.packed(values)
    assert packed.nbytes == form.bytes_of(512) * 32 == values.size * TERNARY / 8
    np.testing.assert_array_equal(form.unpacked(packed.reshape(-1), 2, 512, 16), values)


def test_tables_as_integers() -> None:
    assert integer_table(E2M1) == (tuple(int(2 * x) for x in E2M1), 0.5)
    assert integer_table(IQ4_NL) == (IQ4_NL, 1.0)
    numbers, unit = integer_table(NF4)
    assert max(map(abs, numbers)) <= 127
    np.testing.assert_allclose(np.array(numbers) * unit, NF4, atol=0.0045)
