"""NumPy's protocols: `numpy`'s functions and ufuncs on tensors call the functions of the same names here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .operands import as_tensor
from .registry import FUNCTIONS

_REDUCE = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}
_ACCUMULATE = {"add": "cumsum", "multiply": "cumprod"}


def implementation(called: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function that implements one of `numpy` or `numpy.linalg`, None if there is none."""
    name = called.__name__
    function = FUNCTIONS.get(name) if getattr(np, name, None) is called else None
    return function or (FUNCTIONS.get(f"linalg.{name}") if getattr(np.linalg, name, None) is called else None)


def call_function(called: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Call the implementation of a function of `numpy` on tensors.

    Raises:
        TypeError: There is none, or not with these arguments; the message names it.
    """
    return _call(f"{called.__module__}.{called.__name__}", implementation(called), args, options)


def call_ufunc(ufunc: np.ufunc, method: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Call the implementation of a ufunc, or of its method ``reduce``, ``accumulate`` or ``outer``, on
    tensors.

    Raises:
        TypeError: There is none, or not with these arguments; the message names it.
    """
    name = ufunc.__name__
    if method == "__call__":
        return _call(f"numpy.{name}", implementation(ufunc), args, options)
    function: Callable[..., Any] | None = None
    if method == "outer" and implementation(ufunc) is not None and len(args) == 2:
        a, b = map(as_tensor, args)
        function, args = implementation(ufunc), (a.reshape((*a.shape, *(1,) * b.ndim)), b)
    elif method in ("reduce", "accumulate"):
        function = FUNCTIONS.get({"reduce": _REDUCE, "accumulate": _ACCUMULATE}[method].get(name, ""))
        x, *rest = args  # The default axis is 0.
        args, options = (x,), {"axis": rest[0] if rest else 0, **options}
    return _call(f"numpy.{name}.{method}", function, args, options)


def _call(
    name: str, function: Callable[..., Any] | None, args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    if function is None:
        raise TypeError(
            f"{name} is not implemented for tilewright.Tensor; convert with numpy.asarray(x) outside of "
            "traced "
            "functions"
        )
    out = options.get("out")
    if out is not None and not (isinstance(out, tuple) and all(o is None for o in out)):
        raise TypeError("a tensor is immutable, so 'out' is not supported: use the result")
    options = {k: v for k, v in options.items() if k != "out"}
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        raise TypeError(f"{name} of tilewright.Tensor takes {signature}: {error}") from None
    return function(*args, **options)


FUNCTIONS["Tensor.__array_function__"] = call_function
FUNCTIONS["Tensor.__array_ufunc__"] = call_ufunc
FUNCTIONS["Tensor.implementation"] = implementation

__all__ = ["call_function", "call_ufunc", "implementation"]
