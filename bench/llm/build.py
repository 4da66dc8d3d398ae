"""The files of a precision, made by separate processes unless they exist."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..worker import EngineError
from .engines import GGUF, Engine
from .model import Size, write
from .process import Elsewhere


def build(
    engines: list[Engine],
    pythons: dict[str, Path],
    folder: Path,
    size: Size,
    precision: str,
    threads: int,
    timeout: float,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make the GGUF file, and the files that each engine loads; yields names and figures as they become
    available.

    Raises:
        EngineError: the GGUF file could not be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / GGUF).exists():
        _run(Path(sys.executable), timeout, threads, writing, size, precision, folder / GGUF)
    for engine in engines:
        if not engine.made(folder).exists():
            try:
                arguments = (making, engine, folder, size, precision, threads)
                figure = _run(pythons[engine.name], timeout, threads, *arguments)
            except EngineError as error:
                figure = {"failed": str(error)}
            _record(engine, folder).write_text(json.dumps(figure))
        yield engine.name, built(engine, folder)


def built(engine: Engine, folder: Path) -> dict[str, Any]:
    """Figures of the files made by `build`; "failed" is the reason of a failure."""
    record = _record(engine, folder)
    found: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    return found


def _record(engine: Engine, folder: Path) -> Path:
    return folder / f"{engine.name}.json"


def _run(python: Path, timeout: float, threads: int, function: Callable[..., Any], *arguments: Any) -> Any:
    child = Elsewhere(python, function, *arguments, threads=threads)
    try:
        return child.first(timeout)
    finally:
        child.close()


def writing(size: Size, precision: str, path: Path) -> Iterator[None]:
    """Child process: write the GGUF file."""
    partial = path.with_suffix(".partial")
    write(size, precision, partial)
    partial.rename(path)
    yield


def making(
    engine: Engine, folder: Path, size: Size, precision: str, threads: int
) -> Iterator[dict[str, float]]:
    """Child process: make an engine's files from the GGUF file."""
    yield engine.make(folder, size, precision, threads)
