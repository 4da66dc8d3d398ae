"""The code of docs/extending/scheduling-a-kernel.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import run_page

PAGE = "extending/scheduling-a-kernel.md"


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(PAGE)
    assert names["again"].kernels.keys() == names["library"].kernels.keys()
