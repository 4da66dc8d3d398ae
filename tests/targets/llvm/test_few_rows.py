"""Products of a few rows with a matrix that is no constant. If its rows run along the sum (`a @ b.T`),
several sums are computed together with lanes along the rows. If they run along the result, blocks of some of
its rows are computed, many columns wide.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func, graph
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module, Value
from tilewright.ir.types import DType, TensorType, bf16, f16, f32

pytestmark = pytest.mark.every_isa


def module_of(m: int, n: int, k: int, dtype: DType, with_bias: bool, transposed: bool = True) -> Module:
    """Return a module of ``a @ b.T`` (or ``a @ b``), with or without a bias."""
    module = Module()
    names = ("a", "b", "c") if with_bias else ("a", "b")
    main = func.Func(sym_name="main", arg_names=names, result_names=("y",))
    module.body.append(main)
    a = main.body.add_arg(TensorType(dtype, (m, k)), "a")
    b = main.body.add_arg(TensorType(dtype, (n, k) if transposed else (k, n)), "b")
    g = Builder(main.body)
    y: Value = g(graph.Matmul(a, g(graph.Transpose(b, permutation=(1, 0))) if transposed else b))
    if with_bias:
        y = g(graph.Add(y, main.body.add_arg(TensorType(dtype, (n,)), "c")))
    g.insert(func.Return([y]))
    return module


def sums(library: Any) -> int:
    """Return the number of sums in the loop that carries the most."""
    return max(line.count('"sum"') for line in library.ir("loop").splitlines())


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    "m,n,k,together",
    [
        (1, 512, 300, 8),
        (4, 256, 257, 16),
        (8, 1024, 128, 16),
        (7, 37, 2000, 7),  # a prime number of columns
        (3, 10, 20, 6),
        (2, 12, 64, 8),
    ],
)
def test_values(m: int, n: int, k: int, together: int, dtype: DType, target: str) -> None:
    library = tw.compile(module_of(m, n, k, dtype, m % 2 == 0), target=target, threads=2)
    assert sums(library) == together
    check(library, m, n, k, dtype, transposed=True)


def check(library: Any, m: int, n: int, k: int, dtype: DType, transposed: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = [(m, k), (n, k) if transposed else (k, n), *([(n,)] if m % 2 == 0 else [])]
    inputs = [rng.standard_normal(s).astype(dtype.numpy) for s in shapes]
    a, b, *c = (x.astype(np.float64) for x in inputs)
    wanted = a @ (b.T if transposed else b) + (c[0] if c else 0)
    tolerance = {f32: 1e-5, f16: 2e-3, bf16: 1.6e-2}[dtype]
    found = library(*inputs).astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * k**0.5)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    "m,n,k,blocks", [(1, 4100, 192, 3), (8, 4096, 130, 3), (3, 4096, 60, 1), (4, 1000, 192, 1)]
)
def test_rows_along_the_result(m: int, n: int, k: int, blocks: int, dtype: DType, target: str) -> None:
    library = tw.compile(module_of(m, n, k, dtype, m % 2 == 0, transposed=False), target=target, threads=2)
    found = re.findall(r"r0\w*_o in 0\.\.(\d+) ", library.ir("loop"))
    assert found == ([str(blocks - 1)] if blocks > 1 else [])
    check(library, m, n, k, dtype, transposed=False)


def test_more_rows_are_packed() -> None:
    assert "simd.brgemm" in tw.compile(module_of(16, 1024, 128, f32, False)).ir("loop")
    # The matrix is too small.
    assert "simd.brgemm" in tw.compile(module_of(6, 16, 16, f32, False)).ir("loop")


@pytest.mark.parametrize("dtype", [np.float32, bf16.numpy], ids=["f32", "bf16"])
@pytest.mark.parametrize(("heads", "pages"), [(4, 8), (14, 512), (16, 512)])
def test_pages_are_read_where_they_lie(heads: int, pages: int, dtype: Any) -> None:
    """Attention of one query reads keys and values from the pages of a table without a copy: for two heads
    that share them, and for seven or eight if there may be many pages. An element is loaded once for up to
    seven heads.
    """
    rng = np.random.default_rng(0)
    table = np.array([[5, 0, 3], [2, 6, 6]], np.int64)
    keys, values = (rng.standard_normal((7, 16, 2, 8)).astype(dtype) for _ in range(2))
    q = rng.standard_normal((2, heads, 1, 8)).astype(np.float32)

    def gathered(pages: Any, table: Any) -> Any:
        found = pages[table].astype(np.float32)
        return found.reshape(2, table.shape[1] * 16, 2, 8).transpose(0, 2, 1, 3)

    def attend(q: Any, keys: Any, values: Any, table: Any) -> Any:
        return tw.nn.functional.attention(q, gathered(keys, table), gathered(values, table))

    with tw.compile(
        attend, (q, keys, values, table), dims={"table": {1: f"n<={pages}"}}, cache=False
    ) as library:
        found = library(q, keys, values, table)
        check_index, attention = library.metadata["kernels"]
        assert (check_index["name"], attention["name"]) == ("check_index", "attention")
        assert [step[0] for step in attention["trace"]].count("unroll") == 2  # loops over heads
    k, v = (np.repeat(gathered(x, table), heads // 2, axis=1).astype(np.float64) for x in (keys, values))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)
