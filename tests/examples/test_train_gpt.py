"""The language model of bytes learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

PATH = Path(__file__).parents[2] / "examples" / "train_gpt.py"


def test_it_learns() -> None:
    spec = importlib.util.spec_from_file_location("train_gpt", PATH)
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    losses, step = example.train(40)
    assert abs(losses[0] - np.log(256)) < 0.3
    assert np.mean(losses[-5:]) < 3.3
    assert example.written(step, "def ", 3).startswith("def ")
