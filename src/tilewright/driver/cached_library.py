"""Compiled models from the cache: loaded in place of being compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArtifactError
from . import cache as artifact_cache
from . import cached_weights
from .report import Report

if TYPE_CHECKING:
    from ..runtime.inspection import Inspection
    from ..runtime.model import CompiledModel
    from .options import CompileOptions

CompileAnew = Callable[[], "CompiledModel"]


def library_of_file(
    key: str, path: Path, options: CompileOptions, compile_anew: CompileAnew
) -> CompiledModel | None:
    """The library of a model in a file that has been compiled before; None where it has not."""
    entry = artifact_cache.find_file(key, path)
    artifact = None if entry is None else artifact_cache.find(entry[0])
    if entry is None or artifact is None:
        return None
    _, source, leaf, files = entry
    states = [(file, file.stat()) for file in files]

    def unchanged_leaf(number: int) -> Any:
        for file, state in states:
            if not cached_weights.unchanged(file, state):
                raise ArtifactError(
                    f"{file} has changed since the model was compiled, and before its weights were read: "
                    "compile the model again"
                )
        return leaf(number)

    return restore_library(artifact, options, unchanged_leaf, source, compile_anew)


def restore_library(
    artifact: tuple[Any, bytes],
    options: CompileOptions,
    leaf: Callable[[int], Any],
    source: dict[str, str],
    compile_anew: CompileAnew,
) -> CompiledModel:
    """A library from the cache that behaves like one just compiled.

    Args:
        artifact: The target's code, and the weights as references to the source model's arrays.
        options: The options of this compilation.
        leaf: An array of the source model by number.
        source: The description of the source model for the metadata.
        compile_anew: Compiles the model, for what the cache does not hold: its IR, and the error of a
            precision.
    """
    start = time.perf_counter()
    code, weights = artifact
    library: CompiledModel = options.target.restore(
        code, lambda: cached_weights.load(weights, leaf), options.threads, source
    )
    seconds = time.perf_counter() - start
    library.report = Report.from_cache(library.metadata, seconds, lambda: compile_anew().report.error)
    library.origin = CompiledLater(compile_anew)
    return library


class CompiledLater:
    """The `origin` of a model from the cache: compiles the model when its IR is asked for."""

    def __init__(self, compile_anew: CompileAnew) -> None:
        self.compile_anew = compile_anew
        self.library: CompiledModel | None = None

    def compiled(self) -> CompiledModel:
        """The model, compiled at the first call."""
        if self.library is None:
            self.library = self.compile_anew()
        return self.library

    def ir(self, level: str, library: CompiledModel) -> str:
        return self.compiled().ir(level)

    def inspect(
        self, library: CompiledModel, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Inspection:
        found: Inspection = self.compiled().origin.inspect(library, names, args, kwargs)
        return found


__all__ = ["CompiledLater", "library_of_file", "restore_library"]
