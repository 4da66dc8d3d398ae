"""Samples of torch's operator database through ``torch.compile``; the whole of it is `python -m tests.conformance.torch_compile_suite`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from .torch_compile_suite import outcomes, read_journal, summary


@pytest.mark.parametrize("name", ("logsumexp", "gather", "nn.functional.group_norm"))
def test_compiled(name: str) -> None:
    found = list(outcomes(name, 2))
    assert len(found) == 2 and set(found) == {"pass"}


def test_what_torch_runs_is_named() -> None:
    (found,) = outcomes("linalg.qr", 1)
    assert found.startswith("in torch: ") and "aten.linalg_qr.default" in found


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    assert read_journal(journal) == {}
    journal.write_text('\n{"a": ["pass"]}\n{"b": ["pa\n{"c": []}')
    assert read_journal(journal) == {"a": ["pass"], "c": []}


def test_counts() -> None:
    found = summary({"a": ["pass", "pass"], "b": ["in torch: x", "wrong: y"], "c": ["not exported: E"]})
    assert (found["operators"], found["samples"], found["right"], found["right, wholly compiled"]) == (2, 4, 3, 2)
    assert found["not torch's to trace"] == 1 and set(found["not_passed"]) == {"b", "c"}
