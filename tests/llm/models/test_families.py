"""Every family gives the logits of `transformers` for small models with random weights, read from checkpoints
on disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.numpy import load_file  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.installed_packages import installing  # noqa: E402
from tilewright.cli.llm import command  # noqa: E402
from tilewright.llm.cache import DenseCache, NoCache  # noqa: E402
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.load_weights import load_weights  # noqa: E402
from tilewright.llm.models import build  # noqa: E402

from . import families  # noqa: E402
from .tiny import GROUPED, MODELS, checkpoint, logits, tokens  # noqa: E402


@pytest.fixture(scope="module", params=MODELS)
def pair(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """A family's model here, and the one of `transformers`."""
    folder = tmp_path_factory.mktemp("model")
    theirs = checkpoint(request.param, folder)
    ours = build(folder)
    load_weights(ours, load_file(folder / "model.safetensors"))
    return ours, theirs


def close(found: Any, expected: Any) -> None:
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_whole_sequence(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    x = tokens(2, 21)
    expected = logits(theirs, x)
    close(ours(x, NoCache(x)), expected)


def test_in_parts(pair: tuple[Any, Any]) -> None:
    """Chunks of a prompt and then single tokens give the logits of the whole text."""
    ours, theirs = pair
    x = tokens(2, 21)
    cache = DenseCache()
    parts = [x[:, a:b] for a, b in zip([0, 12, 18, 19, 20], [12, 18, 19, 20, 21], strict=True)]
    close(np.concatenate([ours(part, cache.before(part)) for part in parts], 1), logits(theirs, x))


QUICK = ("gpt neox", "mistral", "mixtral", "falcon h1")
"""One family for each mechanism, because compiling is slow."""


@pytest.mark.parametrize(
    "pair", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MODELS], indirect=True
)
def test_compiled(pair: tuple[Any, Any]) -> None:
    """Models compiled with a dynamic batch and length give the same logits."""
    ours, theirs = pair

    def function(tokens: Any) -> Any:
        return ours(tokens, NoCache(tokens))

    library = tw.compile(function, (tokens(2, 21),), dims={"tokens": {0: "batch<=3", 1: "seq<=40"}})
    for batch, n in ((2, 21), (1, 17), (3, 40)):
        x = tokens(batch, n)
        close(library(x), logits(theirs, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_library(name: str, tmp_path: Path) -> None:
    """A library gives the same logits for chunks of prompts, and then for one token of each of several
    sequences of different lengths, with pages and slots in any order.
    """
    theirs = checkpoint(name, tmp_path)
    x = tokens(3, 60).astype(np.int32)
    expected = logits(theirs, x.astype(np.int64))
    pages, slots, lengths = (
        np.array([[1], [3], [0]], np.int32),
        np.array([2, 0, 3], np.int32),
        np.zeros(3, np.int32),
    )
    options = LibraryOptions(
        context=64, chunk=32, max_batch=4, pages=4, cache_dtype="float32", precision=None
    )
    with compile_library(tmp_path, options) as library:
        runner = LibraryRunner(library)
        for row, chunks in enumerate(((20, 7, 1), (32, 8), (5, 5))):
            for n in chunks:
                start, end = lengths[row], lengths[row] + n
                found = runner.prefill(x[row, start:end], int(start), pages[row], int(slots[row]))
                close(found, expected[row, end - 1])
                lengths[row] = end
        for rows in ([0, 1, 2], [2, 0], [1], [0, 2, 1]):
            found = runner.decode(x[rows, lengths[rows]], lengths[rows], pages[rows], slots[rows])
            close(found, expected[rows, lengths[rows]])
            lengths[rows] += 1


def test_table_of_families() -> None:
    """The documentation has the table of the registry, with figures of every family of decoders."""
    page = families.PAGE.read_text()
    assert page == families.written(page), "run python -m tests.llm.models.families"
    figures = json.loads(families.FIGURES.read_text())
    assert figures.keys() == {*families.NAMES}
    assert all(f["difference"] < 1e-4 and f["equal"] == families.TOKENS for f in figures.values())


def test_a_family_of_another_package(tmp_path: Path) -> None:
    """An entry point registers a family; a module that --import names does so, too."""
    code = (
        "from tilewright.llm.models import register\n"
        "from tilewright.llm.models.llama import Llama\n"
        "def announce():\n"
        "    register('llama_of_a_package')(type('PackageLlama', (Llama,), {}))\n"
    )
    config = {"model_type": "llama_of_a_package", **GROUPED, "hidden_act": "silu"}
    with installing(tmp_path) as install:
        install(
            "some-families",
            "some_families",
            code,
            "[tilewright.llm_families]\nsome = some_families:announce\n",
        )
        assert type(build(config)).__name__ == "PackageLlama"
    own = tmp_path / "own_family.py"
    own.write_text(f"{code}announce()\n".replace("of_a_package", "of_a_file").replace("Package", "File"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "model_type": "llama_of_a_file"}))
    CliRunner().invoke(
        command, ["compile", str(tmp_path / "model"), "-o", str(tmp_path / "m.so"), "--import", str(own)]
    )
    assert type(build(tmp_path / "model")).__name__ == "FileLlama"
