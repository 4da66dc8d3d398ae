"""What each ONNX operator means in graph operators, in files by theme."""

from __future__ import annotations

from . import (
    attention,
    contrib,
    convolution,
    elementwise,
    generate,
    index,
    matrix,
    normalize,
    quantize,
    reduce,
    resize,
    sequence,
    shape,
)
from .table import IMPORTERS, Unsupported

_modules = (
    attention,
    contrib,
    convolution,
    elementwise,
    generate,
    index,
    matrix,
    normalize,
    quantize,
    reduce,
    resize,
    sequence,
    shape,
)

__all__ = ["IMPORTERS", "Unsupported"]
