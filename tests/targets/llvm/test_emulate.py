"""Emulated x86 instructions give the bits of the processor's own, or NumPy's results where this processor
lacks them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.ir.types import bf16
from tilewright.targets.llvm.emulate import EMULATED, emulate

from .jit import compile_functions, has_instructions

Array = np.ndarray[Any, Any]
COUNT = 200
FLOATS, NUMBERS = "<16 x float>", "<16 x i32>"
MASKED = f"{FLOATS} zeroinitializer, i16 -1"


def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def floats(lanes: int, seed: int) -> Array:
    """Return rows of float32 numbers of every magnitude, with subnormal numbers, zeros, infinities and
    NaN.
    """
    rng = random(seed)
    size = COUNT * lanes
    x = rng.standard_normal(size) * np.exp2(rng.integers(-140, 127, size))
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -1e-45,
        3e38,
        0.75,
        1.5,
        2.0**-126,
        2.5,
        -2.5,
    ]
    x[rng.integers(0, size, size // 4)] = rng.choice(special, size // 4)
    return x.astype(np.float32).reshape(COUNT, lanes)


def halves(lanes: int, seed: int) -> Array:
    return (floats(lanes, seed).view(np.uint32) >> 16).astype(np.uint16)


def numbers(dtype: type, lanes: int, seed: int) -> Array:
    """Return rows of integers, in which extremes are more frequent."""
    info = np.iinfo(dtype)
    x = random(seed).integers(info.min, info.max + 1, (COUNT, lanes))
    extremes = random(seed + 1).choice([info.min, info.max, 0, 1], x.shape)
    return np.where(random(seed + 2).random(x.shape) < 0.3, extremes, x).astype(dtype)


def function(text: str, pointers: int) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * pointers)(compile_functions(text)("entry"))


def run(
    intrinsic: str, result: str, size: int, given: list[tuple[str, Array]], rest: str, *, emulated: bool
) -> Array:
    """Return the intrinsic's result, `size` bytes of the vector type `result`, for each row of the
    operands.
    """
    loads = "".join(f"  %v{i} = load {kind}, ptr %p{i}, align 1\n" for i, (kind, _) in enumerate(given))
    pointers = ", ".join(f"ptr %p{i}" for i in range(len(given)))
    operands = ", ".join(f"{kind} %v{i}" for i, (kind, _) in enumerate(given))
    text = (
        f"define void @entry({pointers}, ptr %out) {{\n{loads}"
        f"  %r = call {result} @llvm.x86.{intrinsic}({operands}{rest})\n"
        "  store "
        f"{result} %r, ptr %out, align 1\n  ret void\n}}\n"
    )
    if emulated:
        text = emulate(text, EMULATED, threads=False)
        assert "tw.emulated" in text
    call = function(text, len(given) + 1)
    out = np.zeros((COUNT, size), np.uint8)
    for row in range(COUNT):
        call(*(x[row].ctypes.data for _, x in given), out[row].ctypes.data)
    return out


def equal(a: Array, b: Array, dtype: Any) -> None:
    """Check for equal bits, and for NaN of any kind in equal places."""
    a, b = a.view(dtype), b.view(dtype)
    with np.errstate(all="ignore"):
        both = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    bits = {2: np.uint16, 4: np.uint32}[a.itemsize]
    np.testing.assert_array_equal(a.view(bits)[~both], b.view(bits)[~both])


SCALES = np.where(
    random(5).random((COUNT, 16)) < 0.8, random(6).standard_normal((COUNT, 16)) * 60, floats(16, 7)
)

FUNCTIONS = {
    "getexp": ("avx512f", "avx512.mask.getexp.ps.512", [floats(16, 0)], f", {MASKED}, i32 4"),
    "getmant": ("avx512f", "avx512.mask.getmant.ps.512", [floats(16, 0)], f", i32 15, {MASKED}, i32 4"),
    "reduce to nearest": (
        "avx512dq",
        "avx512.mask.reduce.ps.512",
        [floats(16, 0)],
        f", i32 0, {MASKED}, i32 4",
    ),
    "reduce down": ("avx512dq", "avx512.mask.reduce.ps.512", [floats(16, 0)], f", i32 1, {MASKED}, i32 4"),
    "scalef": (
        "avx512f",
        "avx512.mask.scalef.ps.512",
        [floats(16, 0), SCALES.astype(np.float32)],
        f", {MASKED}, i32 4",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_floats(name: str) -> None:
    feature, intrinsic, given, rest = FUNCTIONS[name]
    if not has_instructions(feature):
        pytest.skip(f"no {feature} to compare with; test_mathlib.py tests the functions that use it")
    operands = [(FLOATS, x) for x in given]
    found, expected = (run(intrinsic, FLOATS, 64, operands, rest, emulated=e) for e in (True, False))
    equal(found, expected, np.float32)


def test_reciprocals_are_as_good_as_the_instruction_s() -> None:
    x = floats(16, 0)
    found = run("avx512.rcp14.ps.512", FLOATS, 64, [(FLOATS, x)], f", {MASKED}", emulated=True).view(
        np.float32
    )
    normal = np.isfinite(x) & (np.abs(x) > 1e-38) & (np.abs(x) < 1e37)
    assert np.abs(found[normal].astype(np.float64) * x[normal] - 1).max() <= 2.0**-13
    assert np.isinf(found[x == 0]).all()
    assert not found[np.isinf(x)].any()


def test_lookup() -> None:
    table, index = floats(16, 0), numbers(np.int32, 16, 1)
    found = run("avx512.permvar.sf.512", FLOATS, 64, [(FLOATS, table), (NUMBERS, index)], "", emulated=True)
    equal(found, np.take_along_axis(table, index & 15, 1), np.float32)


def test_lookup_in_two_registers() -> None:
    low, high, index = floats(16, 0), floats(16, 1), numbers(np.int32, 16, 2)
    operands = [(FLOATS, low), (NUMBERS, index), (FLOATS, high)]
    found = run("avx512.vpermi2var.ps.512", FLOATS, 64, operands, "", emulated=True)
    equal(found, np.take_along_axis(np.concatenate([low, high], 1), index & 31, 1), np.float32)


def test_two_vectors_to_bf16() -> None:
    high, low = floats(16, 0), floats(16, 1)
    kind = "<32 x bfloat>"
    found = run("avx512bf16.cvtne2ps2bf16.512", kind, 64, [(FLOATS, high), (FLOATS, low)], "", emulated=True)
    both = np.concatenate([low, high], 1)
    flushed = np.where(np.abs(both) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), both), both)
    with np.errstate(all="ignore"):
        equal(found, flushed.astype(bf16.numpy), bf16.numpy)


@pytest.mark.parametrize("bits", (128, 256, 512))
def test_dot_products_of_bytes(bits: int) -> None:
    lanes = bits // 32
    total, a, b = numbers(np.int32, lanes, 0), numbers(np.uint8, 4 * lanes, 1), numbers(np.int8, 4 * lanes, 2)
    raw = f"<{4 * lanes} x i8>"
    kind = f"<{lanes} x i32>"
    given = [(kind, total), (raw, a), (raw, b)]
    found = run(f"avx512.vpdpbusd.{bits}", kind, 4 * lanes, given, "", emulated=True).view(np.int32)
    quads = (a.astype(np.int32) * b).reshape(COUNT, lanes, 4).sum(-1)
    np.testing.assert_array_equal(found, (total + quads.astype(np.int64)).astype(np.int32))


@pytest.mark.parametrize("signs", ("ss", "uu"))
def test_dot_products_of_bytes_of_equal_signs(signs: str) -> None:
    dtype = np.int8 if signs == "ss" else np.uint8
    total, a, b = numbers(np.int32, 8, 0), numbers(dtype, 32, 1), numbers(dtype, 32, 2)
    given = [("<8 x i32>", total), ("<32 x i8>", a), ("<32 x i8>", b)]
    found = run(f"avx2.vpdpb{signs}d.256", "<8 x i32>", 32, given, "", emulated=True).view(np.int32)
    quads = (a.astype(np.int64) * b.astype(np.int64)).reshape(COUNT, 8, 4).sum(-1)
    np.testing.assert_array_equal(found, (total + quads).astype(np.int32))


@pytest.mark.parametrize(("name", "lanes"), (("avx512.pmaddw.d.512", 16), ("avx2.pmadd.wd", 8)))
def test_dot_products_of_words(name: str, lanes: int) -> None:
    a, b = numbers(np.int16, 2 * lanes, 0), numbers(np.int16, 2 * lanes, 1)
    kind = f"<{2 * lanes} x i16>"
    found = run(name, f"<{lanes} x i32>", 4 * lanes, [(kind, a), (kind, b)], "", emulated=True).view(np.int32)
    pairs = (a.astype(np.int64) * b.astype(np.int64)).reshape(COUNT, lanes, 2).sum(-1)
    np.testing.assert_array_equal(found, pairs.astype(np.int32))


@pytest.mark.parametrize("bits", (128, 256, 512))
def test_dot_products_of_bf16(bits: int) -> None:
    lanes = bits // 32
    kind, raw = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
    name = f"avx512bf16.dpbf16ps.{bits}"
    if has_instructions("avx512bf16"):
        given = [(kind, floats(lanes, 0)), (raw, halves(2 * lanes, 1)), (raw, halves(2 * lanes, 2))]
        found, expected = (run(name, kind, 4 * lanes, given, "", emulated=e) for e in (True, False))
        equal(found, expected, np.float32)
    total = random(3).standard_normal((COUNT, lanes)).astype(np.float32)
    a, b = (random(seed).standard_normal((COUNT, 2 * lanes)).astype(bf16.numpy) for seed in (4, 5))
    found = run(name, kind, 4 * lanes, [(kind, total), (raw, a), (raw, b)], "", emulated=True).view(
        np.float32
    )
    pairs = (a.astype(np.float64) * b.astype(np.float64)).reshape(COUNT, lanes, 2).sum(-1)
    np.testing.assert_allclose(found, total + pairs, rtol=1e-5, atol=1e-5)


PRODUCTS = {"tdpbf16ps": "amx-bf16", **{f"tdpb{a}{b}d": "amx-int8" for a in "su" for b in "su"}}


@pytest.mark.parametrize(("rows", "depth", "columns"), ((16, 16, 16), (5, 7, 9), (1, 1, 1)))
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_tiles(name: str, rows: int, depth: int, columns: int) -> None:
    """Tile products compute C += A @ B from memory to memory for `depth` groups of 32 bits. B has a row for
    each group.
    """
    text = f"""define void @entry(ptr %config, ptr %a, ptr %b, ptr %c) {{
  call void @llvm.x86.ldtilecfg(ptr %config)
  call void @llvm.x86.tileloadd64(i8 0, ptr %c, i64 64)
  call void @llvm.x86.tileloadd64(i8 1, ptr %a, i64 64)
  call void @llvm.x86.tileloaddt164(i8 2, ptr %b, i64 64)
  call void @llvm.x86.{name}(i8 0, i8 1, i8 2)
  call void @llvm.x86.tilestored64(i8 0, ptr %c, i64 64)
  call void @llvm.x86.tilerelease()
  ret void
}}"""
    config = np.zeros(64, np.uint8)
    config[0] = 1
    for tile, (height, width) in enumerate(((rows, columns), (rows, depth), (depth, columns))):
        config[16 + 2 * tile], config[48 + tile] = 4 * width, height
    call = function(emulate(text, EMULATED, threads=False), 4)
    for row in range(COUNT // 20):
        is_float = name == "tdpbf16ps"
        if is_float:
            a, b = (random(2 * row + k).standard_normal((16, 32)).astype(bf16.numpy) for k in range(2))
            c = random(row).standard_normal((16, 16)).astype(np.float32)
        else:
            signs = [np.int8 if sign == "s" else np.uint8 for sign in name[4:6]]
            a, b = (numbers(sign, 64, row + k)[:16] for k, sign in enumerate(signs))
            c = numbers(np.int32, 16, row)[:16]
        found = c.copy()
        call(config.ctypes.data, a.ctypes.data, b.ctypes.data, found.ctypes.data)
        group = 2 if is_float else 4
        wide = np.float64 if is_float else np.int64
        left = a[:rows, : depth * group].astype(wide)
        right = b[:depth].reshape(depth, 16, group).transpose(0, 2, 1).reshape(depth * group, 16).astype(wide)
        expected = c.copy()
        total = c[:rows, :columns] + left @ right[:, :columns]
        expected[:rows, :columns] = total.astype(c.dtype)
        np.testing.assert_allclose(
            found, expected, rtol=2e-5 if is_float else 0, atol=2e-5 if is_float else 0
        )
        if has_instructions(PRODUCTS[name]):
            if is_float:  # Numbers of every magnitude.
                a, b, c = halves(32, row)[:16], halves(32, row + 1)[:16], floats(16, row + 2)[:16]
            native, emulated = c.copy(), c.copy()
            function(text, 4)(config.ctypes.data, a.ctypes.data, b.ctypes.data, native.ctypes.data)
            call(config.ctypes.data, a.ctypes.data, b.ctypes.data, emulated.ctypes.data)
            equal(emulated, native, c.dtype)


def test_what_a_machine_has_is_left_alone() -> None:
    text = "define void @f() {\n  call void @llvm.x86.tilerelease()\n  ret void\n}\n"
    assert emulate(text, ("avx512vnni",)) == text
    assert "@llvm.x86" not in emulate(text, ("amx-tile",))
