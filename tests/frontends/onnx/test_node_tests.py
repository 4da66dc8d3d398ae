"""The node tests that ONNX bundles: none gives a wrong result at the graph or tensor level, and the committed table is true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from .backend_cases import cases, outcome, outcomes, table

FINE = ("pass", "unsupported")


def test_no_bundled_case_gives_another_result():
    assert not {name: result for name, result in outcomes().items() if result not in FINE}
    assert Counter(outcomes().values())["pass"] >= 1150


def test_the_table_of_operators_is_up_to_date():
    text = (Path(__file__).parent / "node_tests.md").read_text()
    if f"onnx {onnx.__version__}," in text:  # other releases bundle other cases
        assert text.splitlines() == list(table())


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_lowering_to_the_tensor_level_keeps_results(part):
    results = {case.name: outcome(case, lowered=True) for case in cases()[part::3]}
    assert not {name: result for name, result in results.items() if result not in FINE}
    assert Counter(results.values())["pass"] >= 350
