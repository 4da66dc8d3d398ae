"""Gradients of graph operators, by the operators' own test cases (`tests/dialects/graph`): the backward pass
that the engine builds is compared with central differences of the operator's reference in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.dialects.graph.harness import Case, Input, Sizes, arrays, build_module, symbols_of
from tilewright.autodiff.reverse import backward
from tilewright.dialects import func
from tilewright.dialects.graph.base import tensor_type
from tilewright.ir.builder import Builder
from tilewright.ir.core import IRError, Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import Dim
from tilewright.ir.types import TensorType, f64
from tilewright.ir.verifier import verify

STEP = 1e-5
"""The step of central differences, relative to numbers of size 1: their error is about 1e-10."""


@dataclass
class Gradient:
    """An operator's function, and the function of the same inputs and of the gradients of the floating-point
    results that gives the gradients of the floating-point inputs.

    Attributes:
        forward: The module of a case, ``main``.
        backward: The module with the backward pass, ``main``.
        wanted: The positions of the inputs whose gradients it returns; others have none.
        floating: The positions of the floating-point results.
    """

    forward: Module
    backward: Module
    wanted: list[int]
    floating: list[int]


def in_float64(case: Case) -> Case:
    """The case with float64 in place of other floating-point types, if the operator and its case allow it."""
    inputs = tuple(Input(i.shape, f64 if i.dtype.is_float else i.dtype, i.fill) for i in case.inputs)
    wide = replace(case, inputs=inputs)
    try:
        build_module(wide, case.sizes[0])
    except IRError:
        return case
    return wide


def gradient_of(case: Case, values: Mapping[str, Dim]) -> Gradient:
    """Differentiate a case; `values` gives a number or a symbol for each name of a size.

    Raises:
        GradientError: An operator has no gradient.
    """
    return differentiate(build_module(case, values))


def differentiate(forward: Module, inputs: Sequence[int] | None = None) -> Gradient:
    """Differentiate the function ``main`` of a module; `inputs` are the positions of the inputs whose
    gradients are asked for, by default of all that are floating point.

    Raises:
        GradientError: An operator has no gradient.
    """
    module = forward.clone()
    f = module.symbol("main")
    end = f.body.terminator
    args = list(f.body.args)
    ops = [op for op in f.body.ops if op is not end]
    floating = [k for k, y in enumerate(f.outputs) if tensor_type(y).dtype.is_float]
    first = sum(n.startswith("dy") for n in f.arg_names)
    pairs = [(end.operands[k], f.body.add_arg(end.operands[k].type)) for k in floating]
    f.arg_names = (*f.arg_names, *(f"dy{first + k}" for k in range(len(floating))))
    floats = [k for k, x in enumerate(args) if tensor_type(x).dtype.is_float]
    floats = floats if inputs is None else [k for k in floats if k in inputs]
    found = backward(Builder.before(end), ops, pairs, [args[k] for k in floats])
    wanted = [k for k, g in zip(floats, found, strict=True) if g is not None]
    end.replace_by([])
    Builder(f.body).insert(func.Return([g for g in found if g is not None]))
    f.result_names = tuple(f"dx{k}" for k in wanted)
    f.updates = f.nested = ()
    verify(module)
    return Gradient(forward, module, wanted, floating)


def smooth_arrays(case: Case, sizes: Sizes, seed: int = 0) -> list[np.ndarray]:
    """Random inputs of a case, those of floating-point types finite and without equal elements, at which
    operators have one derivative.
    """
    rng = np.random.default_rng(seed + 1)
    found = arrays(case, sizes, seed)
    for k, (x, i) in enumerate(zip(found, case.inputs, strict=True)):
        if i.dtype.is_float:
            wide = x.astype(np.float64)
            wide = np.where(np.isfinite(wide) & (np.abs(wide) < 50), wide, rng.standard_normal(x.shape))
            found[k] = (wide + 0.01 * rng.standard_normal(x.shape)).astype(x.dtype)
    return found


def cotangents(gradient: Gradient, results: Sequence[Any], seed: int = 0) -> list[np.ndarray]:
    """Random gradients of the floating-point results."""
    rng = np.random.default_rng(seed + 2)
    shapes = [(results[k].shape, results[k].dtype) for k in gradient.floating]
    return [np.asarray(rng.standard_normal(s)).astype(t) for s, t in shapes]


def is_precise(gradient: Gradient) -> bool:
    """Whether all floating-point values on the way are float64, so that differences show derivatives."""
    types = [v.type for op in gradient.forward.walk() for v in (*op.operands, *op.results)]
    return all(t.dtype is f64 for t in types if isinstance(t, TensorType) and t.dtype.is_float)


def check_differences(case: Case, gradient: Gradient, sizes: Sizes, tolerance: float = 1e-6) -> None:
    """Compare the backward pass with central differences along two random directions of each input.

    The difference of both derivatives is divided by the sum of the magnitudes of what they add. A direction
    along which the function is not finite is left out.
    """
    rng = np.random.default_rng(3)
    inputs = smooth_arrays(case, sizes)
    forward = Interpreter(gradient.forward)

    def run(given: Sequence[Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            return forward.run("main", list(given), dict(sizes))

    results = run(inputs)
    dys = cotangents(gradient, results)
    with np.errstate(all="ignore"):
        found = Interpreter(gradient.backward).run("main", [*inputs, *dys], dict(sizes))
    for k, x in enumerate(inputs):
        if not case.inputs[k].dtype.is_float:
            continue
        dx = np.zeros(x.shape)
        if k in gradient.wanted:
            dx = found[gradient.wanted.index(k)].astype(np.float64)
            assert dx.shape == x.shape
        for _ in range(2):
            v = rng.standard_normal(x.shape)
            ends = [[*inputs[:k], (x + h * v).astype(x.dtype), *inputs[k + 1 :]] for h in (STEP, -STEP)]
            ys, zs = map(run, ends)
            expected = scale = 0.0
            for j, dy in zip(gradient.floating, dys, strict=True):
                terms = dy * (ys[j].astype(np.float64) - zs[j].astype(np.float64)) / (2 * STEP)
                expected, scale = expected + terms.sum(), scale + np.abs(terms).sum()
            if not np.isfinite(expected):
                continue
            scale = max(scale, float(np.abs(dx * v).sum()), 1e-3)
            actual = float((dx * v).sum())
            assert abs(actual - expected) <= tolerance * scale, (
                f"input {k}, sizes {dict(sizes)}: the gradient gives {actual}, differences {expected}"
            )


__all__ = [
    "Gradient",
    "check_differences",
    "cotangents",
    "differentiate",
    "gradient_of",
    "in_float64",
    "is_precise",
    "smooth_arrays",
    "symbols_of",
]
