"""The adapter of the small language model learns, and only the adapter does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "examples" / "lora.py"


def test_the_adapter_learns() -> None:
    for package in ("torch", "transformers", "tokenizers", "safetensors"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("lora", PATH)
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    losses, step = example.train(24)
    assert np.mean(losses[-6:]) < np.mean(losses[:6]) - 0.1
    names = step.parameter_names
    assert len(names) == 6 * len(example.ADAPTED) * 2
    assert all("lora_" in n for n in names)
    assert sum(step.state_dict()[n].size for n in names) < 60_000
