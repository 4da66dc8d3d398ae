"""The own front end: Python functions over `Tensor`, run at once or traced into a module of ``graph.*`` operators."""

from __future__ import annotations

from . import numpy
from .control import cond, scan, while_loop
from .importer import Arguments, Traced, import_function, trace_function
from .state import State
from .tensor import Tensor, tensor
from .tracing import TraceError

where = numpy.where

__all__ = [
    "Arguments",
    "State",
    "Tensor",
    "TraceError",
    "Traced",
    "cond",
    "import_function",
    "numpy",
    "scan",
    "tensor",
    "trace_function",
    "where",
    "while_loop",
]
