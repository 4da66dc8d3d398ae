"""`Transcriber`: recordings of any length to text with times, by a model like Whisper in an engine.

The algorithm is that of Radford et al., 2022, section 4.5: windows one after the other, each from the last
timestamp of the one before; higher temperatures where a text is improbable or repeats itself; windows without
speech are left out.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import RequestError
from ..engine.engine import Engine
from ..engine.sampling import SamplingParameters
from ..engine.stream import Request
from ..tokenizer import TOKENIZER
from .features import BEHIND, HOP, RATE, Floats, hops, normalized
from .vocabulary import Heard, SpeechVocabulary, Task, TimestampRules

FRAMES_OF_STEP = 2
"""Frames between two timestamps."""
SECONDS = HOP / RATE
"""The length of a frame."""


@dataclass(frozen=True)
class TranscriptionOptions:
    """How recordings are transcribed; the defaults are those of the published program."""

    language: str | None = None
    """The code of the spoken language, such as "en"; None: the model tells it from the first window."""
    task: Task = "transcribe"
    """"translate" gives English text."""
    timestamps: bool = True
    """Whether the model tells the times of texts. Without them a window is one segment."""
    prompt: str = ""
    """Text before the recording, whose words and style the model continues."""
    temperatures: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """The temperature of a window, and those of further attempts if its text is not accepted."""
    most_compressible: float | None = 2.4
    """A text whose size, divided by its compressed size, is larger repeats itself; None: no such test."""
    least_logprob: float | None = -1.0
    """A text whose tokens have a smaller mean log-probability is not accepted; None: no such test."""
    most_silence: float | None = 0.6
    """A window with a larger probability of no speech, whose text is not accepted, has none; None: no such
    test.
    """
    previous_text: bool = True
    """Whether a window continues the text of the one before, unless that needed a temperature above 0.5."""
    seed: int = 0
    """The seed of draws: equal recordings give equal texts."""


@dataclass(frozen=True)
class Segment:
    """A part of a recording with its text."""

    start: float
    """In seconds, as `end`."""
    end: float
    text: str
    tokens: list[int]
    """With the tokens of times."""
    seek: int
    """The frame, of 10 ms, at which its window begins."""
    temperature: float
    avg_logprob: float
    """The mean log-probability of the tokens of its window."""
    compression_ratio: float
    """The size of its window's text, divided by its compressed size."""
    no_speech_prob: float


@dataclass(frozen=True)
class Transcription:
    """The text of a recording."""

    text: str
    language: str
    """Its code; empty in models that do not tell it, which are English ones."""
    duration: float
    """In seconds."""
    task: Task
    segments: list[Segment]


@dataclass
class _Window:
    """The text of a window, at one temperature."""

    tokens: list[int]
    """After the opening, without the end."""
    text: str
    language: str
    temperature: float
    logprob: float
    no_speech: float
    ratio: float = field(init=False)

    def __post_init__(self) -> None:
        data = self.text.strip().encode()
        self.ratio = len(data) / len(zlib.compress(data)) if data else 0.0


class Cancelled(Exception):
    """The caller of a transcription does not want it any more."""


class Transcriber:
    """Transcribes recordings with an engine's model; it may be called from several threads, whose windows
    share the steps of an engine that has been started.

    Args:
        engine: Holds a library of a model of audio.
        settings: The content of the model's config.json, and of its generation_config.json, which counts
            where both have a key.

    Raises:
        RequestError: The model takes no audio, or its tokenizer is not one for speech.
    """

    def __init__(self, engine: Engine, settings: Mapping[str, Any]) -> None:
        runner: Any = engine.runner
        if runner.source_kind != "audio":
            raise RequestError("the model takes no audio")
        self._engine, self._features = engine, runner.features
        self._frames = 2 * runner.source
        self.vocabulary = SpeechVocabulary.of(engine.tokenizer, settings)
        self._names = {token: name for name, token in self.vocabulary.languages.items()}

    @classmethod
    def of_library(cls, engine: Engine, library: str | Path) -> Transcriber:
        """Return the transcriber of an engine's library, whose file is `library`.

        Raises:
            RequestError: The model takes no audio, or its tokenizer is not one for speech.
        """
        settings: dict[str, Any] = {}
        for name in ("config.json", "generation_config.json"):
            file = Path(library).with_suffix(TOKENIZER) / name
            if file.is_file():
                settings |= json.loads(file.read_text(encoding="utf-8"))
        return cls(engine, settings)

    def transcribe(
        self,
        samples: Floats,
        options: TranscriptionOptions | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Transcription:
        """Return the text of a recording.

        Args:
            samples: Float32 [n], at 16 kHz.
            options: How; None: the defaults.
            stopped: Tells between tokens whether the text is not wanted any more.

        Raises:
            RequestError: The model does not know the language or the task, or there are no samples.
            EngineError: The model failed.
            Cancelled: `stopped` returned True.
        """
        options = options or TranscriptionOptions()
        self.vocabulary.opening(options.language, options.task, options.timestamps)
        if not len(samples):
            raise RequestError("the recording has no samples")
        spectrogram = self.spectrogram(samples)
        frames = max(1, len(samples) // HOP)
        whole = frames if frames > self._frames else self._frames
        segments: list[Segment] = []
        prompt = self._encoded(options.prompt)
        earlier: list[int] = list(prompt)
        language, seek = options.language, 0
        while seek < frames:
            size = min(self._frames, whole - seek)
            source = np.zeros((self._frames, spectrogram.shape[1]), np.float32)
            source[:size] = spectrogram[seek : seek + size]
            window = self._window(source, earlier, language, options, stopped)
            language = language or window.language or None
            heard = min(size, frames - seek)
            if self._is_silent(window, options):
                seek += heard
                continue
            found, step = self._segments(window, seek, heard, options.timestamps)
            segments += found
            seek += step
            keeps = options.previous_text and window.temperature <= 0.5
            earlier = [*earlier, *(t for s in found for t in s.tokens)] if keeps else []
        text = "".join(segment.text for segment in segments).strip()
        return Transcription(text, language or "", len(samples) / RATE, options.task, segments)

    def spectrogram(self, samples: Floats) -> Floats:
        """Return the input of the encoder, window after window: float32 [frames, mels].

        Args:
            samples: Float32 [n], at 16 kHz.
        """
        whole = hops(samples, self._frames)
        size = len(whole) - BEHIND
        parts = [
            self._features(whole[k : min(k + self._frames, size) + BEHIND])
            for k in range(0, size, self._frames)
        ]
        return normalized(np.concatenate(parts))

    def _encoded(self, text: str) -> list[int]:
        return self._engine.tokenizer.encode(f" {text.strip()}", special=False) if text.strip() else []

    def _window(
        self, source: Floats, earlier: list[int], language: str | None, options: TranscriptionOptions,
        stopped: Callable[[], bool],
    ) -> _Window:  # fmt: skip
        """The text of a window at the first temperature that gives an acceptable one, or at the last."""
        window = None
        for temperature in options.temperatures:
            window = self._generated(source, earlier, language, options, temperature, stopped)
            if self._accepts(window, options):
                break
        if window is None:
            raise RequestError("temperatures must name at least one")
        return window

    def _generated(
        self, source: Floats, earlier: list[int], language: str | None, options: TranscriptionOptions,
        temperature: float, stopped: Callable[[], bool],
    ) -> _Window:  # fmt: skip
        v, limit = self.vocabulary, self._engine.limit
        opening, heard = v.opening(language, options.task, options.timestamps), Heard()
        prompt = [v.start]
        if earlier and v.previous is not None:
            prompt = [v.previous, *earlier[-(limit // 2 - 1) :], v.start]
        request = Request(
            prompt=prompt,
            sampling=SamplingParameters(
                temperature=temperature, seed=options.seed, logprobs=0, adjusted_logprobs=True
            ),
            max_tokens=min(limit // 2 + len(opening), limit - len(prompt)),
            grammar=TimestampRules(v, opening, options.timestamps, heard),
            source=source,
        )
        stream = self._engine.submit(request)
        tokens: list[int] = []
        logprobs: list[float] = []
        try:
            for delta in stream:
                tokens += delta.tokens
                logprobs += [chosen.logprob for chosen in delta.logprobs or ()]
                if stopped():
                    raise Cancelled
        finally:
            stream.cancel()
        name = self._names.get(tokens[0], "") if v.languages else ""
        tokens, logprobs = tokens[len(opening) :], logprobs[len(opening) :]
        mean = sum(logprobs) / max(1, len(logprobs))
        tokens = tokens[:-1] if tokens and tokens[-1] == v.end else tokens
        return _Window(tokens, self._text(tokens), name, temperature, mean, heard.no_speech)

    def _text(self, tokens: Sequence[int]) -> str:
        v = self.vocabulary
        text = [t for t in tokens if t < v.first_time and t not in self._engine.tokenizer.special_tokens]
        return self._engine.tokenizer.decode(text)

    def _accepts(self, window: _Window, options: TranscriptionOptions) -> bool:
        if options.most_compressible is not None and window.ratio > options.most_compressible:
            return False
        improbable = options.least_logprob is not None and window.logprob < options.least_logprob
        return not improbable or self._is_silent(window, options)

    def _is_silent(self, window: _Window, options: TranscriptionOptions) -> bool:
        if options.most_silence is None or window.no_speech <= options.most_silence:
            return False
        return options.least_logprob is None or window.logprob < options.least_logprob

    def _segments(self, window: _Window, seek: int, size: int, timestamps: bool) -> tuple[list[Segment], int]:
        """The segments of a window of `size` frames that begins at frame `seek`, and how many frames they
        cover.

        Two times in a row end a segment and begin the next. Text after the last such pair is unfinished,
        and belongs to the next window, unless the window ends with one time, after which there is no speech.
        """
        v, tokens = self.vocabulary, window.tokens
        is_time = [t >= v.first_time for t in tokens]
        cuts = [k for k in range(1, len(tokens)) if is_time[k - 1] and is_time[k]]
        ends = is_time[-2:] == [False, True]

        def at(token: int) -> float:
            return seek * SECONDS + (token - v.first_time) * FRAMES_OF_STEP * SECONDS

        def segment(part: list[int], start: float, end: float) -> Segment:
            return Segment(
                start, end, self._text(part), part, seek, window.temperature, window.logprob, window.ratio,
                window.no_speech,
            )  # fmt: skip

        if timestamps and cuts:
            places = [0, *cuts, *([len(tokens)] if ends else [])]
            parts = [tokens[a:b] for a, b in pairwise(places)]
            found = [segment(part, at(part[0]), at(part[-1])) for part in parts]
            covered = size if ends else (tokens[cuts[-1] - 1] - v.first_time) * FRAMES_OF_STEP
            # A pair of times at the beginning of a window covers nothing; the next window must begin later.
            return [s for s in found if s.text.strip()], covered or size
        times = [t for t in tokens if t > v.first_time]
        end = at(times[-1]) if times else (seek + size) * SECONDS
        whole = segment(tokens, seek * SECONDS, end)
        return ([whole] if whole.text.strip() else []), size


__all__ = ["Cancelled", "Segment", "Transcriber", "Transcription", "TranscriptionOptions"]
