"""`open_checkpoint`: opens weights of any kind by their path."""

from __future__ import annotations

from pathlib import Path

from ...errors import WeightsError
from .checkpoint import Checkpoint, reading
from .folder import RECORD, ConvertedFolder
from .gguf import read_gguf
from .hugging_face import read_folder


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint; only headers are read.

    Args:
        path: a folder from `convert`, a Hugging Face folder, or a GGUF file (the first of several parts).

    Raises:
        WeightsError: it is none of these, not readable, or damaged.
    """
    path = Path(path)
    with reading(path):
        if path.is_dir():
            return ConvertedFolder(path) if (path / RECORD).is_file() else read_folder(path)
        if not path.exists():
            raise WeightsError(f"{path}: no such file or folder")
        if path.suffix == ".safetensors":
            raise WeightsError(f"{path}: give the folder, which also has config.json, not one file of it")
        return read_gguf(path)
