"""The forms of a transcription: those of OpenAI's API."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:  # the command line reads `FORMS`, and loads no NumPy for it
    from .transcription import Transcription

Form = Literal["json", "text", "srt", "verbose_json", "vtt"]
FORMS: tuple[Form, ...] = get_args(Form)


def written(transcription: Transcription, form: Form) -> str:
    """Return a transcription in the form `form`, one of `FORMS`; the last line has an end."""
    if form == "text":
        return transcription.text + "\n"
    if form in ("srt", "vtt"):
        return _subtitles(transcription, form)
    return json.dumps(as_json(transcription, form == "verbose_json"), ensure_ascii=False) + "\n"


def as_json(transcription: Transcription, verbose: bool) -> dict[str, Any]:
    """Return the object of the form "json", or with `verbose` that of "verbose_json"."""
    if not verbose:
        return {"text": transcription.text}
    segments = [{"id": k, **asdict(segment)} for k, segment in enumerate(transcription.segments)]
    return {
        "task": transcription.task,
        "language": transcription.language or "en",
        "duration": transcription.duration,
        "text": transcription.text,
        "segments": segments,
    }


def _subtitles(transcription: Transcription, form: Form) -> str:
    """SubRip's form, or WebVTT's: no number of a subtitle, a point before milliseconds, and hours only where
    needed.
    """
    lines = [] if form == "srt" else ["WEBVTT\n"]
    for number, segment in enumerate(transcription.segments, 1):
        start, end = (_time(seconds, form) for seconds in (segment.start, segment.end))
        # An arrow within a text would be read as a time.
        text = segment.text.strip().replace("-->", "->")
        lines.append("\n".join([*([str(number)] if form == "srt" else []), f"{start} --> {end}", text, ""]))
    return "\n".join(lines) + ("\n" if lines else "")


def _time(seconds: float, form: Form) -> str:
    whole = round(seconds * 1000)
    hours, minutes = divmod(whole // 60000, 60)
    rest = f"{minutes:02d}:{whole // 1000 % 60:02d}{',' if form == 'srt' else '.'}{whole % 1000:03d}"
    return f"{hours:02d}:{rest}" if hours or form == "srt" else rest


__all__ = ["FORMS", "Form", "as_json", "written"]
