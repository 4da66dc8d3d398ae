"""Every scalar operation on every dtype: kernels, operands, and the errors that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dialects import scalar
from tilewright.dialects.scalar import BINARY, MATH_FUNCTIONS, UNARY
from tilewright.ir.core import Value
from tilewright.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

from .programs import Array

NARROW = tuple(
    DType.named(f"f{name}")
    for name in ("8E4M3FN", "8E5M2", "8E4M3FNUZ", "8E3M4", "8E8M0FNU", "6E3M2FN", "4E2M1FN")
)
FLOATS = (f16, bf16, f32, f64)
INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
EVERY = (*FLOATS, *INTEGERS, boolean)
SIZE = 512

Case = tuple[str, Sequence[DType], DType, Callable[..., Value]]


def values(dtype: DType, seed: int, name: str = "") -> Array:
    """Return numbers of a dtype, extreme ones among them, in the domain of a function."""
    rng = np.random.default_rng(seed)
    if dtype is boolean:
        return rng.random(SIZE) < 0.5
    if dtype.is_integer:
        low, high = dtype.limits
        wide = rng.integers(low, high, SIZE, dtype.numpy, endpoint=True)
        small = rng.integers(max(low, -12), 12, SIZE).astype(dtype.numpy)
        mixed = np.where(rng.random(SIZE) < 0.5, wide, small).astype(dtype.numpy)
        ends = np.array([low, high, 0, 1, max(low, -1), 2, low + 1, high - 1], dtype.numpy)
        mixed[: ends.size] = rng.permutation(ends)
        if name in ("shl", "shr") and seed % 2:
            mixed = rng.integers(0, dtype.bits + 4, SIZE).astype(dtype.numpy)
        return mixed
    if dtype in NARROW:
        every: Array = (np.arange(SIZE) % (1 << dtype.bits)).astype(np.uint8).view(dtype.numpy)
        if name == "bitcast":
            every[np.isnan(every.astype(np.float32))] = 1  # The bits of a NaN are not specified.
        return every
    scale = rng.choice([0.01, 1.0, 8.0, 60.0], SIZE)
    numbers = rng.standard_normal(SIZE) * scale
    if name in ("asin", "acos", "atanh"):
        numbers = rng.uniform(-1, 1, SIZE)
    if name == "bitcast":
        return numbers.astype(dtype.numpy)  # The bits of a NaN are not specified.
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.5, -2.5, 3.5, 1e-3, 65504.0, 300.0]
    )
    numbers[: special.size] = rng.permutation(special)
    return numbers.astype(dtype.numpy)


def unary_cases() -> list[Case]:
    return [
        (f"{name}_{t.label}", [t], boolean if f.to_bool else t, lambda b, x, f=f: b(f(x)))
        for name, f in UNARY.items()
        for t in EVERY
        if t.kind in f.kinds
    ]


def binary_cases() -> list[Case]:
    return [
        (f"{name}_{t.label}", [t, t], boolean if f.to_bool else t, lambda b, x, y, f=f: b(f(x, y)))
        for name, f in BINARY.items()
        for t in EVERY
        if t.kind in f.kinds
    ]


def cast_cases() -> list[Case]:
    return [
        (f"cast_{s.label}_{t.label}", [s], t, lambda b, x, t=t: b(scalar.Cast(x, dtype=t)))
        for s in EVERY
        for t in EVERY
        if s is not t
    ] + [
        (f"cast_{s.label}_{t.label}", [s], t, lambda b, x, t=t: b(scalar.Cast(x, dtype=t)))
        for narrow in NARROW
        for s, t in (
            (narrow, f32),
            (f32, narrow),
            (f16, narrow),
            (narrow, i32),
            (i32, narrow),
            (narrow, narrow),
        )
    ]


def bitcast_cases() -> list[Case]:
    return [
        (f"bitcast_{s.label}_{t.label}", [s], t, lambda b, x, t=t: b(scalar.Bitcast(x, dtype=t)))
        for s in EVERY
        for t in EVERY
        if s is not t and s.bits == t.bits and boolean not in (s, t)
    ] + [
        (f"bitcast_{s.label}_{t.label}", [s], t, lambda b, x, t=t: b(scalar.Bitcast(x, dtype=t)))
        for narrow in NARROW[:4]
        for s, t in ((u8, narrow), (narrow, u8), (i8, narrow))
    ]


def constant_cases() -> list[Case]:
    def constants(t: DType) -> list[Any]:
        if t is boolean:
            return [True, False]
        if t.is_integer:
            return [*t.limits, 0, 1, 77]
        return [0.0, -0.0, 1.5, -2.75, 0.1, 1e-5, np.inf, -np.inf, np.nan, 3.0e4, *t.limits]

    return [
        (f"constant{k}_{t.label}", [t], t, lambda b, x, v=v, t=t: b(scalar.Constant(value=v, dtype=t)))
        for t in EVERY
        for k, v in enumerate(constants(t))
    ]


def select_cases() -> list[Case]:
    return [
        (f"select_{t.label}", [boolean, t, t], t, lambda b, c, x, y: b(scalar.Select(c, x, y))) for t in EVERY
    ]


CASES: dict[str, Callable[[], list[Case]]] = {
    "unary": unary_cases,
    "binary": binary_cases,
    "cast": cast_cases,
    "bitcast": bitcast_cases,
    "constant": constant_cases,
    "select": select_cases,
}

ULPS = {f32: 5.0, f64: 20.0, f16: 1.0, bf16: 1.0}
"""Errors of functions in units in the last place of the result's type."""


def is_exact(name: str, dtype: DType) -> bool:
    """Whether the definition of an operation, whose name begins `name`, gives all bits of its result."""
    function = name.partition("_")[0]
    return not dtype.is_float or function not in MATH_FUNCTIONS | {
        "rsqrt",
        "sqrt",
        "div",
        "floordiv",
        "mod",
        "rem",
    }


def tolerance(name: str, dtype: DType, device: Any) -> float:
    """Return the allowed error in units in the last place: 0 for exact operations."""
    if is_exact(name, dtype):
        return 0.0
    function = name.partition("_")[0]
    return max(ULPS[dtype], device.ulps.get(f"{function}.{dtype}", device.ulps.get(function, 0.0)))


def errors(found: Array, wanted: Array, flushes: bool) -> Array:
    """Return the difference of each element in units in the last place, infinite where only one is NaN. With
    `flushes`, zero may stand for a number that is too small to be normal.
    """
    if found.dtype.kind in "iub":
        return np.where(found == wanted, 0.0, np.inf)
    info = ml_dtypes.finfo
    tiny, eps = float(info(found.dtype).tiny), float(info(found.dtype).eps)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        a, b = found.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    unit = np.maximum(np.abs(np.where(np.isfinite(b), b, 1)), tiny) * eps
    if flushes:
        same |= (a == 0) & (np.abs(b) < tiny)
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.where(np.isnan(a) | np.isnan(b), np.inf, np.abs(a - b) / unit))


def assert_near(found: Array, wanted: Array, ulps: float, what: str) -> None:
    """Assert that floats differ by at most `ulps` units in the last place, and others not at all."""
    error = errors(found, wanted, flushes=ulps > 0)
    worst = int(np.argmax(error))
    assert error[worst] <= ulps, f"{what}: {found[worst]} instead of {wanted[worst]} ({error[worst]:.1f} ulp)"
