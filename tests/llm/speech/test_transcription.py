"""Transcriptions are those of `transformers`, token by token and time by time."""

from __future__ import annotations

import json
import wave
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tilewright.cli.llm import command  # noqa: E402
from tilewright.errors import RequestError  # noqa: E402
from tilewright.llm.engine.engine import Engine  # noqa: E402
from tilewright.llm.library import LibraryOptions, compile_library, open_library, save_library  # noqa: E402
from tilewright.llm.speech.forms import written  # noqa: E402
from tilewright.llm.speech.transcription import Transcriber, TranscriptionOptions  # noqa: E402
from tilewright.llm.weights import open_checkpoint  # noqa: E402

from .small_whisper import POSITIONS, model, noise, save, token  # noqa: E402

WINDOW = POSITIONS * 0.02


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A model whose outputs have texts and times in turns, and end."""
    made = model()
    with torch.no_grad():
        for name, p in made.named_parameters():
            if p.ndim > 1:
                p.normal_(0, (3.0 if "embed_tokens" in name else 2.0) * p[0].numel() ** -0.5)
        made.model.decoder.embed_tokens.weight[token("endoftext")] *= 1.5
        made.model.decoder.embed_tokens.weight[token("0.00") :] *= 1.3
    return made


@pytest.fixture(scope="module")
def library(theirs: Any, tmp_path_factory: Any) -> Path:
    folder = save(theirs, tmp_path_factory.mktemp("whisper"))
    options = LibraryOptions(context=64, max_batch=3, cache_dtype="float32", precision=None)
    with compile_library(folder, options) as made:
        return save_library(made, open_checkpoint(folder), folder / "model.so")


@pytest.fixture(scope="module")
def transcriber(library: Path) -> Any:
    runner, tokenizer, _ = open_library(library)
    return Transcriber.of_library(Engine(runner, tokenizer), library)


def features(samples: Any) -> Any:
    extractor = transformers.WhisperFeatureExtractor(feature_size=40, chunk_length=1)
    extractor.n_samples = int(16000 * WINDOW)
    return extractor(samples, sampling_rate=16000, truncation=False, return_tensors="pt").input_features


PLAIN = TranscriptionOptions(
    language="de", temperatures=(0.0,), most_compressible=None, least_logprob=None, most_silence=None,
    previous_text=False,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_windows_like_transformers(seed: int, theirs: Any, transcriber: Any) -> None:
    """A recording of several windows: each begins where the segments of the one before end."""
    samples = noise(3.3, seed)
    given = features(samples)
    result = theirs.generate(
        given, return_timestamps=True, language="de", task="transcribe", return_segments=True,
        condition_on_prev_tokens=False, temperature=0.0, max_new_tokens=32,
    )  # fmt: skip
    wanted = [(s["start"].item(), s["end"].item(), s["tokens"].tolist()) for s in result["segments"][0]]
    found = transcriber.transcribe(samples, PLAIN).segments
    text = [w for w in wanted if any(t < token("endoftext") for t in w[2])]
    assert text
    assert [s.tokens for s in found] == [_without_second_time(t) for _, _, t in text]
    np.testing.assert_allclose([(s.start, s.end) for s in found], [w[:2] for w in text], atol=1e-6)


def _without_second_time(tokens: list[int]) -> list[int]:
    """Drop the beginning of the next segment, which `transformers` adds to the last one of a window."""
    both = len(tokens) > 1 and tokens[-1] >= token("0.00") and tokens[-2] >= token("0.00")
    return tokens[:-1] if both else tokens


def test_language_and_one_window(theirs: Any, transcriber: Any) -> None:
    samples = noise(1.2)
    given = features(samples)
    result = transcriber.transcribe(samples, replace(PLAIN, language=None, timestamps=False))
    told = theirs.detect_language(given)
    assert token(result.language) == told.item()
    expected = theirs.generate(
        given, language=result.language, task="transcribe", return_timestamps=False, max_new_tokens=32
    )[0].tolist()
    start = expected.index(token("notimestamps")) + 1 if token("notimestamps") in expected else 0
    assert result.segments[0].tokens == [t for t in expected[start:] if t != token("endoftext")]
    with pytest.raises(RequestError, match="does not know the language 'fr'; known: de, en"):
        transcriber.transcribe(samples, replace(PLAIN, language="fr"))


def test_windows_of_several_recordings_share_steps(transcriber: Any) -> None:
    recordings = [noise(seconds, k) for k, seconds in enumerate((0.7, 2.9, 1.5, 3.1))]
    alone = [transcriber.transcribe(samples) for samples in recordings]
    transcriber._engine.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(transcriber.transcribe, recordings)) == alone
    finally:
        transcriber._engine.stop()
        transcriber._engine._state = ""


def test_attempts(transcriber: Any) -> None:
    """A text that is not accepted is generated again at the next temperature; the last one counts."""
    samples = noise(3.3)
    strict = replace(PLAIN, temperatures=(0.0, 0.5, 1.0), least_logprob=0.0)
    assert {s.temperature for s in transcriber.transcribe(samples, strict).segments} == {1.0}
    assert transcriber.transcribe(samples, strict) == transcriber.transcribe(samples, strict)
    easy = replace(strict, least_logprob=-100.0)
    assert {s.temperature for s in transcriber.transcribe(samples, easy).segments} == {0.0}
    silent = replace(strict, most_silence=-1.0)
    assert not transcriber.transcribe(samples, silent).segments


def test_command_line(library: Path, tmp_path: Path, transcriber: Any) -> None:
    samples = (noise(2.0) * 20000).astype(np.int16)
    with wave.open(str(tmp_path / "noise.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    run = ["transcribe", str(library), str(tmp_path / "noise.wav"), "--temperature", "0"]
    result = CliRunner().invoke(command, [*run, "--format", "verbose_json"])
    assert result.exit_code == 0, result.output
    options = TranscriptionOptions(temperatures=(0.0,))
    expected = transcriber.transcribe(samples.astype(np.float32) / 32768, options)
    assert json.loads(result.output) == json.loads(written(expected, "verbose_json"))
    run += [str(tmp_path / "bad.wav"), "--format", "srt"]
    result = CliRunner().invoke(command, run, standalone_mode=False)
    assert result.return_value == 1
    assert "bad.wav: the" in result.output and "-->" in result.output
