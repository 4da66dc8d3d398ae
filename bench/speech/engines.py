"""The engines, and the files that each makes of the model."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..llm.engines import Engine, installed
from ..results import source
from . import sessions
from .model import Size

PRECISIONS = ("float32", "int8")


@dataclass(frozen=True)
class SpeechEngine(Engine):
    """An engine of speech. Its `session` is one of `sessions`."""

    def loaded(self, folder: Path, precision: str) -> Path:
        """The path of the file or folder that the engine loads."""
        raise NotImplementedError

    def prepare(self, folder: Path, size: Size, precision: str, threads: int, environment: Path) -> None:
        """Make that file from the model in `folder`, in this process.

        Args:
            folder: The folder of the model.
            size: The model's size.
            precision: The type of weights.
            threads: The number of threads.
            environment: The interpreter of the engine's environment.
        """
        raise NotImplementedError


class _Tilewright(SpeechEngine):
    def version(self, python: Path) -> str:
        import tilewright

        return f"tilewright {tilewright.__version__}, llvmlite {importlib.metadata.version('llvmlite')}"

    def loaded(self, folder: Path, precision: str) -> Path:
        return folder / f"tilewright-{precision}-{source()}" / "model.so"

    def prepare(self, folder: Path, size: Size, precision: str, threads: int, environment: Path) -> None:
        from tilewright.llm.library import LibraryOptions, compile_library, save_library
        from tilewright.llm.weights import open_checkpoint
        from tilewright.llm.weights.convert import Conversion, convert

        for old in folder.glob(f"tilewright-{precision}-*"):
            shutil.rmtree(old)
        path = self.loaded(folder, precision)
        partial = path.parent.with_name(f"{precision}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        given, options = folder, LibraryOptions(context=2 * size.tokens, max_batch=1)
        if precision == "float32":
            options = LibraryOptions(
                context=2 * size.tokens, max_batch=1, precision=None, cache_dtype="float32"
            )
        else:
            given = partial / "quantized"
            convert(folder, given, Conversion(precision))
        checkpoint = open_checkpoint(given)
        with compile_library(checkpoint, options, threads=threads) as library:
            save_library(library, checkpoint, partial / path.name)
        partial.rename(path.parent)


class _FasterWhisper(SpeechEngine):
    def loaded(self, folder: Path, precision: str) -> Path:
        return folder / "ctranslate2"

    def prepare(self, folder: Path, size: Size, precision: str, threads: int, environment: Path) -> None:
        # The converter needs torch and transformers, which this process has; its package is the peer's.
        scheme = {"base": str(environment.parent.parent), "platbase": str(environment.parent.parent)}
        sys.path.append(sysconfig.get_path("purelib", "venv", scheme))
        from ctranslate2.converters import TransformersConverter

        path = self.loaded(folder, precision)
        partial = path.with_suffix(".partial")
        kept = ["tokenizer.json", "preprocessor_config.json"]
        TransformersConverter(str(folder), copy_files=kept).convert(str(partial), force=True)
        partial.rename(path)


_ALL: list[Any] = [
    _Tilewright(
        "tilewright",
        sessions.Tilewright,
        ("llvmlite",),
        "`Transcriber` on a compiled library; float32: all of it; int8: int8 weights with a scale for each "
        "row, otherwise the defaults (bf16 where nothing is quantized)",
    ),
    _FasterWhisper(
        "faster-whisper",
        sessions.FasterWhisper,
        ("faster-whisper", "ctranslate2"),
        "`WhisperModel` of the file that ctranslate2's converter makes, `compute_type` as the row says",
        ("faster-whisper",),
    ),
]
ENGINES: dict[str, SpeechEngine] = {engine.name: engine for engine in _ALL}
"""Engines by name, ours first."""


def preparing(name: str, *arguments: Any) -> Iterator[None]:
    """Child process: make the files of an engine; the arguments are those of `SpeechEngine.prepare`."""
    yield ENGINES[name].prepare(*arguments)


__all__ = ["ENGINES", "PRECISIONS", "SpeechEngine", "installed", "preparing"]
