"""The code of pages on language models runs; the assertions in it check what the pages say."""

from __future__ import annotations

import re
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


def test_images(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from click.testing import CliRunner
    from tests.llm.vision.small_models import checkpoint, picture

    from tilewright.cli.llm import command
    from tilewright.errors import CompileError
    from tilewright.llm.library import LibraryOptions, compile_library, save_library
    from tilewright.llm.weights import open_checkpoint

    checkpoint("llava", tmp_path / "model")
    found = open_checkpoint(tmp_path / "model")
    with compile_library(found, LibraryOptions(context=256, chunk=64, max_batch=1)) as made:
        save_library(made, found, tmp_path / "library.so")
    page = run_page("llm/images.md", library=tmp_path / "library.so", photo=picture(40, 30))
    assert len(page["images"].views) == 1 and len(page["prompt"]) > 36
    picture(40, 30).save(tmp_path / "photo.png")
    chat = ["chat", str(tmp_path / "library.so"), "--max-tokens", "4", "--image"]
    chatted = CliRunner().invoke(command, [*chat, str(tmp_path / "photo.png")], input="What is it?\n/stats\n")
    counted = re.search(r"prompt: (\d+) tokens", chatted.stdout)
    assert chatted.exit_code == 0 and counted is not None and int(counted[1]) > 36
    missing = [*chat, str(tmp_path / "none.png")]
    refused = CliRunner().invoke(command, missing, input="What is it?\n", standalone_mode=False)
    assert refused.return_value == 1 and "none.png: No such file" in refused.stderr
    with pytest.raises(CompileError, match="adapters of models that take images .* --no-images"):
        compile_library(found, LibraryOptions(max_adapters=1))


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
