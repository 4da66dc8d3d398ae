"""/v1/audio/transcriptions and /v1/audio/translations, with the fields of OpenAI's API."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...errors import RequestError, TilewrightError
from ..speech.audio import read_audio
from ..speech.features import RATE
from ..speech.forms import FORMS, as_json, written
from ..speech.transcription import Cancelled, Transcriber, Transcription, TranscriptionOptions
from ..speech.vocabulary import Task
from .errors import ApiError, json_response
from .limits import Limits, read_body
from .multipart import parts
from .service import Service, refusal

_MEDIA = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
_SEVERAL = "timestamp_granularities[]"
_FIELDS = ("file", "model", "language", "prompt", "response_format", "temperature", "stream", _SEVERAL)

_MOST_SAMPLES = 4 * 3600 * RATE
"""Samples of a recording, as `read_audio` counts them: four hours of one channel. Small files of compressed
formats can hold more. A larger number takes 4 bytes of memory for each sample, and some copies.
"""


@dataclass
class AudioRequest:
    """The fields of a form."""

    file: bytes | None = None
    fields: dict[str, str] = field(default_factory=dict)
    granularities: list[str] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        """Return a field's text; None if it is missing or empty."""
        return self.fields.get(name) or None


async def parsed(limits: Limits, request: Request) -> AudioRequest:
    """Read and check the form in a request's body.

    Raises:
        ApiError: 400, 408, 413, 415: it is not a form with a file and known fields.
    """
    found = AudioRequest()
    body = await read_body(request, limits)
    for part in await asyncio.to_thread(parts, request.headers.get("content-type", ""), body):
        if part.name not in _FIELDS:
            raise _wrong(part.name[:64], "is not a field of this endpoint", "unknown_parameter")
        if part.name == "file":
            found.file = part.content
            continue
        try:
            text = part.content.decode()
        except UnicodeDecodeError:
            raise _wrong(part.name, "is not UTF-8") from None
        if part.name == _SEVERAL:
            found.granularities.append(text)
        else:
            found.fields[part.name] = text
    if found.file is None:
        raise _wrong("file", "a recording is needed", "missing_required_parameter")
    if found.get("stream") in ("true", "True", "1"):
        raise _wrong("stream", "a transcription is sent as a whole: leave it out")
    if "word" in found.granularities:
        raise _wrong(_SEVERAL, "times of words are not supported; 'segment' is")
    return found


def transcriber_of(service: Service) -> Transcriber:
    """Return the transcriber of the model.

    Raises:
        ApiError: 400: the model takes no audio.
    """
    if service.transcriber is None:
        message = f"the model {service.name!r} takes no audio"
        closed = {"Connection": "close"}  # the body is not read
        raise ApiError(400, message, code="unsupported_model", headers=closed)
    return service.transcriber


def _wrong(name: str, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, f"'{name}': {message}", param=name, code=code)


def _options(form: AudioRequest, task: Task) -> TranscriptionOptions:
    given: dict[str, Any] = {
        "task": task,
        "language": form.get("language"),
        "prompt": form.get("prompt") or "",
    }
    if (text := form.get("temperature")) is not None:
        try:
            temperature = float(text)
        except ValueError:
            temperature = -1.0
        if not 0 <= temperature <= 1:
            raise _wrong("temperature", f"must be a number from 0 to 1, not {text[:64]!r}")
        if temperature > 0:  # 0 lets the model raise it where needed, as OpenAI's API tells
            given["temperatures"] = (temperature,)
    return TranscriptionOptions(**given)


async def audio(service: Service, form: AudioRequest, task: Task) -> Response:
    """Answer a request with the text of a recording.

    Raises:
        ApiError: 400: the recording or a field cannot be used; 503, 504: it takes too long, or the server
            stops.
    """
    transcribe, content = transcriber_of(service).transcribe, form.file or b""
    kind = form.get("response_format") or "json"
    if kind not in FORMS:
        raise _wrong("response_format", f"must be one of {', '.join(FORMS)}, not {kind[:64]!r}")
    options, stopped = _options(form, task), threading.Event()

    def work() -> Transcription:
        return transcribe(read_audio(content, _MOST_SAMPLES), options, stopped.is_set)

    seconds = service.limits.request_timeout
    try:
        async with asyncio.timeout(seconds):
            result = await asyncio.get_running_loop().run_in_executor(service.threads, work)
    except TimeoutError:
        raise ApiError(504, f"the text was not complete within {seconds:g} s", code="timeout") from None
    except Cancelled:
        raise ApiError(503, "the transcription was stopped") from None
    except RequestError as error:
        raise ApiError(400, str(error), code="invalid_value") from None
    except TilewrightError as error:
        raise refusal(error) from error
    finally:
        stopped.set()  # the thread ends at the next token
    if kind in ("json", "verbose_json"):
        return json_response(as_json(result, kind == "verbose_json"))
    return Response(written(result, kind), media_type=_MEDIA[kind])


__all__ = ["AudioRequest", "audio", "parsed"]
