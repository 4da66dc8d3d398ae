"""The code of docs/extending/adding-a-kernel.md runs."""

from __future__ import annotations

from .pages import run_page


def test_page() -> None:
    assert run_page("extending/adding-a-kernel.md")["library"].report.replaced
