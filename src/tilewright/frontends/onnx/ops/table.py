"""The table of operator importers, filled by the modules of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..node import Node

    Importer = Callable[[Node], Any]

IMPORTERS: dict[tuple[str, str], Importer] = {}
"""Importers by (domain, operator type). One takes a `Node` and returns an SSA value or `Tensor`, or a tuple with one per output."""


class Unsupported(Exception):
    """An operator is known, but not in this form; the message says which form, and what to do."""


def importer(*names: str, domain: str = "") -> Callable[[Importer], Importer]:
    """Register a function for operators of a domain (``""`` is ONNX's own)."""

    def register(function: Importer) -> Importer:
        for name in names:
            IMPORTERS[domain, name] = function
        return function

    return register
