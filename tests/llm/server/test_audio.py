"""/v1/audio/transcriptions and /v1/audio/translations, through OpenAI's client and by hand."""

from __future__ import annotations

import io
import threading
import wave
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openai
import pytest

from tests.llm.speech.small_whisper import POSITIONS, backend, settings, token
from tilewright.llm.server import audio
from tilewright.llm.server.errors import ApiError
from tilewright.llm.server.multipart import parts
from tilewright.llm.speech.transcription import Transcriber
from tilewright.llm.tokenizer import Tokenizer

from .conftest import Running

TIMES = 50
"""The script ends 50 steps of 20 ms after the beginning of a window."""


class Speaker:
    """A model of audio that says the same in every window: its language, its task, and a text with times."""

    vocabulary = backend().get_vocab_size()
    has_state, uniform, drawing, adapters = True, True, None, None
    source_kind, source, start = "audio", POSITIONS, [token("startoftranscript")]
    page_access = window = sight = guessing = None
    pages, chunk, max_batch, rows, context = 16, 64, 4, 4, 64

    def features(self, hops: Any) -> Any:
        return np.zeros((len(hops) - 2, 10), np.float32)

    def encode(self, source: Any, slot: int) -> None:
        assert source.shape == (2 * POSITIONS, 10)

    def reset(self, slot: int) -> None:
        pass

    def copy_page(self, source: int, target: int) -> None:
        pass

    def _next(self, place: int, token_before: int) -> Any:
        end, first = token("endoftext"), token("0.00")
        words = backend().encode(" one two").ids
        script = [token("en"), token("translate"), first, *words, first + TIMES, end]
        logits = np.zeros(self.vocabulary, np.float32)
        logits[script[min(place, len(script) - 1)]] = 20
        return logits

    def prefill(self, tokens: Any, start: int, pages: Any, slot: int) -> Any:
        self._begun = {**getattr(self, "_begun", {}), slot: start + len(tokens) - 1}
        return self._next(0, int(tokens[-1]))

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        return np.stack(
            [
                self._next(int(n) - self._begun[int(slot)], int(t))
                for t, n, slot in zip(tokens, lengths, slots, strict=True)
            ]
        )


def recording(seconds: float = 1.2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes(np.zeros(int(16000 * seconds), np.int16).tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def speaking() -> Iterator[Running]:
    made = Running(runner=Speaker(), words=Tokenizer(backend(), eos=[token("endoftext")]), body=200000)
    made.service.transcriber = Transcriber(made.engine, settings())
    yield made
    made.close()


def test_openai_client(speaking: Running) -> None:
    endpoint = speaking.client().audio
    file = ("speech.wav", recording())
    assert endpoint.transcriptions.create(model="echo", file=file).text == "one two"
    whole = endpoint.translations.create(model="echo", file=file, response_format="verbose_json")
    assert (whole.language, whole.duration, whole.text) == ("en", 1.2, "one two")
    assert [(s.start, s.end, s.text) for s in whole.segments or ()] == [(0.0, 1.0, " one two")]
    subtitles: Any = endpoint.transcriptions.create(
        model="echo", file=file, response_format="srt", language="en"
    )
    assert subtitles == "1\n00:00:00,000 --> 00:00:01,000\none two\n\n"
    with pytest.raises(openai.BadRequestError, match="times of words"):
        endpoint.transcriptions.create(
            model="echo", file=file, response_format="verbose_json", timestamp_granularities=["word"]
        )
    with pytest.raises(openai.NotFoundError, match="this server has 'echo'"):
        endpoint.transcriptions.create(model="whisper-1", file=file)


@pytest.mark.parametrize(
    ("fields", "file", "message"),
    [
        ({}, None, "'file': a recording is needed"),
        ({"language": "fr"}, recording(), "does not know the language 'fr'"),
        ({"temperature": "hot"}, recording(), "'temperature': must be a number from 0 to 1, not 'hot'"),
        ({"response_format": "xml"}, recording(), "'response_format': must be one of json"),
        ({"beams": "5"}, recording(), "'beams': is not a field"),
        ({"stream": "true"}, recording(), "'stream'"),
        ({}, recording()[:30], "not a WAV file|can be read"),
    ],
)
def test_refused(speaking: Running, fields: dict[str, str], file: bytes | None, message: str) -> None:
    sent = {name: (None, text) for name, text in fields.items()}
    files: Any = sent | ({} if file is None else {"file": ("a.wav", file)})
    answer = speaking.http.post("/v1/audio/transcriptions", files=files or {"model": (None, "echo")})
    assert answer.status_code == 400, answer.text
    assert any(part in answer.json()["error"]["message"] for part in message.split("|"))


def test_bodies_that_are_no_forms(speaking: Running) -> None:
    post: Callable[..., Any] = speaking.http.post
    path = "/v1/audio/transcriptions"
    assert post(path, json={"model": "echo"}).status_code == 415
    assert post(path, content=b"x", headers={"Content-Type": "multipart/form-data"}).status_code == 415
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert post(path, content=b"--b\r\n\r\n", headers=kind).status_code == 400
    assert post(path, content=b"--b\r\nX: y\r\n\r\n1\r\n--b--", headers=kind).status_code == 400
    assert post(path, files={"file": ("a.wav", recording(9))}).status_code == 413


@pytest.mark.parametrize(
    ("content_type", "head"),
    [
        ("", 'Content-Disposition: form-data; name="file"\r\nX: ' + 5000 * "x"),
        ("", "Content-Disposition: " + 3000 * "("),  # Python's parser calls itself for each
        ("; x=" + 5000 * "x", 'Content-Disposition: form-data; name="file"'),
        ("; x=" + 3000 * "(", 'Content-Disposition: form-data; name="file"'),
    ],
    ids=["head", "nested head", "content type", "nested content type"],
)
def test_damaged_heads(content_type: str, head: str) -> None:
    body = f"--b\r\n{head}\r\n\r\n1\r\n--b--".encode()
    with pytest.raises(ApiError, match="not a complete multipart form") as error:
        parts("multipart/form-data; boundary=b" + content_type, body)
    assert error.value.status == 400


def test_forms_are_read_in_a_thread(speaking: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(content_type: str, body: bytes) -> Any:
        threads.append(threading.current_thread())
        return parts(content_type, body)

    monkeypatch.setattr(audio, "parts", noted)
    path = "/v1/audio/transcriptions"
    assert speaking.http.post(path, files={"file": ("a.wav", recording())}).status_code == 200
    assert len(threads) == 1 and threads[0] is not speaking._thread


def test_recordings_that_decode_to_too_much(speaking: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "_MOST_SAMPLES", 19199)
    answer = speaking.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", recording())})
    assert answer.status_code == 400 and "19200 samples" in answer.json()["error"]["message"]


def test_an_adapter_is_refused(speaking: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(speaking.engine.adapters), "names", ["tuned"])
    files: Any = {"file": ("a.wav", recording()), "model": (None, "tuned")}
    answer = speaking.http.post("/v1/audio/transcriptions", files=files)
    assert answer.status_code == 400 and "'tuned' is an adapter; transcriptions are those of" in answer.text


def test_other_models_and_endpoints(speaking: Running, server: Running) -> None:
    """A model of text takes no audio, and one of audio no text."""
    answer = server.http.post("/v1/audio/translations", files={"file": ("a.wav", recording())})
    assert answer.status_code == 400 and "takes no audio" in answer.text
    answer = server.http.post("/v1/audio/translations", content=b"no form")  # is not read
    assert answer.status_code == 400 and "takes no audio" in answer.text
    answer = speaking.http.post("/v1/completions", json={"model": "echo", "prompt": "one"})
    assert answer.status_code == 400 and "/v1/audio/transcriptions" in answer.text
