"""The sessions in an engine's process: the loaded model and its measurements. Imports are local, because a
peer's environment has only the peer and NumPy.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WORKLOADS = {
    "transcribe": "the recording to text",
    "features": "its spectrogram",
    "encode": "the encoder, for one window",
    "decode": "the text of one window, after the encoder",
}


class Session:
    """A model that an engine has loaded.

    Args:
        file: The file or folder that the engine loads.
        samples: The recording, float32 [n], 16 kHz.
        precision: The type of the weights: "float32" or "int8".
        tokens: The tokens of a window's text.
        never: Tokens that are never chosen.
        threads: The number of threads.
    """

    modules: tuple[str, ...]
    """Packages imported before the time of loading is measured."""

    def __init__(
        self, file: Path, samples: Array, precision: str, tokens: int, never: list[int], threads: int
    ) -> None:
        raise NotImplementedError

    def transcribe(self) -> float:
        """Seconds from the samples to the text of all windows."""
        raise NotImplementedError

    def features(self) -> float:
        """Seconds of the whole spectrogram."""
        raise NotImplementedError

    def encode(self) -> float:
        """Seconds of the encoder for the first window."""
        raise NotImplementedError

    def decode(self) -> float:
        """Seconds from the encoder's states of the first window to the last token of its text."""
        raise NotImplementedError

    def heard(self) -> list[int]:
        """The tokens of the text of all windows."""
        raise NotImplementedError


def timed(call: Callable[[], Any]) -> float:
    """The seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Tilewright(Session):
    modules = ("tilewright.llm.library", "tilewright.runtime.library", "tokenizers")

    def __init__(
        self, file: Path, samples: Array, precision: str, tokens: int, never: list[int], threads: int
    ) -> None:
        from tilewright.llm.engine.engine import Engine
        from tilewright.llm.library import open_library
        from tilewright.llm.speech.transcription import Transcriber, TranscriptionOptions

        runner, tokenizer, _ = open_library(file, threads=threads)
        self.transcriber = Transcriber.of_library(Engine(runner, tokenizer), file)
        self.samples, self.runner = samples, runner
        self.options = TranscriptionOptions(
            timestamps=False, temperatures=(0.0,), most_compressible=None, least_logprob=None,
            most_silence=None, previous_text=False,
        )  # fmt: skip
        self.spent = 0.0
        encoder = runner.encode

        def encode(*arguments: Any) -> None:
            self.spent += timed(lambda: encoder(*arguments))

        runner.encode = encode  # type: ignore[method-assign]
        self.window = self.transcriber.spectrogram(samples)[: 2 * runner.source]

    def transcribe(self) -> float:
        return timed(self.heard)

    def features(self) -> float:
        return timed(lambda: self.transcriber.spectrogram(self.samples))

    def encode(self) -> float:
        return timed(lambda: self.runner.encode(self.window, 0))

    def decode(self) -> float:
        self.spent = 0.0
        seconds = timed(lambda: self.transcriber._window(self.window, [], None, self.options, lambda: False))
        return seconds - self.spent

    def heard(self) -> list[int]:
        found = self.transcriber.transcribe(self.samples, self.options)
        return [token for segment in found.segments for token in segment.tokens]


class FasterWhisper(Session):
    """It limits a text to half of what it calls the greatest length."""

    modules = ("faster_whisper",)

    def __init__(
        self, file: Path, samples: Array, precision: str, tokens: int, never: list[int], threads: int
    ) -> None:
        from faster_whisper import WhisperModel
        from faster_whisper.tokenizer import Tokenizer

        self.model = WhisperModel(
            str(file), device="cpu", compute_type=precision, cpu_threads=threads, local_files_only=True
        )
        self.samples, self.tokens, self.never = samples, tokens, never
        language = Tokenizer(self.model.hf_tokenizer, False, task="transcribe", language="en")
        self.prompt = [*language.sot_sequence, language.no_timestamps]
        self.window = self.model.feature_extractor(samples)[:, :3000]

    def transcribe(self) -> float:
        return timed(self.heard)

    def features(self) -> float:
        return timed(lambda: self.model.feature_extractor(self.samples))

    def encode(self) -> float:
        return timed(lambda: self.model.encode(self.window))

    def decode(self) -> float:
        states = self.model.encode(self.window)
        return timed(
            lambda: self.model.model.generate(
                states, [self.prompt], beam_size=1, max_length=2 * self.tokens,
                suppress_blank=False, suppress_tokens=self.never, return_scores=True,
                return_no_speech_prob=True,
            )
        )  # fmt: skip

    def heard(self) -> list[int]:
        segments, _ = self.model.transcribe(
            self.samples, language="en", beam_size=1, best_of=1, temperature=0.0, without_timestamps=True,
            compression_ratio_threshold=None, log_prob_threshold=None, no_speech_threshold=None,
            condition_on_previous_text=False, suppress_blank=False, suppress_tokens=self.never,
            max_new_tokens=2 * self.tokens - len(self.prompt),
        )  # fmt: skip
        return [token for segment in segments for token in segment.tokens]


def serving(
    session: type[Session], file: Path, samples: Path, precision: str, tokens: int, never: list[int],
    threads: int,
) -> Iterator[Any]:  # fmt: skip
    """Child process (see `bench.worker`): it loads the model and answers the methods of the session, for a
    number of seconds and at least once, with the seconds of each call; "heard" with the tokens.
    """
    for module in session.modules:
        importlib.import_module(module)
    start = time.perf_counter()
    loaded = session(file, np.load(samples), precision, tokens, never, threads)
    answer: Any = {"load_seconds": time.perf_counter() - start}
    while True:
        method, *arguments = yield answer
        if method == "heard":
            answer = loaded.heard()
            continue
        end = time.perf_counter() + arguments[0]
        answer = [getattr(loaded, method)()]
        while time.perf_counter() < end:
            answer.append(getattr(loaded, method)())
