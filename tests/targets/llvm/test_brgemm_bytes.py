"""`simd.brgemm` on 8-bit integers is exact with AMX tiles, with dot products, and by widening."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import simd
from tilewright.dialects.weight_form import joined_nibbles
from tilewright.ir.core import Block
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import BufferType, DType, i4, i8, i32, u8
from tilewright.targets.llvm.brgemm import panel_of
from tilewright.targets.llvm.isa import Isa

from .jit import MIDDLE, NARROW, WIDE
from .test_brgemm import guarded, run
from .test_brgemm_pairs import in_panels

RNG = np.random.default_rng(0)
SIGNS = [(i8, i8), (i8, u8), (u8, i8), (u8, u8)]
PAIRS_OF_SIGNS = pytest.mark.parametrize("a,b", SIGNS, ids=lambda t: t.label)
ISAS = pytest.mark.parametrize(
    "isa",
    [
        WIDE,
        MIDDLE,
        NARROW,
        replace(WIDE, name="words-wide", features=("+avx512bw",)),
        replace(MIDDLE, name="words-middle", features=("+avx2",)),
        replace(NARROW, name="words-narrow", features=("+sse4.2",)),
        replace(WIDE, name="dots-wide", features=("+avx512bw", "+avx512vnni")),
        replace(MIDDLE, name="dots-middle", features=("+avx2", "+avxvnni")),
        replace(MIDDLE, name="dots-signs", features=("+avx2", "+avxvnni", "+avxvnniint8")),
        replace(WIDE, name="tiles", features=("+amx-tile", "+amx-int8")),
    ],
    ids=lambda isa: isa.name,
)


def numbers(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    """Return random integers. The extremes, for which saturating instructions are wrong, are more frequent
    than others.
    """
    low, high = dtype.limits
    x = RNG.integers(low, high + 1, shape)
    return np.where(RNG.random(shape) < 0.3, np.where(RNG.random(shape) < 0.5, low, high), x).astype(
        dtype.numpy
    )


def check(
    isa: Isa, a_type: DType, b_type: DType, m: int, n: int, k: int, *,
    taps: int = 1, accumulate: bool = False, symbolic: str = "", packed: bool = True,
    panel: simd.Panel | None = None,
) -> None:  # fmt: skip
    """Compare the sum of `taps` products with NumPy. The rows of C are wider than n. The numbers after a row
    of A must not be used, and the memory after A must not be read.
    """
    panel = panel or (panel_of(isa, a_type, b_type) if packed else simd.Panel(16))
    gap = 3
    a, b = numbers((taps, m, k + gap), a_type), numbers((taps, k, n), i4 if panel.halves else b_type)
    c = RNG.integers(-(2**31), 2**31, (m, n + gap), np.int32)
    before = c.copy()
    expected = np.einsum("tmk,tkn->mn", a[..., :k].astype(np.int64), b.astype(np.int64))
    if accumulate:
        expected += c[:, :n]
    sizes: dict[str, Dim] = {
        name: symbol(name, 0) if name in symbolic else v for name, v in (("m", m), ("n", n), ("k", k))
    }
    rows = panel.padded_rows(sizes["k"])
    row = panel.nr // (2 if panel.halves else 1)
    layout = (
        {"b_panel": taps * rows * row, "b_k": panel.group * row, "b_r": (rows * row,)}
        if packed
        else {"b_panel": panel.nr, "b_k": sizes["n"], "b_r": (sizes["k"] * sizes["n"],)}
    )
    op = simd.BatchReduceGemm(
        *Block([BufferType(t, (1,)) for t in (a_type, b_type, i32)]).args,
        **sizes,
        nr=panel.nr,
        group=panel.group,
        halves=panel.halves,
        a_m=sizes["k"] + gap,
        c_m=n + gap,
        accumulate=accumulate,
        padded=packed,
        reductions=(taps,),
        a_r=(m * (k + gap),),
        **layout,
    )
    laid_out = b
    if packed:  # The operand has the layout for the operation's own k, which may be symbolic.
        depth = panel.depth if "k" in symbolic else panel.padded_rows(k) if k else 1
        full = np.zeros((taps, -(-k // depth) * depth, n), b.dtype)
        full[:, :k] = b
        laid_out = in_panels(full, panel)
        if panel.halves:
            laid_out = joined_nibbles(laid_out.astype(np.int8) & 15, -2)
    c = guarded(c)
    run(op, isa, guarded(a.reshape(-1)[: a.size - gap]), guarded(laid_out), c, {"m": m, "n": n, "k": k})
    np.testing.assert_array_equal(c[:, :n], expected.astype(np.int32))  # modulo 2**32
    assert np.array_equal(c[:, n:], before[:, n:])


@ISAS
@PAIRS_OF_SIGNS
def test_static(isa: Isa, a: DType, b: DType) -> None:
    check(isa, a, b, 35, 31, 70, accumulate=True)


@ISAS
@pytest.mark.parametrize("m,n,k", [(64, 64, 128), (1, 100, 37), (3, 20, 1), (19, 20, 66), (16, 20, 67)])
def test_edges(isa: Isa, m: int, n: int, k: int) -> None:
    check(isa, u8, i8, m, n, k)


@ISAS
@pytest.mark.parametrize("m,n,k", [(1, 100, 37), (13, 20, 66)])
def test_signed_edges(isa: Isa, m: int, n: int, k: int) -> None:
    """Extreme signed factors are right also where only unsigned times signed bytes is an instruction, for
    which the left factor is shifted.
    """
    check(isa, i8, i8, m, n, k)


@ISAS
def test_symbolic(isa: Isa) -> None:
    check(isa, u8, i8, 13, 150, 17, symbolic="mnk", accumulate=True)
    check(isa, i8, i8, 33, 64, 64, symbolic="mk")


@ISAS
@pytest.mark.parametrize("channels", [3, 40])
def test_several_taps(isa: Isa, channels: int) -> None:
    check(isa, i8, u8, 21, 40, channels, taps=3)


@ISAS
def test_plain_rows(isa: Isa) -> None:
    for a, b in ((u8, i8), (i32, i32)):
        check(isa, a, b, 9, 45, 23, packed=False, accumulate=True)


@pytest.mark.parametrize("isa", [MIDDLE, NARROW, replace(NARROW, name="scalars", vector_bits=64)])
@pytest.mark.parametrize("a", [i8, u8])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_two_columns_in_a_byte(isa: Isa, a: DType, group: int) -> None:
    panel = simd.Panel(2 * isa.lanes(32), group, group, halves=True)
    check(isa, a, i8, 5, 21, 39, taps=3, accumulate=True, panel=panel)
    check(isa, a, i8, 1, 40, 8, panel=panel)
    check(isa, a, i8, 7, 3, 1, symbolic="m", panel=panel)


def test_sums_wrap_around() -> None:
    check(NARROW, u8, u8, 2, 16, 70_000)
