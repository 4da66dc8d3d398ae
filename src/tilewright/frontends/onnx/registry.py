"""The table of importers: from an ONNX operator to the function that translates it to graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ...ir.core import Value
    from .node import Node
    from .values import Absent, Tensor, TensorList

    Result = Value | Tensor | TensorList | Absent | None
    Importer = Callable[[Node], Result | Sequence[Result]]

ImporterT = TypeVar("ImporterT", bound="Importer")

_IMPORTERS: dict[tuple[str, str], Importer] = {}


def importer(*names: str, domain: str = "") -> Callable[[ImporterT], ImporterT]:
    """Register ``function(node)`` for operators of a domain.

    The function takes a `Node` and returns an SSA value or a `Tensor`, or a sequence with one of them per
    output (None for an output that cannot be computed). It raises `Unsupported` for a form of the operator
    that it cannot translate. A later registration replaces an earlier one, also one of this package.

    Args:
        *names: The operators' names, such as ``Gemm``.
        domain: The operators' domain; ``""`` is the ONNX standard's own.
    """

    def register(function: ImporterT) -> ImporterT:
        _IMPORTERS.update({(domain, name): function for name in names})
        return function

    return register


@cache
def importers() -> dict[tuple[str, str], Importer]:
    """Return all importers by domain and operator type, e.g. ``("", "Gemm")``."""
    from importlib import import_module
    from pkgutil import iter_modules

    from . import ops

    registered = dict(_IMPORTERS)
    for module in iter_modules(ops.__path__):
        import_module(f"{ops.__name__}.{module.name}")
    _IMPORTERS.update(registered)  # a user's importers replace those of this package
    return _IMPORTERS


__all__ = ["importer", "importers"]
