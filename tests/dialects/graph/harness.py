"""Test cases of graph operators: how to build the operator, the inputs, and an independent reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.dialects import func
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import DType, TensorType, f32
from tilewright.ir.verifier import verify

Sizes = Mapping[str, int]
Fill = Callable[[np.random.Generator, tuple[int, ...]], Any]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.random(shape) + 0.1


def unit(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.random(shape) * 1.8 - 0.9


def bools(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.random(shape) < 0.5


@dataclass(frozen=True)
class integers:
    """Random integers from `low` up to, but not including, `high`."""

    low: int
    high: int

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return rng.integers(self.low, self.high, shape)


def special(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Normally distributed numbers with some infinities, NaNs, signed zeros and large values."""
    x = rng.standard_normal(shape)
    pick = rng.integers(0, 12, shape)
    for k, value in enumerate((np.inf, -np.inf, np.nan, 0.0, -0.0, 80.0, -80.0)):
        x = np.where(pick == k, value, x)
    return x


@dataclass(frozen=True)
class Input:
    """A tensor. Strings in its shape are names of sizes, or sums and products of such names."""

    shape: tuple[int | str, ...]
    dtype: DType = f32
    fill: Fill = normal


def F(*shape: int | str, dtype: DType = f32, fill: Fill = normal) -> Input:
    return Input(shape, dtype, fill)


@dataclass(frozen=True)
class Case:
    """A use of an operator.

    ``build(b, dims, *values)`` inserts the operator; ``expected(sizes, *arrays)`` computes its results by
    NumPy or torch.
    """

    operator: str
    inputs: tuple[Input, ...]
    build: Callable[..., Any]
    expected: Callable[..., Any]
    sizes: tuple[Sizes, ...] = ({},)
    tolerance: float = 1e-5
    note: str = ""
    symbolic: bool = True
    equal_nan: bool = True
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operator}-{self.note}" if self.note else self.operator


def _dim(d: int | str, values: Mapping[str, Any]) -> Any:
    return d if isinstance(d, int) else eval(d, {}, dict(values))


def build_module(case: Case, values: Mapping[str, Dim]) -> Module:
    """A module with the case's operator; `values` gives a number or a symbol for each name of a size."""
    module = Module()
    names = tuple(f"x{k}" for k in range(len(case.inputs)))
    f = func.Func(sym_name="main", arg_names=names)
    module.body.append(f)
    args = [f.body.add_arg(TensorType(i.dtype, tuple(_dim(d, values) for d in i.shape))) for i in case.inputs]
    b = Builder(f.body)
    result = case.build(b, dict(values), *args)
    results = list(result) if isinstance(result, (list, tuple)) else [result]
    f.result_names = tuple(f"y{k}" for k in range(len(results)))
    b.insert(func.Return(results))
    verify(module)
    return module


def symbols_of(case: Case) -> dict[str, Dim]:
    """A symbol for each name of a size, with bounds that allow all sizes of the case."""
    names = sorted({n for s in case.sizes for n in s})
    return {n: symbol(n, *case.bounds.get(n, (min(1, *(s[n] for s in case.sizes), 1), 64))) for n in names}


def arrays(case: Case, sizes: Sizes, seed: int = 0) -> list[np.ndarray]:
    """Random inputs of a case."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray(i.fill(rng, tuple(_dim(d, sizes) for d in i.shape))).astype(i.dtype.numpy)
        for i in case.inputs
    ]
