"""Every function compared with NumPy in a wider type, over all exponents; errors in units in the last place
(ulp).
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from tilewright.dialects.scalar import UNARY
from tilewright.targets.cpu.isa import AARCH64, X86_64_V2, X86_64_V4
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.llvm.mathlib import ACTIVATIONS, FUNCTIONS, ROUGH, math_function
from tilewright.targets.llvm.toolchain import assembly
from tilewright.targets.wasm.isa import WASM32

from .jit import ISAS, MIDDLE, NARROW, WIDE, compile_functions

Array = np.ndarray[Any, Any]
INF, NAN = np.inf, np.nan
TABLES = replace(WIDE, name="avx512", avx512=True)
UNARY_NAMES = [name for name in FUNCTIONS if name not in ("pow", "atan2")]


@lru_cache
def loaded(isa: Isa, bits: int, lanes: int) -> Callable[[str], int]:
    """Return the functions of a module that has a loop over arrays (whose length is a multiple of `lanes`)
    for each function: ``void run.<name>(ptr x, ptr y, ptr out, i64 n)``.
    """
    element = {32: "float", 64: "double"}[bits]
    kind = element if lanes == 1 else f"<{lanes} x {element}>"
    parts: list[str] = []
    seen: set[str] = set()
    activations = () if bits == 64 else ACTIVATIONS if isa.avx512 else ("gelu",)
    for name in (*FUNCTIONS, *ROUGH, *activations):
        symbol, definitions = math_function(name, bits, lanes, isa)
        operands = ["x", "y"] if name in ("pow", "atan2") else ["x"]
        loads = "".join(
            f"  %p{o} = getelementptr {element}, ptr %{o}, i64 %i\n  %v{o} = load {kind}, ptr %p{o}, align "
            f"{bits // 8}\n"
            for o in operands
        )
        given = ", ".join(f"{kind} %v{o}" for o in operands)
        parts += [text for key, text in definitions.items() if key not in seen]
        seen |= definitions.keys()
        parts.append(f"""define void @run.{name}(ptr %x, ptr %y, ptr %out, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{loads}  %r = call {kind} @{symbol}({given})
  %pr = getelementptr {element}, ptr %out, i64 %i
  store {kind} %r, ptr %pr, align {bits // 8}
  %j = add i64 %i, {lanes}
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}}""")
    return compile_functions("\n".join(parts))


def call(name: str, x: Array, y: Array | None = None, isa: Isa = MIDDLE, lanes: int = 4) -> Array:
    bits = x.dtype.itemsize * 8
    count = -(-x.size // lanes) * lanes
    padded = [np.resize(v, count) for v in (x, x if y is None else y)]
    out = np.empty(count, x.dtype)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(
        loaded(isa, bits, lanes)(f"run.{name}")
    )
    run(padded[0].ctypes.data, padded[1].ctypes.data, out.ctypes.data, count)
    return out[: x.size].reshape(x.shape)


def reference(name: str, x: Array, y: Array | None = None) -> Array:
    """Return results in float64 for float32 operands, and in long double for float64 ones, except for erf,
    which has float64.
    """
    wide = x.astype(np.float64 if x.dtype == np.float32 or name == "erf" else np.longdouble)
    with np.errstate(all="ignore"):
        if y is not None:
            return {"pow": np.power, "atan2": np.arctan2}[name](wide, y.astype(wide.dtype))
        if name == "sigmoid":
            return 1 / (1 + np.exp(-wide))
        if name == "erf":
            return np.asarray(UNARY["erf"].function(wide))
        names = {
            "asin": "arcsin",
            "acos": "arccos",
            "atan": "arctan",
            "asinh": "arcsinh",
            "acosh": "arccosh",
            "atanh": "arctanh",
        }
        return getattr(np, names.get(name, name))(wide)


def ulps(got: Array, want: Array, flush: float = 0.0) -> Array:
    """Return the distance in units in the last place of the result. It is zero if both are infinite or both
    are NaN, and if the result is zero where `want` is below `flush`.
    """
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(got.dtype).tiny)).astype(want.dtype)
        distance = np.abs(got.astype(want.dtype) - want) / unit
    same = (np.isnan(got) & np.isnan(want)) | (got == rounded) | ((np.abs(want) < flush) & (got == 0))
    return np.where(same, 0, np.where(np.isnan(distance), INF, distance))


def sweep(bits: int, count: int, low: float = 0.0, high: float = INF) -> Array:
    """Return numbers evenly spaced by their bit patterns over all exponents, of both signs and with
    magnitudes within bounds.
    """
    kind, unsigned = (np.float32, np.uint32) if bits == 32 else (np.float64, np.uint64)
    first, last = (int(np.asarray(v, kind).view(unsigned)) for v in (low, high))
    positive = np.linspace(first, last, count // 2, dtype=np.float64 if bits == 32 else np.longdouble)
    positive = positive.astype(unsigned).view(kind)
    return np.concatenate([positive, -positive])


def dense(mantissas: int) -> Array:
    """Return float32 numbers of every sign and exponent, including infinities and NaN, with the smallest, the
    largest and random mantissas.
    """
    rng = np.random.default_rng(0)
    low = np.concatenate([rng.integers(0, 1 << 23, mantissas - 2), [0, (1 << 23) - 1]]).astype(np.uint32)
    return ((np.arange(512, dtype=np.uint32)[:, None] << 23) | low).reshape(-1).view(np.float32)


def active(kind: Any, count: int) -> Array:
    """Return numbers in the ranges where the functions vary."""
    rng = np.random.default_rng(0)
    return np.concatenate(
        [rng.uniform(-scale, scale, count) for scale in (1.0, 4.0, 20.0, 100.0, 750.0)]
    ).astype(kind)


@lru_cache(maxsize=1)
def points_32(name: str, mantissas: int) -> tuple[Array, Array]:
    """Return arguments and exact results."""
    x = np.concatenate([dense(mantissas), active(np.float32, 100 * mantissas)])
    return x, reference(name, x)


def arguments(name: str, bits: int, count: int) -> Array:
    """Return arguments over all exponents, densely where the function varies."""
    kind = np.float32 if bits == 32 else np.float64
    return np.concatenate([sweep(bits, count // 2, 0.0, np.finfo(kind).max), active(kind, count // 10)])


FLUSHED = {"exp": 1.7e-38, "exp2": 1.2e-38, "sigmoid": 1.7e-38}
"""Results below these may be zero."""


# The instruction set is the innermost parameter, so that a function's exact results are computed once.
@pytest.mark.parametrize(
    "isa,lanes",
    [(TABLES, 16), (WIDE, 16), (MIDDLE, 4), (NARROW, 1)],
    ids=["avx512", "16", "4", "1-no-fma"],
)
@pytest.mark.parametrize("name", UNARY_NAMES)
def test_float32(name: str, isa: Isa, lanes: int) -> None:
    """The error is at most 2 ulp at a million points over all exponents. `bench/vector_math_errors.py` tests
    all 2**32.
    """
    x, want = points_32(name, 1000)
    if lanes < 16:
        x, want = x[::5], want[::5]
    error = ulps(call(name, x, isa=isa, lanes=lanes), want, FLUSHED.get(name, 0.0))
    worst = int(np.argmax(error))
    assert error[worst] <= 2, (float(x[worst]), float(error[worst]))


def test_cotangents_just_below_a_power_of_two() -> None:
    """Tangents are accurate where the result is just below a power of two and an error counts twice. The
    error was 2.07 ulp.
    """
    x = np.asarray([-12688.107421875, 237.99542236328125, -46601.6015625], np.float32)
    assert ulps(call("tan", x, isa=WIDE, lanes=16), reference("tan", x)).max() < 1.5


@pytest.mark.parametrize("lanes", [1, 4, 8, 32])
@pytest.mark.parametrize("name", ["exp2", "log", "tanh", "erf", *ACTIVATIONS])
def test_lanes_agree(name: str, lanes: int) -> None:
    """With fewer or more lanes than a register, the formulas of AVX-512 give the same results."""
    x = arguments(name, 32, 10_000)
    np.testing.assert_array_equal(call(name, x, isa=TABLES, lanes=lanes), call(name, x, isa=TABLES, lanes=16))


@pytest.mark.parametrize("isa,lanes", [(TABLES, 16), (WIDE, 16)], ids=["avx512", "16"])
def test_large_angles(isa: Isa, lanes: int) -> None:
    """One large angle makes its whole vector use the long reduction. Results on both sides of the limit are
    accurate.
    """
    x = np.concatenate([np.linspace(60_000, 70_000, 4096), np.tile([0.5] * 15 + [1e8], 64)]).astype(
        np.float32
    )
    for name in ("sin", "cos", "tan"):
        assert ulps(call(name, x, isa=isa, lanes=lanes), reference(name, x)).max() <= 2


@pytest.mark.parametrize("name", UNARY_NAMES)
@pytest.mark.parametrize("isa,lanes", [(WIDE, 8), (NARROW, 1)], ids=["8", "1-no-fma"])
def test_float64(name: str, isa: Isa, lanes: int) -> None:
    x = arguments(name, 64, 60_000)
    flush = 1e-300 if name == "sigmoid" else 0.0
    got, want = call(name, x, isa=isa, lanes=lanes), reference(name, x)
    error = ulps(got, want, flush)
    worst = int(np.argmax(error))
    # The reference of erf has errors up to 12 ulp itself.
    assert error[worst] <= (16 if name == "erf" else 4), (float(x[worst]), float(error[worst]))


@ISAS
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", UNARY_NAMES)
def test_special_values(name: str, isa: Isa, kind: Any) -> None:
    x = np.asarray(
        [
            0.0,
            -0.0,
            INF,
            -INF,
            NAN,
            1.0,
            -1.0,
            1e-45,
            -1e-45,
            1e-40,
            88.72,
            88.73,
            -103.0,
            3e38,
            -3e38,
            709.7,
            710.0,
        ],
        kind,
    )
    x = np.concatenate([x, np.frombuffer(b"\xff" * 16, kind)])  # NaN with a payload.
    got = call(name, x, isa=isa, lanes=1)
    want = reference(name, x)
    error = ulps(got, want, FLUSHED.get(name, 0.0) if kind == np.float32 else 1e-300)
    assert error.max() < 16, list(zip(x, got, want, strict=True))
    sided = name not in ("exp", "exp2", "sigmoid", "log", "log2", "acosh", "acos", "cos", "cosh")
    if sided:
        assert np.array_equal(np.signbit(got[:2]), [False, True])


# The numbers nearest to a multiple of pi/2: 2**-30 quadrants in float32, 2**-61 in float64.
UNLUCKY = {
    np.float32: (16367173.0 * 2.0**72, [1.0, -1.6147697982476212e-9, -619283318.95061387]),
    np.float64: (6381956970095103.0 * 2.0**797, [1.0, -4.6871659242546276e-19, -2133485385753703843.7]),
}


@ISAS
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_angles_of_any_size(isa: Isa, kind: Any) -> None:
    """Angles above 1e16 have accurate results, which simple range reduction does not give. The results for
    the hardest numbers are from mpmath with 1,400 bits.
    """
    x, want = UNLUCKY[kind]
    both = np.asarray([x, INF, -INF, NAN], kind)
    for name, exact in zip(("sin", "cos", "tan"), want, strict=True):
        got = call(name, both, isa=isa, lanes=4)
        assert abs(float(got[0]) / exact - 1) < 2 * np.finfo(kind).eps
        assert np.isnan(got[1:]).all()


SPECIAL = [
    0.0,
    -0.0,
    INF,
    -INF,
    NAN,
    1.0,
    -1.0,
    2.0,
    -2.0,
    3.0,
    -3.0,
    0.5,
    -0.5,
    1e-30,
    1e30,
    -1e30,
    2.5,
    1e-310,
]


@ISAS
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_two_operands_special_values(name: str, isa: Isa, kind: Any) -> None:
    x, y = (v.reshape(-1) for v in np.meshgrid(np.asarray(SPECIAL, kind), np.asarray(SPECIAL, kind)))
    got, want = call(name, x, y, isa=isa, lanes=1), reference(name, x, y)
    error = ulps(got, want)
    wrong = error > 2
    assert not wrong.any(), list(zip(x[wrong], y[wrong], got[wrong], want[wrong], strict=True))
    zero = (got == 0) & (want == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("isa,lanes", [(WIDE, 16), (MIDDLE, 4), (NARROW, 1)], ids=["16", "4", "1-no-fma"])
def test_pow(isa: Isa, lanes: int) -> None:
    rng = np.random.default_rng(1)
    count = 100_000
    x = np.exp2(rng.uniform(-20, 20, count)).astype(np.float32)
    y = rng.uniform(-8, 8, count).astype(np.float32)
    assert ulps(call("pow", x, y, isa, lanes), reference("pow", x, y)).max() <= 0.51
    whole = rng.integers(-5, 6, count).astype(np.float32)
    signed = np.where(rng.random(count) < 0.5, x, -x)
    assert ulps(call("pow", signed, whole, isa, lanes), reference("pow", signed, whole)).max() <= 0.51
    small = rng.integers(-40, 41, count).astype(np.float32)
    for power in (2.0, 3.0):
        assert np.array_equal(call("pow", small, np.full_like(small, power), isa, lanes), small**power)


@pytest.mark.parametrize("isa", [WIDE, NARROW], ids=["fma", "no-fma"])
def test_pow_float64(isa: Isa) -> None:
    rng = np.random.default_rng(1)
    x = np.exp2(rng.uniform(-60, 60, 50_000))
    y = rng.uniform(-16, 16, 50_000)
    assert ulps(call("pow", x, y, isa), reference("pow", x, y)).max() <= 3
    near = 1 + rng.uniform(-1e-3, 1e-3, 50_000)
    far = rng.uniform(-3e5, 3e5, 50_000)
    assert ulps(call("pow", near, far, isa), reference("pow", near, far)).max() <= 3


@pytest.mark.parametrize("kind,bound", [(np.float32, 2), (np.float64, 4)])
def test_atan2(kind: Any, bound: float) -> None:
    rng = np.random.default_rng(2)
    x, y = (np.exp2(rng.uniform(-20, 20, 100_000)) * rng.choice([-1, 1], 100_000) for _ in range(2))
    x, y = x.astype(kind), y.astype(kind)
    assert ulps(call("atan2", x, y), reference("atan2", x, y)).max() <= bound


@pytest.mark.parametrize("isa", [MIDDLE, TABLES], ids=lambda isa: isa.name)
@pytest.mark.parametrize("lanes", [1, 16])
def test_exponentials_of_few_digits(isa: Isa, lanes: int) -> None:
    x = np.linspace(-90, 90, 100_000, dtype=np.float32)
    special = np.asarray([0.0, INF, -INF, NAN, -88.0, -1e30, 89.0, 1e30], np.float32)
    got, want = call("rough_exp", x, isa=isa, lanes=lanes), np.exp(x.astype(np.float64))
    large = (x > -86) & (x < 88.7)
    assert np.abs(got[large] / want[large] - 1).max() < 2.0**-13
    assert (got[x < -88] == 0).all() and np.isinf(got[x > 88.73]).all()
    found = call("rough_exp", special, isa=isa, lanes=lanes)
    assert np.isnan(found[3]) and (found[[2, 4, 5]] == 0).all() and np.isinf(found[[1, 6, 7]]).all()


def relu_less(name: str, a: Array) -> Array:
    """Return ``relu(x) - f(x)`` for an activation and ``a = |x|``, without cancellation."""
    if name == "gelu_tanh":
        with np.errstate(over="ignore"):
            return a / (1 + np.exp(math.sqrt(8 / math.pi) * (a + 0.044715 * a**3)))
    return 0.5 * a * np.asarray([math.erfc(v) for v in a * math.sqrt(0.5)])


@pytest.mark.parametrize(
    "name,isa,lanes",
    [("gelu", TABLES, 16), ("gelu_tanh", TABLES, 16), ("gelu", MIDDLE, 4), ("gelu", NARROW, 1)],
    ids=["avx512", "tanh-avx512", "4", "1-no-fma"],
)
def test_activations(name: str, isa: Isa, lanes: int) -> None:
    """The error is at most 2 ulp, or 2**-26 of the argument where that is more: for arguments below -1.
    Without tables it may be twice as large.
    """
    x = np.concatenate([dense(100), active(np.float32, 20_000)])
    x = x[np.isfinite(x)]
    wide = x.astype(np.float64)
    want = np.maximum(wide, 0) - relu_less(name, np.minimum(np.abs(wide), 100))
    got = call(name, x, isa=isa, lanes=lanes)
    error = np.abs(got - want)
    unit = np.spacing(np.abs(want.astype(np.float32))).astype(np.float64)
    allowed = np.maximum(2 * unit, np.abs(wide) * 2.0**-26) * (1 if isa.avx512 else 2)
    worst = int(np.argmax(error / allowed))
    assert error[worst] <= allowed[worst], (float(x[worst]), float(got[worst]), float(want[worst]))
    special = call(name, np.asarray([0.0, -0.0, INF, -INF, NAN, -1e30], np.float32), isa=isa, lanes=lanes)
    np.testing.assert_array_equal(special, np.asarray([0.0, -0.0, INF, 0.0, NAN, 0.0], np.float32))
    assert np.array_equal(np.signbit(special[:2]), [False, True])


def test_unknown_functions_are_refused() -> None:
    with pytest.raises(KeyError):
        math_function("gamma", 32, 4, MIDDLE)


@pytest.mark.parametrize("isa", [X86_64_V2, X86_64_V4, AARCH64, WASM32], ids=lambda isa: isa.name)
def test_no_library_is_called(isa: Isa) -> None:
    parts: list[str] = []
    seen: set[str] = set()
    for bits, element in ((32, "float"), (64, "double")):
        lanes = isa.lanes(bits)
        kind = f"<{lanes} x {element}>"
        for name in FUNCTIONS:
            symbol, definitions = math_function(name, bits, lanes, isa)
            operands = f"{kind} %x, {kind} %y" if name in ("pow", "atan2") else f"{kind} %x"
            parts += [text for key, text in definitions.items() if key not in seen]
            seen |= definitions.keys()
            parts.append(
                f"define {kind} @use.{name}.{bits}({operands}) {{\n  %r = call {kind} "
                f"@{symbol}({operands})\n  ret {kind} %r\n}}\n"
            )
    text = assembly("\n".join(parts), isa)
    calls = [
        line
        for line in text.splitlines()
        if re.search(r"^\s+(call|callq|bl|jmp\s+[a-z_]+@|b\s+[a-z_]+$)\b", line)
    ]
    assert not [line for line in calls if ".large" not in line]
    assert "use.atan2.64" in text
