"""The functions on tensors, under NumPy's names: `tilewright.numpy`.

Functions take tensors, arrays, numbers and nested sequences, and return tensors. `numpy`'s own functions on tensors lead here too.
Data types: see `dtypes`. What NumPy has and this has not raises TypeError.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as _np

from . import composed, index, linear, pointwise, reductions, shapes
from .tensor import FUNCTIONS, Tensor

_public = {name: f for name, f in FUNCTIONS.items() if "." not in name}
__all__ = ["Tensor", *_public, "e", "from_dlpack", "inf", "linalg", "nan", "newaxis", "pi"]

pi, e, inf, nan, newaxis = _np.pi, _np.e, _np.inf, _np.nan, None
_modules = (composed, index, linear, pointwise, reductions, shapes)


def from_dlpack(x: Any) -> Tensor:
    """A tensor of anything that speaks DLPack."""
    return Tensor(_np.from_dlpack(x))


globals().update(_public)
linalg = SimpleNamespace(**{n.removeprefix("linalg."): f for n, f in FUNCTIONS.items() if n.startswith("linalg.")})
"""What there is of `numpy.linalg`."""


def __getattr__(name: str) -> Any:
    raise AttributeError(f"tilewright.numpy has no {name!r}; it has {', '.join(sorted(_public))}")
