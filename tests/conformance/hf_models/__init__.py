"""The architectures of `hf_sweep`."""

from . import audio, multimodal, sequences, text, vision
from .base import ARCHITECTURES, FAMILIES, REAL, SIZES, TINY, Architecture, Widths

__all__ = [
    "ARCHITECTURES",
    "FAMILIES",
    "REAL",
    "SIZES",
    "TINY",
    "Architecture",
    "Widths",
    "audio",
    "multimodal",
    "sequences",
    "text",
    "vision",
]
