"""Wrong operands and attributes: each operator either refuses them where it is made, naming itself, or its
reference and its lowering agree about them.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tilewright.dialects import graph
from tilewright.errors import SizeError, TilewrightError
from tilewright.ir.core import IRError, Module
from tilewright.ir.interpreter import Interpreter

from .mutations import Use, mutations, uses
from .test_operators import CASES, lowered_copy

CHECKS = (graph.Check, graph.CheckIndex, graph.CheckDivisor)
SIGNS_ARE_FREE = (graph.Svd, graph.Eigh)
"""Operators with several right results, whose lowering takes long to interpret."""


def some_uses(name: str) -> list[Use]:
    """A valid use of an operator for each number of its operands."""
    found: dict[object, Use] = {}
    for case in CASES:
        if case.operator == name:
            for use in uses(case):
                found.setdefault(len(use.types), use)
    return list(found.values())


@pytest.mark.parametrize("name", sorted(graph.OPERATORS))
def test_wrong_operands_are_refused_or_computed(name: str) -> None:
    for use in some_uses(name):
        assert refusal(use) is None, use
        for wrong in mutations(use):
            message = refusal(wrong)
            if message is not None:
                assert use.like.name in message or "more bytes" in message, message
            else:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    check_result(wrong)


def refusal(use: Use) -> str | None:
    """The message with which the operator refuses its operands, or None."""
    try:
        use.module()
    except (IRError, SizeError) as error:
        return str(error)
    return None


def check_result(use: Use) -> None:
    """Check that the reference gives results of the inferred types, and that the lowering gives the same."""
    module: Module = use.module()
    inputs = use.arrays(np.random.default_rng(0))
    (op, *_) = module.symbol("main").body.ops
    if isinstance(op, (graph.AssumeShape, graph.BindSize)):  # Another operator computes their sizes.
        return
    try:
        found = [np.asarray(y) for y in Interpreter(module).run("main", inputs, {})]
    except (IRError, TilewrightError):
        assert isinstance(op, CHECKS), use
        return
    for y, result in zip(found, op.results, strict=True):
        assert y.dtype == result.type.dtype.numpy, use
        assert y.ndim == result.type.rank, use
        assert all(n == m for n, m in zip(y.shape, result.type.shape, strict=True) if isinstance(m, int)), use
    lowered = lowered_copy(module)
    if isinstance(op, SIGNS_ARE_FREE):
        return
    if isinstance(op, graph.QuantizedMatMul) and op.largest is not None:
        return  # the numbers are no magnitudes of rows here
    again = Interpreter(lowered).run("main", inputs, {})
    for y, z in zip(found, again, strict=True):
        assert y.shape == np.shape(z), use
        if y.dtype.kind in "iub":
            assert np.array_equal(y, z), use
        else:
            tolerance = 6e-2 if y.dtype.itemsize < 4 else 1e-3
            wide = y.astype(np.float64), np.asarray(z).astype(np.float64)
            assert np.allclose(*wide, tolerance, tolerance, equal_nan=True), use
