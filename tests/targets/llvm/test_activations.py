"""GELU has a formula of its own where a body has the operations that GELU is lowered to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import graph
from tilewright.dialects.scalar import ScalarOp
from tilewright.dialects.tensor_builder import Scalar, TensorBuilder
from tilewright.ir.types import DType, TensorType, bf16, f32, f64
from tilewright.targets.llvm.activations import activation_of
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.llvm.kernel import print_kernel

from .jit import MIDDLE, NARROW, WIDE
from .kernels import make_group, reference, run_kernel, scheduled
from .test_kernel import last_vectorized

TABLES = replace(WIDE, name="avx512", avx512=True)
SLOPE = math.sqrt(8 / math.pi)
ROOT = math.sqrt(0.5)
Body = Callable[[Scalar, Scalar], Scalar]


def gelu_group(approximate: str, dtype: DType = f32, size: int = 37) -> Any:
    """Return the group of GELU as it is lowered."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        op = graph.Gelu(x.value, approximate=approximate)
        return [op.lower(t, x)]

    return make_group([TensorType(dtype, (size,))], body)


def activations(body: Body, dtype: DType = f32) -> list[str]:
    """Return the names of the activations in a body over two elements."""
    types = [TensorType(dtype, (8,))] * 2
    group = make_group(types, lambda t, x, y: [t.compute((8,), lambda i: body(x[i], y[i]))])
    found = [activation_of(op, TABLES) for op in group.walk() if isinstance(op, ScalarOp)]
    return [name for name, _ in filter(None, found)]


GELU: dict[str, Body] = {
    "sums": lambda x, y: (0.5 * x) + (x * 0.5) * (ROOT * x).erf(),
    "rounded": lambda x, y: (h := 0.5 * x) * (x * float(np.float32(ROOT))).erf() + h,
    "factors": lambda x, y: (x * ROOT).erf() * (h := x * 0.5) + h,
}
TANH: dict[str, Body] = {
    "sigmoid first": lambda x, y: ((SLOPE + x * x * (0.044715 * SLOPE)) * x).sigmoid() * x,
    "factor first": lambda x, y: x * (x * ((0.044715 * SLOPE) * (x * x) + SLOPE)).sigmoid(),
}
OTHERS: dict[str, Body] = {
    "another half": lambda x, y: (0.5 * y) + (x * 0.5) * (ROOT * x).erf(),
    "another scale": lambda x, y: (h := 0.25 * x) * (x * ROOT).erf() + h,
    "another argument": lambda x, y: (h := 0.5 * x) * (y * ROOT).erf() + h,
    "another factor": lambda x, y: (h := 0.5 * x) * (x * 0.7071).erf() + h,
    "another function": lambda x, y: (h := 0.5 * x) * (x * ROOT).tanh() + h,
    "a difference": lambda x, y: (h := 0.5 * x) * (x * ROOT).erf() - h,
    "another x": lambda x, y: y * (x * (x * x * (0.044715 * SLOPE) + SLOPE)).sigmoid(),
    "another square": lambda x, y: x * (x * (x * y * (0.044715 * SLOPE) + SLOPE)).sigmoid(),
    "another slope": lambda x, y: x * (x * (x * x * (0.044715 * SLOPE) + 1.6)).sigmoid(),
    "another cube": lambda x, y: x * (x * (x * x * 0.0714 + SLOPE)).sigmoid(),
    "silu": lambda x, y: x * x.sigmoid(),
}


@pytest.mark.parametrize("body", GELU.values(), ids=GELU)
def test_gelu(body: Body) -> None:
    # Equal operations are one value only after common subexpressions are removed.
    assert activations(body) == (["gelu"] if body is not GELU["sums"] else [])


@pytest.mark.parametrize("body", TANH.values(), ids=TANH)
def test_gelu_tanh(body: Body) -> None:
    assert activations(body) == ["gelu_tanh"]


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others(body: Body) -> None:
    assert activations(body) == []


def test_only_float32() -> None:
    assert activations(GELU["factors"], f64) == []


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("isa", [TABLES, MIDDLE, NARROW], ids=lambda isa: isa.name)
def test_kernels_call_the_formula(approximate: str, dtype: DType, isa: Isa) -> None:
    group = gelu_group(approximate, dtype)
    kernel = scheduled(group, last_vectorized)
    name = "@tw.gelu_tanh." if approximate == "tanh" else "@tw.gelu."
    text = print_kernel(kernel, isa, "kernel").text
    assert (name in text) == (isa.avx512 or approximate == "none")
    x = (np.random.default_rng(0).standard_normal(37) * 2).astype(dtype.numpy)
    (found,), _ = run_kernel(kernel, isa, [x], {})
    (want,) = reference(group, [x], {})
    found, want = found.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(found, want, rtol=2**-8 if dtype is bf16 else 2e-7, atol=3e-7)
