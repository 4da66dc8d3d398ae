"""Runs samples of ONNX's suite and compares them with the committed outcomes; `python -m
tests.conformance.onnx_suite` runs all of it.
"""

from __future__ import annotations

import json

import onnx
import pytest

from .coverage import PAGE, filled, page
from .onnx_draws import DRAWN
from .onnx_suite import DATA, Case, cases, compiled, interpreted, outcome

COMMITTED = json.loads(DATA.read_text())
PARTS = 8

ROUNDED = {
    "node/test_attention_4d_causal_bf16_expanded": (
        "the interpreter rounds after every step, to within one more bit than is allowed"
    )
}
"""Cases that pass when compiled, because fused code rounds less often, but not on the interpreter."""


def check(some: tuple[Case, ...], native: bool) -> None:
    """Check that cases are right if they passed before, and that cases that pass now are not committed as
    failures.
    """
    if COMMITTED["onnx"] != onnx.__version__:
        pytest.skip("another release of onnx bundles other cases")
    found = {case.full_name: outcome(case, compiled if native else interpreted) for case in some}
    known = COMMITTED["not_passed"]
    if native:
        assert {name for name, result in found.items() if result == "pass" and name in known} == set()
    else:
        known = {**known, **ROUNDED}
    worse = {name: result for name, result in found.items() if result != "pass" and name not in known}
    worse |= {name: found[name] for name in found if known.get(name) == DRAWN and found[name] != DRAWN}
    assert worse == {}


@pytest.mark.parametrize("part", range(PARTS))
def test_interpreted(part: int) -> None:
    check(cases()[part::PARTS], native=False)


@pytest.mark.parametrize("part", range(4))
def test_compiled(part: int) -> None:
    check(cases()[part * 10 :: 40], native=True)


def _has_a_shape(case: Case) -> bool:
    """Whether some input may hold axes, a shape or a count."""
    tensors = [i.type.tensor_type for i in case.model.graph.input]
    return any(
        t.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) and len(t.shape.dim) <= 1
        for t in tensors
    )


def test_without_examples() -> None:
    """Cases whose inputs are axes, shapes or counts have the committed outcomes when the compiler gets no
    example inputs.
    """
    if COMMITTED["onnx"] != onnx.__version__:
        pytest.skip("another release of onnx bundles other cases")
    some = [case for case in cases() if _has_a_shape(case)][::8]
    known = COMMITTED["without_examples"]["not_passed"]
    found = {case.full_name: outcome(case, interpreted, examples=False) for case in some}
    assert len(found) > 30
    assert {name: result for name, result in found.items() if result != "pass" and name not in known} == {}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == filled(page())
