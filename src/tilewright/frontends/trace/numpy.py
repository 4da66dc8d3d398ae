"""Functions on tensors under NumPy's names: `tilewright.numpy`.

Functions accept tensors, arrays, numbers and nested sequences, and return tensors. `numpy`'s own functions on
tensors call these, too. `frontends.trace.dtypes` describes the element types of results. A name that NumPy
has and this module has not raises AttributeError here, and TypeError if `numpy`'s function is called on a
tensor.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as _np

from . import composed, index, linear, pointwise, protocols, reductions, shapes
from .registry import FUNCTIONS
from .tensor import SupportsDlpack, Tensor

_public = {name: f for name, f in FUNCTIONS.items() if "." not in name}
__all__ = ["Tensor", *_public, "e", "from_dlpack", "inf", "linalg", "nan", "newaxis", "pi"]

pi, e, inf, nan, newaxis = _np.pi, _np.e, _np.inf, _np.nan, None
_modules = (composed, index, linear, pointwise, protocols, reductions, shapes)


def from_dlpack(x: SupportsDlpack) -> Tensor:
    """Return a tensor with the shape and elements of an array that supports DLPack, without a copy.

    Raises:
        AttributeError: `x` does not support DLPack.
    """
    return Tensor(_np.from_dlpack(x))


globals().update(_public)
linalg = SimpleNamespace(
    **{n.removeprefix("linalg."): f for n, f in FUNCTIONS.items() if n.startswith("linalg.")}
)
"""The implemented functions of `numpy.linalg`."""


def __getattr__(name: str) -> Any:
    raise AttributeError(f"tilewright.numpy has no {name!r}; it has {', '.join(sorted(_public))}")


FUNCTIONS["Tensor.__array_namespace__"] = lambda: sys.modules[__name__]
