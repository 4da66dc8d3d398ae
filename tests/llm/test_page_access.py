"""Pages of a compiled library in files: the same library finds them again, and answers the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm.small_library import checkpoint
from tests.llm.small_tokenizer import tokenizer
from tilewright.errors import ArtifactError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library, save_library
from tilewright.llm.weights import open_checkpoint
from tilewright.runtime.library import Library


def test_pages_and_replies_of_a_compiled_library(tmp_path: Path) -> None:
    source = open_checkpoint(checkpoint(tmp_path / "llama", layers=1))
    options = LibraryOptions(context=256, chunk=64, max_batch=2, cache_dtype="int8")
    with compile_library(source, options) as made:
        with pytest.raises(ArtifactError, match="saved with its weights beside it"):
            Engine(LibraryRunner(made), tokenizer(), EngineOptions(page_folder=tmp_path / "pages"))
        save_library(made, source, tmp_path / "model.so")
    prompt = list(range(5, 135))
    turn, answers = list(prompt), []
    for kept in (False, True, True):
        with Library(tmp_path / "model.so") as library:
            folder = tmp_path / "pages" if kept else None
            engine = Engine(LibraryRunner(library), tokenizer(), EngineOptions(page_folder=folder))
            found = []
            for length in (60, 20):
                stream = engine.submit(
                    Request(turn, SamplingParameters(0), max_tokens=length, ignore_eos=True)
                )
                found.append(stream.collect()[0].tokens)
                turn = [*prompt, *found[0], 9, 8, 7]
                while kept and engine.step():
                    pass
            # The second library with files finds the third page whole, with tokens of the longer prompt.
            assert stream.cached_tokens == (128, len(prompt) + 60, 192)[len(answers)]
            answers.append(found)
            turn = list(prompt)
            engine.stop()
    assert answers[0] == answers[1] == answers[2]
    assert engine.stats().pages_read == 3 and engine.stats().pages_refused == 0
