"""Passes of the graph level and the tensor level, their order, and the registry for passes of users."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .info import Condition, PassContext, PassInfo
    from .registry import all_passes, passes_in, register_pass, unregister_pass

_HOME = {
    "Condition": "info",
    "PassContext": "info",
    "PassInfo": "info",
    "all_passes": "registry",
    "passes_in": "registry",
    "register_pass": "registry",
    "unregister_pass": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


__all__ = [
    "Condition",
    "PassContext",
    "PassInfo",
    "all_passes",
    "passes_in",
    "register_pass",
    "unregister_pass",
]
