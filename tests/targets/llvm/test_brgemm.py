from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import simd
from tilewright.ir.core import Block
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, smin, symbol
from tilewright.ir.types import BufferType, DType, bf16, f16, f32, f64
from tilewright.targets.llvm.brgemm import brgemm_function, tile_rows, tile_shape
from tilewright.targets.llvm.isa import Isa

from .jit import ISAS, MIDDLE, WIDE, exported

RNG = np.random.default_rng(0)
TWO_STEPS = replace(WIDE, name="two steps", features=("+avx512bf16", "+gfni"))
"""Zen 4, which computes 512 bits in two steps."""


def make_op(a: DType = f32, c: DType = f32, **attributes: Any) -> simd.BatchReduceGemm:
    block = Block([BufferType(a, (1,)), BufferType(a, (1,)), BufferType(c, (1,))])
    return simd.BatchReduceGemm(*block.args, **attributes)


def guarded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy that ends where a page begins which must not be accessed."""
    pages = -(-array.nbytes // mmap.PAGESIZE) + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    end = (pages - 1) * mmap.PAGESIZE
    result = whole[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
    result[...] = array
    protected = ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + end), mmap.PAGESIZE, 0)
    assert protected == 0
    return result


def random(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(dtype.numpy)


def packed(b: np.ndarray[Any, Any], nr: int) -> np.ndarray[Any, Any]:
    k, n = b.shape
    panels = -(-n // nr)
    full = np.zeros((k, panels * nr), b.dtype)
    full[:, :n] = b
    return np.ascontiguousarray(full.reshape(k, panels, nr).transpose(1, 0, 2))


def run(
    op: simd.BatchReduceGemm, isa: Isa, a: Any, b: Any, c: Any, values: dict[str, int] | None = None
) -> None:
    name, definitions, dims = brgemm_function(op, isa)
    function = exported(definitions.values(), name, len(dims))
    function(a.ctypes.data, b.ctypes.data, c.ctypes.data, *(int(evaluate(d, values or {})) for d in dims))


def check(
    isa: Isa,
    m: int,
    n: int,
    k: int,
    *,
    is_packed: bool,
    dtype: DType = f32,
    c_dtype: DType = f32,
    accumulate: bool = False,
    symbolic: str = "",
    nr: int | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Compare one product with NumPy in float64. The rows of C are wider than n, and their other columns must
    not change.
    """
    nr = nr or tile_shape(isa, c_dtype)[1]
    a, b = random((m, k), dtype), random((k, n), dtype)
    gap = 5
    c = random((m, n + gap), c_dtype)
    before = c.copy()
    expected = a.astype(np.float64) @ b.astype(np.float64) + (
        c[:, :n].astype(np.float64) if accumulate else 0
    )
    sizes: dict[str, Dim] = {"m": m, "n": n, "k": k}
    for s in symbolic:
        sizes[s] = symbol(s, 0)
    layout = {"b_panel": sizes["k"] * nr, "b_k": nr} if is_packed else {"b_panel": nr, "b_k": sizes["n"]}
    op = make_op(
        dtype,
        c_dtype,
        **sizes,
        nr=nr,
        a_m=sizes["k"],
        c_m=n + gap,
        accumulate=accumulate,
        padded=is_packed,
        **layout,
    )
    c = guarded(c)
    run(op, isa, guarded(a), guarded(packed(b, nr) if is_packed else b), c, {"m": m, "n": n, "k": k})
    np.testing.assert_allclose(c[:, :n].astype(np.float64), expected, rtol=rtol, atol=atol * max(1.0, k**0.5))
    assert np.array_equal(c[:, n:], before[:, n:])


@ISAS
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "rows"])
@pytest.mark.parametrize(
    "m,n,k", [(128, 64, 32), (1, 100, 37), (7, 33, 8), (19, 5, 3), (2, 1, 1), (32, 128, 64)]
)
def test_static(isa: Isa, is_packed: bool, m: int, n: int, k: int) -> None:
    check(isa, m, n, k, is_packed=is_packed, accumulate=m % 2 == 1)


@ISAS
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "rows"])
@pytest.mark.parametrize("symbolic", ["m", "n", "k", "mnk"])
def test_symbolic(isa: Isa, is_packed: bool, symbolic: str) -> None:
    check(isa, 13, 150, 17, is_packed=is_packed, symbolic=symbolic, accumulate=is_packed)


@ISAS
def test_every_remainder_of_columns(isa: Isa) -> None:
    n = symbol("n", 0)
    nr = tile_shape(isa, f32)[1]
    for is_packed in (True, False):
        stride: Dim = 2 * nr + 1
        op = make_op(
            m=3, n=n, k=5, nr=nr, a_m=5, c_m=stride, padded=is_packed,
            **({"b_panel": 5 * nr, "b_k": nr} if is_packed else {"b_panel": nr, "b_k": n}),
        )  # fmt: skip
        name, definitions, dims = brgemm_function(op, isa)
        function = exported(definitions.values(), name, len(dims))
        # With no columns, no memory is accessed.
        function(0, 0, 0, *(int(evaluate(d, {"n": -1})) for d in dims))
        for columns in range(2 * nr + 1):
            a, b = random((3, 5), f32), random((5, columns), f32)
            c = np.full((3, stride), 7, np.float32)
            where = guarded(packed(b, nr) if is_packed else b)
            function(
                a.ctypes.data,
                where.ctypes.data,
                c.ctypes.data,
                *(int(evaluate(d, {"n": columns})) for d in dims),
            )
            np.testing.assert_allclose(c[:, :columns], a @ b, rtol=1e-4, atol=1e-5)
            assert (c[:, columns:] == 7).all()


@ISAS
def test_every_number_of_rows(isa: Isa) -> None:
    outer = symbol("outer", 0)
    total = symbol("total", 1)
    rows = smin(32, total - 32 * outer)
    op = make_op(m=rows, n=16, k=9, nr=16, a_m=9, b_panel=9 * 16, b_k=16, c_m=16, padded=True)
    name, definitions, dims = brgemm_function(op, isa)
    assert dims == (rows,)
    function = exported(definitions.values(), name, 1)
    a, b = random((32, 9), f32), random((9, 16), f32)
    for m in range(33):
        c = np.full((32, 16), 7, np.float32)
        function(a.ctypes.data, b.ctypes.data, c.ctypes.data, m)
        np.testing.assert_allclose(c[:m], a[:m] @ b, rtol=1e-4, atol=1e-5)
        assert (c[m:] == 7).all()


@ISAS
@pytest.mark.parametrize("channels", [3, 8])
def test_convolution(isa: Isa, channels: int) -> None:
    """A convolution of 3 x 5 taps over channels-last data gives the sum over its taps for one row of
    pixels.
    """
    height, width, out = 3, 5, 20
    pixels, nr = 11, 16
    image = random((height, pixels + width - 1, channels), f32)
    weights = random((height, width, channels, out), f32)
    b = packed(weights.reshape(-1, out), nr)
    row = (pixels + width - 1) * channels
    op = make_op(
        m=pixels,
        n=out,
        k=channels,
        nr=nr,
        reductions=(height, width),
        a_m=channels,
        a_r=(row, channels),
        b_panel=height * width * channels * nr,
        b_k=nr,
        b_r=(width * channels * nr, channels * nr),
        c_m=out,
        padded=True,
    )
    c = np.zeros((pixels, out), np.float32)
    run(op, isa, image, b, c)
    expected = sum(
        image[y, x : x + pixels].astype(np.float64) @ weights[y, x]
        for y in range(height)
        for x in range(width)
    )
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-5)
    # A dilated convolution cannot be merged into longer rows.
    spread = symbol("spread", 1)
    op = make_op(
        m=pixels - 4,
        n=out,
        k=channels,
        nr=nr,
        reductions=(height, width),
        a_m=channels,
        a_r=(row, channels * spread),
        b_panel=height * width * channels * nr,
        b_k=nr,
        b_r=(width * channels * nr, channels * nr),
        c_m=out,
        padded=True,
    )
    c[:] = 7
    run(op, isa, image, b, c, {"spread": 2})
    expected = sum(
        image[y, 2 * x : 2 * x + pixels - 4].astype(np.float64) @ weights[y, x]
        for y in range(height)
        for x in range(width)
    )
    np.testing.assert_allclose(c[: pixels - 4], expected, rtol=1e-4, atol=1e-5)
    assert (c[pixels - 4 :] == 7).all()


@ISAS
@pytest.mark.parametrize(
    "a,c,tolerance", [(f64, f64, 1e-12), (f16, f32, 1e-4), (bf16, f32, 1e-4), (f16, f16, 2e-3)]
)
def test_dtypes(isa: Isa, a: DType, c: DType, tolerance: float) -> None:
    for is_packed in (True, False):
        check(
            isa,
            9,
            45,
            24,
            is_packed=is_packed,
            dtype=a,
            c_dtype=c,
            rtol=tolerance,
            atol=tolerance,
            nr=tile_shape(isa, c)[1],
        )


@ISAS
@pytest.mark.parametrize("nr", [4, 8, 16, 32, 64, 128])
def test_panel_widths(isa: Isa, nr: int) -> None:
    check(isa, 10, 150, 6, is_packed=True, nr=nr)


@ISAS
def test_strided_k_and_empty(isa: Isa) -> None:
    a, b = random((6, 12), f32), random((6, 16), f32)  # The rows of a are read as columns.
    c = np.zeros((12, 16), np.float32)
    run(make_op(m=12, n=16, k=6, nr=16, a_m=1, a_k=12, b_panel=96, b_k=16, c_m=16), isa, a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-5)
    run(
        make_op(m=12, n=16, k=symbol("k"), nr=16, a_m=1, a_k=12, b_panel=96, b_k=16, c_m=16),
        isa,
        a,
        b,
        c,
        {"k": 0},
    )
    assert (c == 0).all()


def test_equal_tiles_share_their_functions() -> None:
    common = {"k": 64, "nr": 16, "a_m": 64, "b_panel": 1024, "b_k": 16, "padded": True}
    first = brgemm_function(make_op(m=12, n=32, c_m=32, **common), MIDDLE)
    again = brgemm_function(make_op(m=12, n=32, c_m=32, a_offset=symbol("x"), **common), MIDDLE)
    longer = brgemm_function(make_op(m=24, n=32, c_m=48, **common), MIDDLE)
    assert first == again
    assert longer[0] != first[0]
    assert set(longer[1]) - {longer[0]} == set(first[1]) - {first[0]}


@pytest.mark.parametrize("m,n,k", [(7, 200, 300), (14, 40, 9), (8, 64, 64)])
def test_rows_that_fit_half_a_panel_are_one_block(m: int, n: int, k: int) -> None:
    check(WIDE, m, n, k, is_packed=True, accumulate=m == 8)
    op = make_op(m=m, n=128, k=k, nr=64, a_m=k, b_panel=64 * k, b_k=64, c_m=128, padded=True)
    name, definitions, _ = brgemm_function(op, WIDE)
    (tile,) = (text for other, text in definitions.items() if other != name)
    assert tile.count("store <16 x float>") == 2 * m  # Two vectors in every row.


@pytest.mark.parametrize(("rows", "stores"), [(8, 16), (12, 24), (14, 28)])
def test_two_blocks_of_whole_panels_where_vectors_take_two_steps(rows: int, stores: int) -> None:
    check(TWO_STEPS, rows, 200, 30, is_packed=True)
    op = make_op(m=rows, n=128, k=30, nr=64, a_m=30, b_panel=1920, b_k=64, c_m=128, padded=True)
    name, definitions, _ = brgemm_function(op, TWO_STEPS)
    (tile,) = (text for other, text in definitions.items() if other != name)
    assert tile.count("store <16 x float>") == stores  # of the only tile


def test_columns_that_fill_half_a_vector_take_halves_where_these_take_half_the_time() -> None:
    assert TWO_STEPS.two_steps
    assert not replace(TWO_STEPS, features=(*TWO_STEPS.features, "+avxvnni")).two_steps
    for n, is_packed in ((4, True), (24, True), (24, False), (52, False), (56, True), (84, True)):
        check(TWO_STEPS, 11, n, 7, is_packed=is_packed, accumulate=n == 56)
    common = {"m": 9, "n": 24, "k": 7, "nr": 64, "a_m": 7, "b_panel": 448, "b_k": 64, "c_m": 24}
    for isa, stores in ((TWO_STEPS, 3 * 9), (WIDE, 0)):
        name, definitions, _ = brgemm_function(make_op(padded=True, **common), isa)
        (tile,) = (text for other, text in definitions.items() if other != name)
        assert tile.count("store <8 x float>") == stores


def test_register_budget() -> None:
    assert tile_shape(MIDDLE, f32) == (6, 16)
    assert tile_shape(WIDE, f32) == (6, 64)
    for isa in (WIDE, MIDDLE):
        for vectors in (1, 2, 4):
            rows = tile_rows(isa, vectors)
            assert rows * vectors + vectors + 1 <= isa.vector_registers


def test_unsupported_dtypes_are_named() -> None:
    with pytest.raises(NotImplementedError, match="f64 and f64 into f32"):
        brgemm_function(make_op(f64, f32, m=1, n=1, k=1, nr=1, a_m=1, b_panel=1, b_k=1, c_m=1), MIDDLE)
