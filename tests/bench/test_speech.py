"""The benchmark of speech to text: one run of the smallest size without the peer, and the report."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from bench.llm.measure import Case
from bench.measure import with_ratios
from bench.roofline import Roof
from bench.speech.__main__ import main, markdown
from bench.speech.model import SIZES
from bench.speech.sessions import WORKLOADS

from bench import results

ROOF = Roof(2, {"float32": 1e11}, 2e10)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="the recording is made by espeak-ng")
def test_a_run_of_the_smallest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    path = tmp_path / "speech.json"
    common = ["--size", "least", "-t", "1", "-s", "0.05", "--environments", str(tmp_path / "none")]
    main([*common, "-p", "int8", "--results", str(path)])
    rows = results.read(path)
    assert [row["case"]["workload"] for row in rows] == ["text", *WORKLOADS]
    text, *measured = (row["engines"]["tilewright"] for row in rows)
    assert text["tokens"] == text["same_tokens"] == SIZES["least"].tokens and "failed" not in text
    for figure in measured:
        assert 0 < figure["min_milliseconds"] <= figure["milliseconds"] and figure["samples"] >= 3
    assert "faster-whisper is left out" in capsys.readouterr().out
    assert "| least | 30 s of speech to 32 tokens | int8 | 1 |" in path.with_suffix(".md").read_text()


def test_the_report_compares_figures_of_one_run(tmp_path: Path) -> None:
    path, case = tmp_path / "speech.json", Case("tiny", "float32", "text", 2)
    settings = {"settings": "s", "version": "1", "tokens": 224}
    engines = {
        "tilewright": {**settings, "same_tokens": 224}, "faster-whisper": {**settings, "same_tokens": 9}
    }  # fmt: skip
    results.merge(path, case, engines, ROOF)
    for ours, theirs in ((100.0, 150.0), (50.0, None)):
        times = {"tilewright": ours} | ({} if theirs is None else {"faster-whisper": theirs})
        figures = {
            name: {"milliseconds": ms, "min_milliseconds": ms / 2, "max_milliseconds": ms * 2}
            for name, ms in times.items()
        }
        results.merge(path, replace(case, workload="transcribe"), with_ratios(figures), ROOF)
        ratio = "" if theirs is None else "1.50"
        text = markdown(results.read(path))
        assert f" {ours:.{0 if ours >= 100 else 1}f} | " in text and text.count(f"| 150 | {ratio} |") == 1
    assert "| tiny | float32 | faster-whisper | 9 of 224 |" in text
