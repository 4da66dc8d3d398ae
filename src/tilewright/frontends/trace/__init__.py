"""The tracing front end: Python functions on `Tensor`, run at once or traced into a module of ``graph.*``
operators.
"""

from __future__ import annotations

from . import numpy, random
from .batch import vmap
from .control import cond, scan, while_loop
from .gradient import grad, jvp, stop_gradient, value_and_grad, vjp
from .importer import Arguments, Traced, import_function, trace_function
from .operands import apply, tensor
from .rules import checkpoint, custom_gradient
from .state import State
from .tensor import Tensor
from .tracing import TraceError

where = numpy.where

__all__ = [
    "Arguments",
    "State",
    "Tensor",
    "TraceError",
    "Traced",
    "apply",
    "checkpoint",
    "cond",
    "custom_gradient",
    "grad",
    "import_function",
    "jvp",
    "numpy",
    "random",
    "scan",
    "stop_gradient",
    "tensor",
    "trace_function",
    "value_and_grad",
    "vjp",
    "vmap",
    "where",
    "while_loop",
]
