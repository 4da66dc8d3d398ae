"""`simd.brgemm` on interleaved pairs of bf16 rows, by AMX tiles, by dot products, and by widening."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dialects.simd import Panel, depth_block
from tilewright.ir.interpreter import Frame
from tilewright.ir.symbolic import Dim, smin, symbol
from tilewright.ir.types import bf16, f32
from tilewright.targets.llvm.brgemm import brgemm_function, panel_of
from tilewright.targets.llvm.isa import Isa

from .jit import MIDDLE, NARROW, WIDE, exported
from .test_brgemm import guarded, make_op, random, run

DOTS = replace(WIDE, name="dots", features=("+avx512bf16",))
TILES = replace(WIDE, name="tiles", features=("+amx-tile", "+amx-bf16"))


ISAS = pytest.mark.parametrize("isa", [WIDE, MIDDLE, NARROW, DOTS, TILES], ids=lambda isa: isa.name)


def in_panels(b: np.ndarray[Any, Any], panel: Panel) -> np.ndarray[Any, Any]:
    """Return ``(taps, k, n)`` in panels: ``(panels, taps, k // group, nr, group)``."""
    taps, k, n = b.shape
    panels, rows = -(-n // panel.nr), panel.padded_rows(k)
    assert isinstance(rows, int)
    full = np.zeros((taps, rows, panels * panel.nr), b.dtype)
    full[:, :k, :n] = b
    return np.ascontiguousarray(
        full.reshape(taps, rows // panel.group, panel.group, panels, panel.nr).transpose(3, 0, 1, 4, 2)
    )


def check(
    isa: Isa, m: int, n: int, k: int, *, taps: int = 1, accumulate: bool = False, symbolic: str = ""
) -> None:
    """Compare the sum of `taps` products with NumPy in float64. The rows of A are longer than k; the numbers
    after k must not be used, and are NaN.
    """
    panel = panel_of(isa, bf16, bf16)
    gap = 3
    a = np.full((taps, m, k + gap), np.nan, np.float32).astype(bf16.numpy)
    a[..., :k] = random((taps, m, k), bf16)
    b = random((taps, k, n), bf16)
    c = random((m, n + gap), f32)
    before = c.copy()
    expected = np.einsum("tmk,tkn->mn", a[..., :k].astype(np.float64), b.astype(np.float64))
    if accumulate:
        expected += c[:, :n]
    sizes: dict[str, Dim] = {"m": m, "n": n, "k": k}
    for s in symbolic:
        sizes[s] = symbol(s, 0)
    rows = panel.padded_rows(sizes["k"])
    op = make_op(
        bf16,
        f32,
        **sizes,
        nr=panel.nr,
        group=2,
        a_m=sizes["k"] + gap,
        c_m=n + gap,
        accumulate=accumulate,
        padded=True,
        reductions=(taps,) if taps > 1 else (),
        a_r=(m * (k + gap),) if taps > 1 else (),
        b_r=(rows * panel.nr,) if taps > 1 else (),
        b_panel=taps * rows * panel.nr,
        b_k=2 * panel.nr,
    )
    # The operand has the layout for the operation's own k, which may be symbolic.
    laid_out = in_panels(b, panel if "k" not in symbolic else replace(panel, depth=max(panel.depth, 2)))
    if "k" in symbolic and panel.depth > 2:
        full = np.zeros((taps, -(-k // 32) * 32, n), b.dtype)
        full[:, :k] = b
        laid_out = in_panels(full, panel)
    c = guarded(c)
    tight = np.ascontiguousarray(a).reshape(-1)
    run(op, isa, guarded(tight[: tight.size - gap]), guarded(laid_out), c, {"m": m, "n": n, "k": k})
    np.testing.assert_allclose(c[:, :n], expected, rtol=1e-4, atol=1e-5 * max(1.0, (k * taps) ** 0.5) + 1e-6)
    assert np.array_equal(c[:, n:], before[:, n:])


@ISAS
@pytest.mark.parametrize(
    "m,n,k",
    [
        (64, 64, 64),
        (1, 100, 37),
        (7, 33, 8),
        (19, 5, 3),
        (2, 1, 1),
        (48, 128, 80),
        (35, 31, 24),
        (16, 16, 100),
    ],
)
def test_static(isa: Isa, m: int, n: int, k: int) -> None:
    check(isa, m, n, k, accumulate=m % 2 == 1)


@ISAS
@pytest.mark.parametrize("symbolic", ["m", "n", "k", "mnk"])
@pytest.mark.parametrize("m,n,k", [(13, 150, 17), (33, 64, 64), (48, 40, 96)])
def test_symbolic(isa: Isa, symbolic: str, m: int, n: int, k: int) -> None:
    check(isa, m, n, k, symbolic=symbolic, accumulate=m == 13)


@ISAS
@pytest.mark.parametrize("channels", [3, 8, 24, 40, 64])
def test_several_taps(isa: Isa, channels: int) -> None:
    check(isa, 21, 40, channels, taps=3)


@ISAS
def test_every_number_of_rows(isa: Isa) -> None:
    panel = panel_of(isa, bf16, bf16)
    outer, total = symbol("outer", 0), symbol("total", 1)
    rows = smin(64, total - 64 * outer)
    k = 48
    op = make_op(
        bf16,
        f32,
        m=rows,
        n=32,
        k=k,
        nr=panel.nr,
        group=2,
        a_m=k,
        b_panel=k * panel.nr,
        b_k=2 * panel.nr,
        c_m=32,
        padded=True,
    )
    name, definitions, dims = brgemm_function(op, isa)
    assert dims == (rows,)
    function = exported(definitions.values(), name, 1)
    a, b = random((64, k), bf16), random((k, 32), bf16)
    packed = in_panels(b[None], panel)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for m in range(65):
        c = np.full((64, 32), 7, np.float32)
        left = guarded(a[: max(m, 1)])
        function(left.ctypes.data, packed.ctypes.data, c.ctypes.data, m)
        np.testing.assert_allclose(c[:m], expected[:m], rtol=1e-4, atol=1e-4)
        assert (c[m:] == 7).all()


@ISAS
@pytest.mark.parametrize("many", ["known", "symbolic"])
@pytest.mark.parametrize(
    ("lines", "pixels"), [(1, 7), (2, 14), (5, 7), (3, 16), (2, 21), (2, 56), (3, 33), (0, 7)]
)
def test_lines_of_an_image(isa: Isa, lines: int, pixels: int, many: str) -> None:
    """A product with 3 taps along a line of pixels gives the right result for blocks of rows with gaps in the
    image and in the result; the gaps do not change.
    """
    panel, channels, out, taps = panel_of(isa, bf16, bf16), 40, 50, 3
    number = symbol("lines", 0) if many == "symbolic" else lines
    image = random((lines, pixels + taps - 1, channels), bf16)
    weights = random((taps, channels, out), bf16)
    rows = panel.padded_rows(channels)
    c = random((max(lines, 1), pixels + 1, out), f32)
    before = c.copy()
    op = make_op(
        bf16,
        f32,
        m=pixels,
        n=out,
        k=channels,
        nr=panel.nr,
        group=2,
        a_m=channels,
        c_m=out,
        padded=True,
        accumulate=lines == 5,
        lines=number,
        a_line=(pixels + taps - 1) * channels,
        c_line=(pixels + 1) * out,
        reductions=(taps,),
        a_r=(channels,),
        b_r=(rows * panel.nr,),
        b_panel=taps * rows * panel.nr,
        b_k=2 * panel.nr,
    )
    expected = np.zeros((lines, pixels, out))
    for tap in range(taps):
        expected += image[:, tap : tap + pixels].astype(np.float64) @ weights[tap].astype(np.float64)
    interpreted = c.copy()
    packed = in_panels(weights, panel)
    op.interpret(Frame(None, {"lines": lines}, {}), image, packed, interpreted)
    left = guarded(image) if lines else image
    c = guarded(c)
    run(op, isa, left, guarded(packed), c, {"lines": lines})
    if lines == 5:
        expected += before[:, :pixels]
    for found in (c, interpreted):
        np.testing.assert_allclose(found[:lines, :pixels], expected, rtol=1e-4, atol=1e-4)
        assert np.array_equal(found[:, pixels:], before[:, pixels:])
        assert lines or np.array_equal(found, before)


def test_blocks_of_k() -> None:
    assert [depth_block(k, 32, 2) for k in (64, 24, 16, 80, 96, 144, 7, 34, 62)] == [
        32,
        24,
        16,
        20,
        32,
        24,
        32,
        32,
        32,
    ]
    panel = Panel(32, 2, 32)
    assert [panel.padded_rows(k) for k in (64, 24, 7, 34, 80)] == [64, 24, 32, 64, 80]
    assert Panel(64, 2, 2).padded_rows(7) == 8
    assert Panel(64).padded_rows(7) == 7


@pytest.mark.parametrize("cache_resident", [False, True])
def test_a_panel_that_is_cache_resident_is_not_prefetched(cache_resident: bool) -> None:
    panel = panel_of(TILES, bf16, bf16)
    op = make_op(
        bf16,
        f32,
        m=64,
        n=64,
        k=64,
        nr=panel.nr,
        a_m=64,
        b_panel=32 * panel.nr * 2,
        b_k=panel.nr * 2,
        c_m=64,
        padded=True,
        group=2,
        cache_resident=cache_resident,
    )
    _, definitions, _ = brgemm_function(op, TILES)
    assert any("llvm.prefetch" in text for text in definitions.values()) != cache_resident


@pytest.mark.parametrize("isa", [WIDE, DOTS], ids=lambda isa: isa.name)
def test_the_next_line_of_the_tiles_own_rows_is_prefetched(isa: Isa) -> None:
    """Rows of the next tile, 4 KiB apart like these, would be too many for a set of the first-level cache."""
    panel = panel_of(isa, bf16, bf16, 8)
    op = make_op(
        bf16,
        f32,
        m=12,
        n=8,
        k=2048,
        nr=panel.nr,
        a_m=2048,
        b_panel=2048 * panel.nr,
        b_k=panel.nr * 2,
        c_m=8,
        padded=True,
        group=2,
    )
    _, definitions, _ = brgemm_function(op, isa)
    (tile,) = (text for name, text in definitions.items() if name.startswith("tile"))
    found = re.findall(r"(%\S+) = getelementptr (?:nuw )?i8, ptr (%\S+), i64 (\d+)", tile)
    steps = {value: (base, int(size)) for value, base, size in found}
    offsets = []
    for pointer in re.findall(r"prefetch\.p0\(ptr (%\S+), i32 0, i32 3", tile):
        offset = 0
        while pointer in steps:
            pointer, size = steps[pointer]
            offset += size
        assert re.search(rf"{re.escape(pointer)} = phi ptr \[ %a, ", tile)  # the current column of A
        offsets.append(offset)
    assert offsets == [4096 * row + 64 for row in range(12)]


@pytest.mark.parametrize(("m", "lines", "tiles"), [(1, 1, False), (2, 1, False), (3, 1, True), (2, 2, True)])
def test_a_few_rows_are_multiplied_in_vectors(m: int, lines: int, tiles: bool) -> None:
    """A product of one or two rows uses vectors, because configuring the tiles would take longer."""
    panel = panel_of(TILES, bf16, bf16)
    op = make_op(
        bf16,
        f32,
        m=m,
        n=64,
        k=64,
        nr=panel.nr,
        a_m=64,
        b_panel=32 * panel.nr * 2,
        b_k=panel.nr * 2,
        c_m=64,
        padded=True,
        group=2,
        lines=lines,
        a_line=64 * m,
        c_line=64 * m,
    )
    _, definitions, _ = brgemm_function(op, TILES)
    assert any("tdpbf16ps" in text for text in definitions.values()) == tiles


@pytest.mark.parametrize(
    ("m", "cache_resident", "streams"),
    [(128, False, "a"), (128, True, "a"), (64, True, ""), (32, False, ""), (32, True, "b")],
)
def test_what_is_used_once_leaves_the_first_cache_to_the_other_factor(
    m: int, cache_resident: bool, streams: str
) -> None:
    """A factor that is used only once is loaded with a hint that leaves the first-level cache to the other
    one. A cache-resident panel is not prefetched. Tiles 4 and 5 hold rows of A, 6 and 7 columns of B.
    """
    panel = panel_of(TILES, bf16, bf16)
    op = make_op(
        bf16,
        f32,
        m=m,
        n=64,
        k=64,
        nr=panel.nr,
        a_m=64,
        b_panel=32 * panel.nr * 2,
        b_k=panel.nr * 2,
        c_m=64,
        padded=True,
        cache_resident=cache_resident,
        group=2,
    )
    _, definitions, _ = brgemm_function(op, TILES)
    text = "".join(definitions.values())
    hinted = set(re.findall(r"tileloaddt164\(i8 (\d)", text))
    assert hinted == {"a": {"4", "5"}, "b": {"6", "7"}, "": set()}[streams]
    assert ("llvm.prefetch" in text) != cache_resident
