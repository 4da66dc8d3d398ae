"""Every graph operator: its interpreter reference is compared with NumPy and torch, and its lowering with its
reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dialects import graph
from tilewright.ir.core import IRError, Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify
from tilewright.passes.tensor.lower_to_tensor import lower_to_tensor

from .control_flow_cases import CASES as CONTROL_FLOW
from .derivative_cases import CASES as DERIVATIVE
from .elementwise_cases import CASES as ELEMENTWISE
from .harness import Case, Sizes, arrays, build_module, symbols_of
from .linalg_cases import CASES as LINALG
from .movement_cases import CASES as MOVEMENT
from .network_cases import CASES as NETWORK
from .quantized_cases import CASES as QUANTIZED
from .reduction_cases import CASES as REDUCTION
from .scan_cases import CASES as SCAN

CASES: list[Case] = [
    *ELEMENTWISE,
    *MOVEMENT,
    *REDUCTION,
    *NETWORK,
    *SCAN,
    *CONTROL_FLOW,
    *DERIVATIVE,
    *LINALG,
    *QUANTIZED,
]


def compare(actual: list[Any], expected: Any, case: Case, what: str) -> None:
    wanted = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    assert len(actual) == len(wanted)
    for y, z in zip(actual, wanted, strict=True):
        z = np.asarray(z)
        assert y.shape == z.shape, f"{what}: shape {y.shape}, expected {z.shape}"
        if y.dtype.kind in "iub":
            np.testing.assert_array_equal(y, z, err_msg=what)
        else:
            wide = y.astype(np.float64), z.astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=case.tolerance, atol=case.tolerance, err_msg=what)


def check(case: Case, module: Module, lowered: Module, sizes: Sizes) -> None:
    inputs = arrays(case, sizes)
    with np.errstate(all="ignore"):
        expected = case.expected(dict(sizes), *inputs)
    found = Interpreter(module).run("main", inputs, dict(sizes))
    types = [v.type for v in module.symbol("main").body.terminator.operands]
    for y, t in zip(found, types, strict=True):
        assert y.dtype == t.dtype.numpy, f"reference gives {y.dtype}, the type is {t.dtype.label}"
    compare(found, expected, case, f"reference, sizes {dict(sizes)}")
    again = Interpreter(lowered).run("main", inputs, dict(sizes))
    for y, t in zip(again, types, strict=True):
        assert y.dtype == t.dtype.numpy
    compare(again, [np.asarray(y) for y in found], case, f"lowering, sizes {dict(sizes)}")


def lowered_copy(module: Module) -> Module:
    lowered: Module = module.clone()
    lower_to_tensor(lowered)
    verify(lowered)
    left = {op.name for op in lowered.walk() if op.name.startswith("graph.")} - {"graph.constant"}
    assert not left
    return lowered


@pytest.mark.parametrize("case", CASES, ids=str)
def test_static(case: Case) -> None:
    for sizes in case.sizes:
        module = build_module(case, sizes)
        types = [v.type for v in module.symbol("main").body.terminator.operands]
        assert all(t.is_static for t in types)
        check(case, module, lowered_copy(module), sizes)


@pytest.mark.parametrize("case", [c for c in CASES if c.symbolic and c.sizes[0]], ids=str)
def test_symbolic(case: Case) -> None:
    module = build_module(case, symbols_of(case))
    lowered = lowered_copy(module)
    for sizes in case.sizes:
        check(case, module, lowered, sizes)


@pytest.mark.parametrize("name", sorted(graph.OPERATORS))
def test_axes_out_of_range_are_refused(name: str) -> None:
    for case in (c for c in CASES if c.operator == name):
        for op in build_module(case, case.sizes[0]).walk():
            for attribute in (
                {"axis", "axes"} & set(op.attributes) if isinstance(op, graph.OPERATORS[name]) else ()
            ):
                for axis in (99, -99):
                    op.attributes[attribute] = axis if attribute == "axis" else (axis,)
                    with pytest.raises(IRError):
                        op.infer_types()


def test_every_operator_has_a_case() -> None:
    tested = {c.operator for c in CASES}
    assert not set(graph.OPERATORS) - tested, "operators without a test case"
    assert not tested - set(graph.OPERATORS), "cases of operators that do not exist"


def test_every_case_contains_its_operator() -> None:
    for case in CASES:
        module = build_module(case, case.sizes[0])
        assert any(isinstance(op, graph.OPERATORS[case.operator]) for op in module.walk()), case


def test_dynamic_shapes_are_tested_for_most_operators() -> None:
    dynamic = {c.operator for c in CASES if c.symbolic and c.sizes[0]}
    assert set(graph.OPERATORS) - dynamic <= {"Constant"}
