"""The code of docs/extending/adding-a-library.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.ir.debug import VARIABLE
from tilewright.targets.llvm.libraries import LIBRARIES, unregister_library

from .pages import run_page

PAGE = "extending/adding-a-library.md"


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)  # strict mode forbids the slower form that the page shows
    try:
        assert run_page(PAGE)["short"].report.slower
    finally:
        unregister_library("acme")
    assert not LIBRARIES
