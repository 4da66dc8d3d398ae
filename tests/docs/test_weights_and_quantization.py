"""The code of docs/llm/weights-and-quantization.md runs in an empty folder, and its table lists all
schemes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.llm.quantization import scheme_names
from tilewright.llm.weights import ConvertedFolder

from .pages import DOCS, run_page

PAGE = "llm/weights-and-quantization.md"


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_page(PAGE, tmp_path)["printed"]
    assert "small-int4: 21 tensors" in printed[0][1]
    plain, aware = (ConvertedFolder(tmp_path / name) for name in ("small-int4", "small-aware"))
    assert plain.quantization.name == "int4_g32" and aware.quantization.name == "int4_g128"


def test_every_scheme_is_named() -> None:
    text = (DOCS / PAGE).read_text()
    assert [name for name in scheme_names() if name.removesuffix("_asym") not in text] == []
