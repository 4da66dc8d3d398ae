"""What each ONNX operator means in graph operators, in files by theme."""

from __future__ import annotations

from . import (  # noqa: F401  (each file registers its importers)
    attention,
    contrib,
    contrib_attention,
    contrib_quantize,
    convolution,
    detection,
    elementwise,
    generate,
    index,
    matrix,
    ml,
    ngrams,
    normalize,
    quantize,
    random,
    recurrent,
    reduce,
    resize,
    run_time,
    sample,
    sequence,
    shape,
    signal,
    strings,
    svm,
    training,
    trees,
)
from .table import IMPORTERS, Unsupported

__all__ = ["IMPORTERS", "Unsupported"]
