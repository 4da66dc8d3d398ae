"""Runs samples of torch's operator database through ``torch.compile``; `python -m
tests.conformance.torch_compile_suite` runs all of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from .torch_compile_suite import outcomes, summary, write


@pytest.mark.parametrize(
    "name", ("gather", "masked_scatter", "nn.functional.group_norm", "nn.functional.logsigmoid")
)
def test_compiled(name: str) -> None:
    found = list(outcomes(name, 0, 2))
    assert len(found) == 2 and set(found) == {"pass"}


def test_what_torch_runs_is_named() -> None:
    (found,) = outcomes("linalg.eigvals", 0, 1)
    assert found.startswith("in torch: ") and "aten.linalg_eig" in found


def test_counts(tmp_path: Path) -> None:
    found = {"a": {"pass": 2}, "b": {"in torch: x": 1, "wrong: y": 1}, "c": {"not exported: E": 1}}
    counts = summary(found)
    assert (counts["operators"], counts["samples"], counts["right"], counts["right, wholly compiled"]) == (
        3,
        4,
        3,
        2,
    )
    assert counts["not torch's to trace"] == 1
    write(tmp_path / "data.json", found, 2)
    assert json.loads((tmp_path / "data.json").read_text())["outcomes"] == found
