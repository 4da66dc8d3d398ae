"""The table of JAX programs that `jax_programs` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
FORWARD_ONLY: set[str] = set()
"""Programs whose gradient JAX does not compute, or that have none."""
_RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def program(*args: Any, backward: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a program with the arguments that it runs on, and whether its gradient is tested too."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, args
        if not backward:
            FORWARD_ONLY.add(function.__name__)
        return function

    return register
