"""What docs/debugging.md shows is run, from top to bottom, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import run_page_with_commands


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_page_with_commands("debugging.md", tmp_path)
    assert all("still fails" in text for code, text in printed if "--check" in code)
