"""What docs/llm/weights-and-quantization.md shows is run, from top to bottom, in an empty folder; its table has all schemes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.llm.quantization import scheme_names
from tilewright.llm.weights import ConvertedFolder

from .pages import DOCS, run_page_with_commands

PAGE = "llm/weights-and-quantization.md"


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_page_with_commands(PAGE, tmp_path)
    assert "small-int4: 21 tensors" in printed[0][1]
    plain, aware = (ConvertedFolder(tmp_path / name) for name in ("small-int4", "small-aware"))
    assert plain.quantization.name == "int4_g32" and aware.quantization.name == "int4_g128"


def test_every_scheme_is_named() -> None:
    text = (DOCS / PAGE).read_text()
    assert [name for name in scheme_names() if name.removesuffix("_asym") not in text] == []
