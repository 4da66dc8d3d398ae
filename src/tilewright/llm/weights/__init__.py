"""Readers and writers of weights: Hugging Face folders, GGUF files, and folders that `convert` wrote."""

from .checkpoint import Checkpoint, LazyTensor
from .convert import Change, Conversion, changes, convert
from .folder import ConvertedFolder
from .open import open_checkpoint
from .rescale import read_statistics, rescaled, write_statistics

__all__ = [
    "Change",
    "Checkpoint",
    "Conversion",
    "ConvertedFolder",
    "LazyTensor",
    "changes",
    "convert",
    "open_checkpoint",
    "read_statistics",
    "rescaled",
    "write_statistics",
]
