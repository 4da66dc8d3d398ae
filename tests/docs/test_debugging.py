"""The code of docs/guide/debugging.md runs from top to bottom in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import run_page


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_page("guide/debugging.md", tmp_path)["printed"]
    assert all("still fails" in text for code, text in printed if "minimize --check" in code)
