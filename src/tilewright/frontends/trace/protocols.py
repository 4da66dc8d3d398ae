"""NumPy's protocols: its functions and ufuncs, called on tensors, lead to those of the same names here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .tensor import FUNCTIONS, as_tensor

_REDUCE = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}
_ACCUMULATE = {"add": "cumsum", "multiply": "cumprod"}


def own_form(called: Callable[..., Any]) -> Callable[..., Any] | None:
    """What stands here for a function of NumPy's."""
    name = called.__name__
    found = FUNCTIONS.get(name) if getattr(np, name, None) is called else None
    return found or (FUNCTIONS.get(f"linalg.{name}") if getattr(np.linalg, name, None) is called else None)


def call_function(called: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    """A function of NumPy's on tensors.

    Raises:
        TypeError: there is none here, or not with these arguments; names it.
    """
    return _call(f"{called.__module__}.{called.__name__}", own_form(called), args, options)


def call_ufunc(ufunc: np.ufunc, method: str, args: Any, options: dict[str, Any]) -> Any:
    """A ufunc, or its method ``reduce``, ``accumulate`` or ``outer``, on tensors.

    Raises:
        TypeError: there is none here, or not with these arguments; names it.
    """
    name = ufunc.__name__
    if method == "__call__":
        return _call(f"numpy.{name}", own_form(ufunc), args, options)
    own: Callable[..., Any] | None = None
    if method == "outer" and own_form(ufunc) is not None and len(args) == 2:
        a, b = map(as_tensor, args)
        own, args = own_form(ufunc), (a.reshape((*a.shape, *(1,) * b.ndim)), b)
    elif method in ("reduce", "accumulate"):
        own = FUNCTIONS.get({"reduce": _REDUCE, "accumulate": _ACCUMULATE}[method].get(name, ""))
        x, *rest = args  # the axis is 0 unless told
        args, options = (x,), {"axis": rest[0] if rest else 0, **options}
    return _call(f"numpy.{name}.{method}", own, args, options)


def _call(name: str, own: Callable[..., Any] | None, args: Any, options: dict[str, Any]) -> Any:
    if own is None:
        raise TypeError(
            f"{name} has no form for tilewright.Tensor; convert with numpy.asarray(x) outside of traced functions"
        )
    out = options.get("out")
    if out is not None and not (isinstance(out, tuple) and all(o is None for o in out)):
        raise TypeError("a tensor never changes, so there is no 'out': use the result")
    options = {k: v for k, v in options.items() if k != "out"}
    signature = inspect.signature(own)
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        raise TypeError(f"{name} of tilewright.Tensor takes {signature}: {error}") from None
    return own(*args, **options)


__all__ = ["call_function", "call_ufunc", "own_form"]
