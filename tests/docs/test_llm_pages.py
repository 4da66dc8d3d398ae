"""The pages on language models whose code says itself, by assertions, what it promises."""

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
