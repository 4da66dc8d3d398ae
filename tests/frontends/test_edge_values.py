"""Values where frameworks differ or simple formulas fail: each front end gives its own framework's results,
compiled and interpreted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from tests.frontends.torch.checks import Lambda

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.driver.frontend_registry import import_model
from tilewright.ir.interpreter import Interpreter

EXPONENTS = [0, 1, 2, 3, 5, 31, 32, 63, 64, 65, 100, 127]
BASES = [3, 2, 0, 1, 255, 254, 128, 5, 7, -1, -3]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NAN, INF = float("nan"), float("inf")
NUMBERS = [NAN, -NAN, -0.0, 0.0, -2.0, 3.0, INF, -INF]
DIVIDENDS = [4.0, -4, 4, -4, 0.0, -0.0, 0.0, -0.0, 5, -5, 1, INF, 5, -5] * 3
DIVISORS = [2.0, 2, -2, -2, 3, 3, -3, -3, INF, INF, 0, 2, -INF, -3] * 3


def same(got: Any, want: Any) -> None:
    """Check for equal numbers, NaN in equal places, and zeros of equal sign."""
    got, want = (
        np.asarray(v.float() if getattr(v, "dtype", None) is torch.bfloat16 else v) for v in (got, want)
    )
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    if got.dtype.kind == "f":
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


def both_ways(model: Any, *args: Any) -> list[Any]:
    """Return the results of the compiled code and, for element types that NumPy knows, of the interpreter."""
    found = [tw.compile(model, args)(*args)]
    if getattr(args[0], "dtype", None) is not torch.bfloat16:
        module = import_model(model, args, None, None)
        found += Interpreter(module).run("main", [np.asarray(a) for a in args])
    return found


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    more = [-1, -2, -3] + ([2**40 + 1, 2**62] if dtype is torch.int64 else [])
    bases = torch.tensor(BASES).to(dtype)
    return bases.repeat_interleave(len(EXPONENTS + more)), torch.tensor(EXPONENTS + more, dtype=dtype).repeat(
        len(BASES)
    )


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_powers_of_integers(dtype: torch.dtype) -> None:
    """Powers of integers equal torch's for exponents that are tensors, numbers or constants, and for a base
    that is a number. Exponents above 63 were once taken modulo 64.
    """
    x, e = pairs(dtype)
    for got in both_ways(Lambda(torch.pow), x, e):
        same(got, torch.pow(x, e))
    constants = Lambda(lambda x: (torch.pow(x, e), x**64, x**65, x**100, x**1, x**0))
    for got, want in zip(tw.compile(constants, (x,))(x), constants(x), strict=True):
        same(got, want)
    same(tw.compile(Lambda(lambda e: torch.pow(3, e)), (e,))(e), torch.pow(3, e))


@pytest.mark.parametrize("dtype", UNSIGNED, ids=lambda d: d.__name__)
def test_powers_of_unsigned_integers(dtype: Any) -> None:
    x = np.repeat(np.array(BASES).astype(dtype), len(EXPONENTS))
    e = np.tile(np.array(EXPONENTS, dtype), len(BASES))
    for got in both_ways(lambda x, e: x**e, x, e):
        same(got, x**e)
    same(tw.compile(lambda x: x**e, (x,))(x), x**e)


def onnx_model(signature: str, body: str, opset: int = 18) -> Any:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> main {signature} {{ {body} }}'
    )


@pytest.mark.parametrize("base", ["int32", "int64"])
@pytest.mark.parametrize("exponent", ["int32", "int64", "uint32", "uint64"])
def test_powers_of_onnx(base: str, exponent: str) -> None:
    """Exponents of a wider type than the bases keep their high bits."""
    x = np.array([3, -3, 2, 1, -1, 7], base)
    e = np.array([64, 65, 31, 2**32 - 1 if exponent != "int32" else 9, 3, 11], exponent)
    proto = onnx_model(f"({base}[n] x, {exponent}[n] e) => ({base}[n] y)", "y = Pow(x, e)")
    want = np.array([pow(int(a), int(b), 2**64) for a, b in zip(x, e, strict=True)], np.uint64).astype(base)
    same(tw.compile(proto)(x, e), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_signs_of_torch(dtype: torch.dtype) -> None:
    """The sign of NaN and of either zero is zero."""
    x = torch.tensor(NUMBERS * 4, dtype=dtype)
    for function in (torch.sign, torch.sgn):
        for got in both_ways(Lambda(function), x):
            same(got, function(x))


def test_signs_of_complex_numbers() -> None:
    x = torch.tensor([complex(-0.0, -0.0), complex(0, 0), complex(3, 4), complex(NAN, 1)])
    same(torch.view_as_real(tw.compile(Lambda(torch.sgn), (x,))(x)), torch.view_as_real(torch.sgn(x)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_signs_of_numpy_and_onnx(dtype: Any) -> None:
    """The sign of NaN is NaN; the sign of either zero is +0."""
    x = np.array(NUMBERS * 4, dtype)
    for got in both_ways(tnp.sign, x):
        same(got, np.sign(x))
    kind = {2: "float16", 4: "float", 8: "double"}[x.itemsize]
    proto = onnx_model(f"({kind}[n] x) => ({kind}[n] y)", "y = Sign(x)")
    same(tw.compile(proto)(x), ReferenceEvaluator(proto).run(None, {"x": x})[0])
    roots = tw.compile(tnp.cbrt, (x,))(x)
    np.testing.assert_array_equal(np.signbit(roots[2:]), np.signbit(np.cbrt(x)[2:]))


def test_signs_of_jax() -> None:
    """The sign of NaN is NaN; a zero keeps its sign."""
    jax = pytest.importorskip("jax")
    x = np.array(NUMBERS * 4, np.float32)
    same(tw.compile(jax.export.export(jax.jit(jax.numpy.sign), platforms=["cpu"])(x))(x), jax.numpy.sign(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_remainders_of_torch(dtype: torch.dtype) -> None:
    """A remainder of zero has the dividend's sign."""
    a, b = torch.tensor(DIVIDENDS, dtype=dtype), torch.tensor(DIVISORS, dtype=dtype)
    for function in (torch.remainder, torch.fmod, torch.floor_divide):
        for got in both_ways(Lambda(function), a, b):
            same(got, function(a, b))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_remainders_of_numpy_and_onnx(dtype: Any) -> None:
    """A remainder of zero has the divisor's sign."""
    a, b = np.array(DIVIDENDS, dtype), np.array(DIVISORS, dtype)
    with np.errstate(all="ignore"):
        for name in ("mod", "fmod", "floor_divide"):
            for got in both_ways(getattr(tnp, name), a, b):
                same(got, getattr(np, name)(a, b))
        kind = {2: "float16", 4: "float", 8: "double"}[a.itemsize]
        for fmod, want in ((0, np.mod(a, b)), (1, np.fmod(a, b))):
            proto = onnx_model(f"({kind}[n] a, {kind}[n] b) => ({kind}[n] y)", f"y = Mod<fmod={fmod}>(a, b)")
            same(tw.compile(proto)(a, b), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_angles_of_any_size(dtype: torch.dtype) -> None:
    """Sines, cosines and tangents of large angles are accurate, which simple range reduction is not from
    about 1e16 on.
    """
    x = torch.tensor(
        [0.5, 100.0, 1e4, 6e4, 1e16, 1e17, 3e22, 1e30, -3e38, INF, NAN, 1e300], dtype=dtype
    ).repeat(3)
    for function in (torch.sin, torch.cos, torch.tan):
        found, want = tw.compile(Lambda(function), (x,))(x), function(x.double())
        rounding = torch.finfo(dtype).eps
        np.testing.assert_allclose(found.double(), want, rtol=2 * rounding if rounding > 1e-12 else 2e-15)
