"""The benchmark of language models in a browser: the weights that both engines get, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from bench.llm.model import write
from bench.web import llm
from bench.web.llm_models import SIZES, SMALL_MODEL, small_model

from tilewright.llm.weights import open_checkpoint


def test_the_small_model_as_gguf_has_its_weights(tmp_path: Path) -> None:
    write(SIZES["small-model"], "bf16", tmp_path / "model.gguf", small_model())
    found, expected = open_checkpoint(tmp_path / "model.gguf"), open_checkpoint(SMALL_MODEL)
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name].read(), expected[name].read(), name)


def test_the_large_model_has_100_million_parameters() -> None:
    matrices = SIZES["llama-100m"].matrices().values()
    assert sum(m * n for m, n in matrices) == pytest.approx(1e8, rel=0.02)


def test_ratios_are_those_to_the_faster_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "RESULTS", tmp_path)
    times = {"tilewright": 2.0, "wllama-2": 8.0, "wllama-3": 16.0}
    found = {
        engine: {"prefill": [10 * ms] * 3, "decode": [ms, ms, 99], "texts": [engine[0]]}
        for engine, ms in times.items()
    }
    row = llm.row_of("small-model", 2, found)
    assert row["ratios"] == {"prefill": 4, "decode": 4}
    assert row["same_texts"] == {"wllama-2": False, "wllama-3": False}
    roof = {"bandwidth": 1e10, "int8": 1e12, "browser": "Chromium 1"}
    llm.record([{**row, **roof}])
    del found["wllama-3"]
    llm.record([{**llm.row_of("llama-100m", 2, found), **roof}])
    data = json.loads((tmp_path / "web-llm.json").read_text())
    assert [entry["model"] for entry in data["rows"]] == ["small-model", "llama-100m"]
    text = (tmp_path / "web-llm.md").read_text()
    assert "| small-model | 2 | 500 | 125 | 62 | 4.00 |" in text
    assert "| llama-100m | 2 | 500 | 125 | — | 4.00 |" in text
