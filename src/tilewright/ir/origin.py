"""The place of a definition, for messages about passes and operators that are not Tilewright's own."""

from __future__ import annotations

import functools

PACKAGE = __name__.partition(".")[0]


def place_outside(definition: object) -> str:
    """``FILE:LINE`` of a function or class that is defined outside of this package; "" for the package's own.

    The place of a class is that of its first method. A module's name stands for a file that is not known.
    """
    while isinstance(definition, functools.partial):
        definition = definition.func
    definition = getattr(definition, "__wrapped__", definition)
    module = str(getattr(definition, "__module__", PACKAGE))
    if module.partition(".")[0] == PACKAGE:
        return ""
    members = vars(definition).values() if isinstance(definition, type) else (definition,)
    code = next((m.__code__ for m in members if hasattr(m, "__code__")), None)
    return module if code is None else f"{code.co_filename}:{code.co_firstlineno}"


__all__ = ["place_outside"]
