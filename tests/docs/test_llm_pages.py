"""The code of pages on language models runs; the assertions in it check what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import run_page


def test_adding_a_model() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    page = run_page("extending/adding-a-language-model.md")
    assert type(page["model"]).__name__ == "Granite"


def test_experts() -> None:
    run_page("llm/experts.md")


def test_gpus(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.devices import need
    from tests.llm.devices import without_nvrtc
    from tests.llm.small_library import checkpoint
    from tests.llm.small_tokenizer import tokenizer

    need("cuda")
    with without_nvrtc():
        run_page("llm/gpus.md", checkpoint=checkpoint(tmp_path), tokenizer=tokenizer())
