"""The output that docs/internals/miniature.md shows is what its code prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import DOCS, code_blocks, run_page


def test_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "miniature"))
    printed: list[str] = []
    run_page("internals/miniature.md", print=lambda value: printed.append(f"{value}\n"))
    blocks = code_blocks((DOCS / "internals/miniature.md").read_text())
    assert printed == [text for kind, text, _ in blocks if kind == "text"]
