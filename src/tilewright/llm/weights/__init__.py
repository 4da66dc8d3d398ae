"""Readers and writers of weights: Hugging Face folders, GGUF files, and folders that `convert` wrote."""

from .adapters import Adapter, merged, read_adapter
from .checkpoint import Checkpoint, LazyTensor
from .convert import Change, Conversion, changes, convert
from .folder import ConvertedFolder
from .open import open_checkpoint
from .rescale import read_statistics, rescaled, write_statistics

__all__ = [
    "Adapter",
    "Change",
    "Checkpoint",
    "Conversion",
    "ConvertedFolder",
    "LazyTensor",
    "changes",
    "convert",
    "merged",
    "open_checkpoint",
    "read_adapter",
    "read_statistics",
    "rescaled",
    "write_statistics",
]
