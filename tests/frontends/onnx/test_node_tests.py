"""The node tests that ONNX bundles: none gives a wrong result, and the committed table is true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx

from .backend_cases import cases, outcome, table


def test_no_bundled_case_gives_another_result():
    results = {case.name: outcome(case) for case in cases()}
    wrong = {name: result for name, result in results.items() if result not in ("pass", "unsupported")}
    assert not wrong
    assert Counter(results.values())["pass"] >= 1150


def test_the_table_of_operators_is_up_to_date():
    text = (Path(__file__).parent / "node_tests.md").read_text()
    if f"onnx {onnx.__version__}," in text:  # other releases bundle other cases
        assert text.splitlines() == list(table())
