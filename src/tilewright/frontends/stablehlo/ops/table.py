"""The table of importers, filled by the modules of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..importer import Node

    Importer = Callable[[Node], Any]

IMPORTERS: dict[str, Importer] = {}
"""Importers by name, ``stablehlo.add``. One takes a `Node` and returns an SSA value, or a sequence with one per result."""

CALLS: dict[str, Importer] = {}
"""Importers of library functions, by the target of a ``custom_call``."""

COMPLEX: dict[str, str] = {}
"""What is done with complex numbers: ``whole``, the importer takes them; ``parts``, it is called with real and with imaginary parts. Others refuse them."""

SCALAR: set[str] = set()
"""Elementwise operators. They compute many values at once where a body is written for scalars."""


class Unsupported(Exception):
    """An operator is known, but not in this form; the message says which form, and what to do."""


def importer(
    *names: str, dialect: str = "stablehlo", scalar: bool = False, complex: str = ""
) -> Callable[[Importer], Importer]:
    """Register a function for operators of a dialect; `scalar` ones are elementwise; `complex`: see `COMPLEX`."""

    def register(function: Importer) -> Importer:
        for name in names:
            IMPORTERS[f"{dialect}.{name}"] = function
            if complex:
                COMPLEX[f"{dialect}.{name}"] = complex
            if scalar:
                SCALAR.add(f"{dialect}.{name}")
        return function

    return register


class Poisoned(Exception):
    """A body holds something unsupported, which has been noted."""
