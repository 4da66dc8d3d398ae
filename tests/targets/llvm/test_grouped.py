"""Products in which every row chooses its matrix, compared with NumPy: runs of rows in any order, few and
many rows, every kind of weights.
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
from tilewright.ir.core import IRError, Module
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, bf16, f32, i4, i8, i64
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.llvm.brgemm import panel_of
from tilewright.targets.registry import resolve

pytestmark = pytest.mark.every_isa

COUNT = 5
S = symbol("s", 1, 90)


def library(
    kind: str, depth: int, columns: int, *, epilogue: bool = False, rows: Any = S, **options: Any
) -> Any:
    """Return a compiled product, and its weights [count, depth, columns]. `kind` is ``float``, ``transposed``
    (as linear layers store weights), ``run`` (weights are an argument), or quantized, such as ``int4 i8``.
    """
    rng = np.random.default_rng(0)
    module = Module()
    names = ("x", "index", "w") if kind == "run" else ("x", "index")
    main = func.Func(sym_name="main", arg_names=names, result_names=("y",))
    module.body.append(main)
    x, index = main.body.add_arg(TensorType(f32, (rows, depth))), main.body.add_arg(TensorType(i64, (rows,)))
    b = Builder(main.body)

    def constant(array: Any, name: str) -> Any:
        return b(graph.Constant(value=Constant(np.ascontiguousarray(array), name)))

    if kind in ("float", "transposed", "run"):
        w = rng.standard_normal((COUNT, depth, columns)).astype(np.float32)
        if kind == "float":
            weights = constant(w, "w")
        elif kind == "transposed":
            weights = b(graph.Transpose(constant(w.transpose(0, 2, 1), "w"), permutation=(0, 2, 1)))
        else:
            weights = main.body.add_arg(TensorType(f32, w.shape))
        y = b(graph.GroupedMatMul(x, weights, index))
    else:
        qvalue_type, factors = ({"int4": i4, "int8": i8, "bf16": bf16}[k] for k in kind.split())
        half = 1 << (qvalue_type.bits - 1)
        qvalues = rng.integers(-half, half, (COUNT, columns, depth))
        scales = rng.uniform(0.01, 0.1, (COUNT, columns, depth // 32)).astype(np.float16)
        parts = constant(qvalues.astype(qvalue_type.numpy), "qvalues"), constant(scales, "scales")
        y = b(graph.QuantizedMatMul(x, *parts, index, factors=factors))
        w = (qvalues.reshape(*scales.shape, 32) * scales[..., None].astype(np.float64)).reshape(qvalues.shape)
        w = w.transpose(0, 2, 1)
    b.insert(func.Return([b(graph.Add(b(graph.Sigmoid(y)), y)) if epilogue else y]))
    return tw.compile(module, cache=False, **options), w


def rows_of(n: int, depth: int, order: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    index = rng.integers(0, COUNT, n)
    index = {"sorted": np.sort(index), "mixed": index, "one": np.full(n, 3)}[order]
    return rng.standard_normal((n, depth)).astype(np.float32), index


def close(y: Any, x: Any, w: Any, index: Any, tolerance: float) -> None:
    expected = np.einsum("sk,skn->sn", x.astype(np.float64), w[index].astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * np.abs(expected).max())


KINDS = {
    "float": (None, 1e-5),
    "transposed": (None, 1e-5),
    "run": (None, 1e-5),
    "float, bf16": ("bf16", 2e-2),
    "run, bf16": ("bf16", 2e-2),
    "int4 int8": (None, 2e-2),
    "int8 int8": (None, 2e-2),
    "int4 bf16": (None, 2e-2),
    "int8 bf16": (None, 2e-2),
}


@pytest.mark.parametrize("columns", (200, 33))
@pytest.mark.parametrize("kind", KINDS)
def test_any_rows_in_any_order(kind: str, columns: int) -> None:
    precision, tolerance = KINDS[kind]
    compiled, w = library(kind.partition(",")[0], 64, columns, precision=precision)
    with compiled:
        # Codes stay unpacked on a machine without a dot product of bytes. There are no runs then, and each
        # row reads its own matrix.
        has_runs = "int" not in kind or panel_of(host_isa(), i8, i4).group == 4
        assert ("loop.runs" in compiled.ir("loop")) == has_runs
        for n, order in (
            (1, "one"),
            (7, "mixed"),
            (40, "sorted"),
            (90, "sorted"),
            (90, "one"),
            (90, "mixed"),
        ):
            x, index = rows_of(n, 64, order)
            y = compiled(x, index, w) if kind.startswith("run") else compiled(x, index)
            close(y, x, w, index, tolerance)


@pytest.mark.parametrize("kind", ("float", "int4 int8", "int4 bf16"))
def test_known_rows_with_an_epilogue(kind: str) -> None:
    compiled, w = library(kind, 64, 200, epilogue=True, rows=300)
    x, index = rows_of(300, 64, "sorted")
    y = np.einsum("sk,skn->sn", x, w[index])
    with compiled:
        found = compiled(x, index)
    expected = y + 1 / (1 + np.exp(-y))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2 * np.abs(expected).max())


def test_long_sums() -> None:
    """The loop over blocks of a long sum is outside of the loop over runs."""
    compiled, w = library("float", 5000, 16)
    with compiled:
        x, index = rows_of(90, 5000, "sorted")
        close(compiled(x, index), x, w, index, 1e-5)


@pytest.mark.parametrize("kind", ("int4 int8", "int4 bf16", "float, bf16"))
def test_a_row_is_the_same_among_any_others(kind: str) -> None:
    """A row has the same result to the bit among any other rows, so that a server's answer does not depend on
    other requests.
    """
    if kind != "int4 int8" and not host_isa().tiles:
        pytest.skip("rows of bf16 are independent of others only in matrix registers")
    compiled, _ = library(kind.partition(",")[0], 256, 48, precision="bf16" if "," in kind else None)
    with compiled:
        x, index = rows_of(90, 256, "sorted")
        alone = np.concatenate([compiled(x[i : i + 1], index[i : i + 1]) for i in range(90)])
        for order in (np.arange(90), np.arange(30), np.random.default_rng(0).permutation(90)):
            np.testing.assert_array_equal(compiled(x[order], index[order]), alone[order])


def test_indices_out_of_range() -> None:
    """Negative indices count from the end, and indices out of range are clamped, as in a gather."""
    compiled, w = library("float", 16, 24)
    x, _ = rows_of(6, 16, "one")
    index = np.array([-1, -9, 99, 4, -5, 1 << 40])
    with compiled:
        close(compiled(x, index), x, w, np.array([4, 0, 4, 4, 0, 4]), 1e-5)


def test_qvalues_stay_two_to_a_byte() -> None:
    compiled, _ = library("int4 int8", 256, 64)
    with compiled:
        if "simd.quantized_gemm" not in compiled.ir("loop"):
            pytest.skip("this machine has no dot product of bytes")
        assert compiled.report.memory["weights_bytes"] == COUNT * (64 * 256 // 2 + 64 * 8 * 2)


def test_machines_without_dot_products() -> None:
    if not resolve("cpu:x86-64-v3").runs_here:
        pytest.skip("for x86-64 only")
    for kind in ("float", "int4 int8", "int4 bf16"):
        compiled, w = library(kind, 64, 33, target="cpu:x86-64-v3")
        with compiled:
            x, index = rows_of(40, 64, "sorted")
            close(compiled(x, index), x, w, index, 2e-2)


def test_refused() -> None:
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x", "index"))
    module.body.append(main)
    x, index = main.body.add_arg(TensorType(f32, (4, 8))), main.body.add_arg(TensorType(i64, (3,)))
    b = Builder(main.body)
    w = b(graph.Constant(value=Constant(np.zeros((2, 8, 5), np.float32), "w")))
    qvalues = b(graph.Constant(value=Constant(np.zeros((2, 5, 8), ml_dtypes.int4), "qvalues")))
    scales = b(graph.Constant(value=Constant(np.zeros((2, 5, 1), np.float32), "scales")))
    with pytest.raises(IRError, match="needs an integer for each of 4 rows"):
        b(graph.GroupedMatMul(x, w, index))
    with pytest.raises(IRError, match="needs an integer for each of 4 rows"):
        b(graph.QuantizedMatMul(x, qvalues, scales, index))
    with pytest.raises(IRError, match=r"needs qvalues \(N, K\) and scales \(N, G\)"):
        b(graph.QuantizedMatMul(x, qvalues, scales))


def test_matrices_that_nobody_chooses_do_no_harm() -> None:
    compiled, w = library("run", 16, 24)
    x, index = rows_of(40, 16, "mixed")
    index[index == 2] = 1
    with compiled:
        close(
            compiled(x, index, np.where(np.arange(COUNT)[:, None, None] == 2, np.float32(np.nan), w)),
            x,
            w,
            index,
            1e-5,
        )
