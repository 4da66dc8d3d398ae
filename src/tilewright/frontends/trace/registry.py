"""The table of functions on tensors, by name.

`Tensor`'s methods and NumPy's protocols look functions up here, so that `tensor.py` imports none of the
modules that define them. A name without a dot is a function of `tilewright.numpy`, ``linalg.NAME`` one of
`tilewright.numpy.linalg`, and ``Tensor.NAME`` implements a method or property of `Tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def function(*names: str) -> Callable[[F], F]:
    """Register a function under its own name, unless that is private, and under `names`."""

    def register(f: F) -> F:
        for name in (f.__name__, *names):
            if not name.startswith("_"):
                FUNCTIONS[name] = f
        return f

    return register


__all__ = ["FUNCTIONS", "function"]
