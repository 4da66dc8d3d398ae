"""`tilewright llm transcribe` with a model that hears the number of samples."""

from __future__ import annotations

import json
import types
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tilewright.cli import llm_transcribe
from tilewright.llm.speech.transcription import Transcriber, Transcription


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Replaces the model; the list has an entry for each start of the engine."""
    starts: list[bool] = []
    engine = types.SimpleNamespace(
        start=lambda: starts.append(True), stop=lambda: None, runner=types.SimpleNamespace(max_batch=2)
    )

    def transcribe(samples: Any, options: Any) -> Transcription:
        return Transcription(str(len(samples)), "en", 1.0, "transcribe", [])

    monkeypatch.setattr(llm_transcribe, "open_engine", lambda *options: engine)
    of_library = lambda engine, library: types.SimpleNamespace(transcribe=transcribe)  # noqa: E731
    monkeypatch.setattr(Transcriber, "of_library", of_library)
    return starts


def recording(path: Path, samples: int) -> str:
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.zeros(samples, np.int16).tobytes())
    return str(path)


def run(folder: Path, *arguments: str, **options: Any) -> Any:
    (folder / "model.so").write_bytes(b"")
    return CliRunner().invoke(llm_transcribe.command, [str(folder / "model.so"), *arguments], **options)


def test_files_of_texts(started: list[bool], tmp_path: Path) -> None:
    files = recording(tmp_path / "a.b.wav", 5), recording(tmp_path / "c.wav", 7)
    out = tmp_path / "new" / "out"
    for form, ending in (("text", "txt"), ("verbose_json", "json"), ("srt", "srt")):
        result = run(tmp_path, *files, "-o", str(out), "--format", form)
        assert result.exit_code == 0, result.output
        assert result.output.split() == [str(out / f"a.b.{ending}"), str(out / f"c.{ending}")]
    assert (out / "a.b.txt").read_text() == "5\n"
    assert json.loads((out / "c.json").read_text())["text"] == "7"


def test_equal_names_of_texts(started: list[bool], tmp_path: Path) -> None:
    files = recording(tmp_path / "a" / "x.wav", 5), recording(tmp_path / "b" / "x.wav", 7)
    for given in (files, (files[0], files[0])):
        result = run(tmp_path, *given, "-o", str(tmp_path / "out"))
        assert result.exit_code == 2 and not started
        assert f"the texts of {given[0]} and {given[1]} would both be" in result.output
    assert run(tmp_path, *files).output == "5\n7\n"  # without files


def test_files_that_cannot_be_read(
    started: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = recording(tmp_path / "bad.wav", 5), recording(tmp_path / "good.wav", 7)
    read = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.name == "bad.wav":
            raise OSError("the disk is broken")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    result = run(tmp_path, *files, standalone_mode=False)
    assert result.exception is None and result.return_value == 1
    assert "bad.wav: the disk is broken" in result.output and "7\n" in result.output
