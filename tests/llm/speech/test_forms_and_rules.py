"""Forms of transcriptions, recordings of several kinds, and the rules of timestamps."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
import wave
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tilewright.errors import RequestError
from tilewright.llm.speech import audio
from tilewright.llm.speech.audio import read_audio
from tilewright.llm.speech.forms import written
from tilewright.llm.speech.transcription import Segment, Transcription
from tilewright.llm.speech.vocabulary import SpeechVocabulary, TimestampRules
from tilewright.llm.tokenizer import Tokenizer

from .small_whisper import backend, settings, token

TEXT = Transcription(
    " one --> two",
    "en",
    3700.5,
    "transcribe",
    [
        Segment(0.0, 1.25, " one", [1], 0, 0.0, -0.1, 1.0, 0.01),
        Segment(3599.9996, 3661.5, " --> two", [2], 100, 0.0, -0.1, 1.0, 0.01),
    ],
)


def test_forms() -> None:
    assert written(TEXT, "text") == " one --> two\n"
    assert json.loads(written(TEXT, "json")) == {"text": " one --> two"}
    whole = json.loads(written(TEXT, "verbose_json"))
    assert [s["id"] for s in whole["segments"]] == [0, 1] and whole["duration"] == 3700.5
    assert written(TEXT, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,250\none\n\n2\n01:00:00,000 --> 01:01:01,500\n-> two\n\n"
    )
    assert written(TEXT, "vtt") == (
        "WEBVTT\n\n00:00.000 --> 00:01.250\none\n\n01:00:00.000 --> 01:01:01.500\n-> two\n\n"
    )


def recorded(values: Any, width: int, rate: int, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, width, rate, 0, "NONE", ""))
        whole = np.round(values * (2.0 ** (8 * width - 1) - 1)).astype("<i8")
        whole = whole + 128 if width == 1 else whole
        out.writeframes(whole[:, None].view(np.uint8)[:, :width].tobytes())
    return file.getvalue()


@pytest.mark.parametrize(("width", "error"), [(1, 2e-2), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_widths_of_samples(width: int, error: float) -> None:
    values = 0.9 * np.sin(np.arange(4000) / 7)
    np.testing.assert_allclose(read_audio(recorded(values, width, 16000)), values, atol=error)


def test_channels_and_rates() -> None:
    """Channels are averaged; another rate gives the same tone."""
    t = np.arange(48000) / 48000
    both = np.stack([0.5 * np.sin(2 * np.pi * 440 * t), np.zeros_like(t)], 1).reshape(-1)
    found = read_audio(recorded(both, 2, 48000, 2))
    expected = 0.25 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(found[200:-200], expected[200:-200], atol=2e-3)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "not a WAV file|cannot|can be read"), (recorded(np.zeros(0), 2, 16000), "no samples"),
     (recorded(np.zeros(9), 2, 100), "100 samples a second")],
)  # fmt: skip
def test_recordings_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_audio(data)


@pytest.mark.parametrize(
    ("data", "count"),
    [(recorded(np.zeros(200), 2, 16000, 2), 200), (recorded(np.zeros(100), 2, 8000), 200)],
    ids=["channels", "low rate"],
)
def test_the_most_samples(data: bytes, count: int) -> None:
    assert read_audio(data, count).size in (100, 200)
    with pytest.raises(RequestError, match="100 samples in each of .* cut it into parts"):
        read_audio(data, count - 1)


def test_a_file_that_was_written_to_a_pipe() -> None:
    """Its sizes are the greatest ones, and the content tells how many samples there are."""
    data = recorded(np.full(100, 0.5), 2, 16000)
    data = data[:4] + b"\xff" * 4 + data[8:40] + b"\xff" * 4 + data[44:]
    np.testing.assert_allclose(read_audio(data, 130), np.full(100, 0.5), atol=1e-4)


class FakeSoundFile:
    """`soundfile.SoundFile` of a file with a million samples in each of eight channels."""

    frames, channels, samplerate = 10**6, 8, 16000
    error: Exception = AssertionError("was decoded")

    def __init__(self, file: Any) -> None: ...

    def __enter__(self) -> FakeSoundFile:
        return self

    def __exit__(self, *error: object) -> None: ...

    def read(self, **options: object) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "most", "message"),
    [
        (AssertionError("was decoded"), 10**6, "1000000 samples in each of 8 channels"),
        (MemoryError(), None, "does not fit into memory"),
        (ValueError("negative"), None, "can be read: negative"),
        (RuntimeError("damaged"), None, "can be read: damaged"),
    ],
)
def test_other_formats(
    error: Exception, most: int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType("soundfile")
    module.SoundFile, module.LibsndfileError = FakeSoundFile, RuntimeError
    module.read = lambda file, **options: FakeSoundFile(file).read(**options)
    monkeypatch.setitem(sys.modules, "soundfile", module)
    monkeypatch.setattr(audio, "find_spec", lambda name: True)
    monkeypatch.setattr(FakeSoundFile, "error", error)
    with pytest.raises(RequestError, match=message):
        read_audio(b"fLaC", most)


def test_names_of_forms_need_no_numpy() -> None:
    """The command line reads them for each of its commands."""
    code = "import sys, tilewright.llm.speech.forms; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def allowed(rules: TimestampRules, preferred: dict[int, float]) -> set[int]:
    """Return the tokens that the rules allow where `preferred` have logits and all others a small one."""
    logits = np.full(backend().get_vocab_size(), -9.0, np.float32)
    for number, value in preferred.items():
        logits[number] = value
    rules.adjust(logits)
    return {*np.flatnonzero(np.isfinite(logits)).tolist()}


def test_rules_of_timestamps() -> None:
    v = SpeechVocabulary.of(Tokenizer(backend(), eos=[token("endoftext")]), settings())
    rules = TimestampRules(v, v.opening(None, "translate", True), True)
    no_speech = {token("nospeech"): 3.0}
    assert allowed(rules, no_speech) == {token("en"), token("de")}
    assert 0.5 < rules.heard.no_speech < 1
    rules.accept(token("de"))
    assert allowed(rules, {}) == {token("translate")}
    rules.accept(token("translate"))
    times = range(v.first_time, v.first_time + 71)
    assert allowed(rules, {3: 9.0}) == {*times[:11]}  # the text begins within 0.2 s
    rules.accept(times[4])
    after = allowed(rules, {3: 9.0})
    assert after.isdisjoint(times) and 5 not in after and {3, v.end} <= after
    rules.accept(3)
    text = allowed(rules, {3: 9.0})
    assert 3 in text and times[4] not in text and times[5] in text
    assert allowed(rules, {}) == {*times[5:]}  # all times together are more probable than any text
    rules.accept(times[9])
    pair = allowed(rules, {v.end: 9.0})
    assert pair >= {times[9], v.end} and pair.isdisjoint({3, times[8]})
    fork = rules.fork()
    fork.accept(times[9])
    assert len(fork.tokens) == len(rules.tokens) + 1


def test_opening_of_a_model_of_one_language() -> None:
    v = SpeechVocabulary.of(
        Tokenizer(backend(), eos=[token("endoftext")]), {**settings(), "is_multilingual": False}
    )
    assert v.opening("en", "transcribe", True) == []
    assert v.opening(None, "transcribe", False) == [[token("notimestamps")]]
    with pytest.raises(RequestError, match="one language"):
        v.opening("de", "transcribe", True)
