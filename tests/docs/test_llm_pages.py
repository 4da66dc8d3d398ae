"""The code of pages on language models runs; the assertions in it check what the pages say."""

from __future__ import annotations

import pytest

from .pages import run_page


def test_adding_a_model() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    page = run_page("extending/adding-a-language-model.md")
    assert type(page["model"]).__name__ == "Granite"


def test_experts() -> None:
    run_page("llm/experts.md")
