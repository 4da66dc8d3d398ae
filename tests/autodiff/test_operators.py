"""The gradients of every graph operator: with central differences, of its own test cases, and compiled."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import tilewright as tw
from tests.dialects.graph.harness import Case
from tests.dialects.graph.test_operators import CASES
from tilewright.dialects import graph
from tilewright.errors import GradientError
from tilewright.ir.core import IRError
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import DType, f32, f64

from .operators import (
    Gradient,
    check_differences,
    cotangents,
    gradient_of,
    in_float64,
    is_precise,
    smooth_arrays,
    symbols_of,
)
from .without_gradient import BY_NATURE, ELSEWHERE, STRAIGHT_THROUGH

LISTED = {name for names in BY_NATURE.values() for name in names}
TESTED = {*STRAIGHT_THROUGH, *(name for names in ELSEWHERE.values() for name in names)}
COMPARED = sorted(set(graph.OPERATORS) - LISTED - TESTED)


@cache
def cases(operator: str) -> tuple[Case, ...]:
    """The cases of an operator in the wide types; one with 16-bit inputs has a twin with 32."""
    found = [c for c in CASES if c.operator == operator]
    wide = [c for c in found if not any(i.dtype.is_float and i.dtype.bits <= 16 for i in c.inputs)]
    return tuple(in_float64(c) for c in wide or found)


def differentiated(case: Case, symbolic: bool) -> Gradient | None:
    """The gradient of a case, with symbols or its first sizes; None if it is independent of the inputs."""
    try:
        found = gradient_of(case, symbols_of(case) if symbolic else case.sizes[0])
    except (GradientError, IRError):
        return None
    return found if found.wanted else None


@pytest.mark.parametrize("operator", COMPARED)
def test_gradients_equal_differences(operator: str) -> None:
    compared = 0
    for case in cases(operator):
        gradient = gradient_of(case, case.sizes[0])
        if not is_precise(gradient) or not gradient.wanted:
            continue
        check_differences(case, gradient, case.sizes[0])
        compared += 1
        if case.symbolic and case.sizes[0]:
            gradient = gradient_of(case, symbols_of(case))
            for sizes in case.sizes[1:] or case.sizes:
                check_differences(case, gradient, sizes)
    assert compared


@pytest.mark.parametrize("dtype", [f32, f64], ids=lambda t: t.label)
@pytest.mark.parametrize("operator", COMPARED)
def test_compiled_gradients_equal_the_interpreters(operator: str, dtype: DType) -> None:
    case = next(
        c
        for c in CASES
        if c.operator == operator
        and any(i.dtype is f32 for i in c.inputs)
        and differentiated(c, False) is not None
        and 0 not in c.sizes[0].values()
    )
    case = in_float64(case) if dtype is f64 else case
    gradient = differentiated(case, case.symbolic and bool(case.sizes[0]))
    assert gradient is not None
    sizes = case.sizes[0]
    inputs = smooth_arrays(case, sizes)
    dys = cotangents(gradient, Interpreter(gradient.forward).run("main", inputs, dict(sizes)))
    expected = Interpreter(gradient.backward).run("main", [*inputs, *dys], dict(sizes))
    names = gradient.backward.symbol("main").arg_names
    with tw.compile(gradient.backward) as library:
        found = library(**dict(zip(names, [*inputs, *dys], strict=True)))
    found = found if isinstance(found, tuple) else (found,)
    tolerance = 1e-9 if is_precise(gradient) else 1e-5
    for y, z in zip(found, expected, strict=True):
        scale = max(float(np.abs(z).max(initial=0)), 1e-3)
        np.testing.assert_allclose(y, z, rtol=0, atol=tolerance * scale)


def test_every_operator_has_a_gradient_or_a_reason() -> None:
    for name in graph.OPERATORS:
        if name in LISTED:
            working = [c for c in cases(name) if differentiated(c, False) is not None]
            assert not working, f"{name} has a gradient: remove it from tests/autodiff/without_gradient.py"
            continue
        for case in cases(name) if name != "Svd" else ():  # that of completed bases is refused
            try:
                gradient_of(case, case.sizes[0])
            except GradientError as e:
                raise AssertionError(f"{name} has neither a rule nor a place in a list: {e}") from e
    assert not (LISTED | TESTED) - set(graph.OPERATORS)
