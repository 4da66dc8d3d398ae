"""The table of importers: from a StableHLO or CHLO operation to the function that translates it to graph
operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ...ir.core import Value
    from ..complex import Complex
    from .node import Node

    Result = Value | Complex
    Importer = Callable[[Node], Result | Sequence[Result]]
ImporterT = TypeVar("ImporterT", bound="Importer")


@dataclass(frozen=True)
class Properties:
    """The operands that an importer accepts besides real tensors of the operation's own shapes."""

    complex: str = ""
    """``"whole"``: the importer takes complex operands (`Complex` pairs). ``"parts"``: it is called once with
    the real and once with the imaginary parts. Empty: operations on complex numbers are unsupported.
    """
    scalar: bool = False
    """The operation is elementwise: a body written for scalars may be imported on whole tensors."""


_IMPORTERS: dict[str, Importer] = {}
_PROPERTIES: dict[str, Properties] = {}


def importer(
    *names: str, dialect: str = "stablehlo", scalar: bool = False, complex: str = ""
) -> Callable[[ImporterT], ImporterT]:
    """Register ``function(node)`` for operations of a dialect.

    The function takes a `Node` and returns an SSA value (or a `Complex` pair), or a sequence with one of them
    per result. It raises `Unsupported` for a form of the operation that it cannot translate. A later
    registration replaces an earlier one, also one of this package.

    Args:
        *names: The operations' names, such as ``add``.
        dialect: ``"stablehlo"``, ``"chlo"``, or ``"custom_call"``: then the names are targets of
            ``stablehlo.custom_call``.
        scalar: See `Properties`.
        complex: See `Properties`.
    """

    def register(function: ImporterT) -> ImporterT:
        for name in names:
            _IMPORTERS[f"{dialect}.{name}"] = function
            _PROPERTIES[f"{dialect}.{name}"] = Properties(complex, scalar)
        return function

    return register


@cache
def importers() -> dict[str, Importer]:
    """Return all importers by dialect and name, e.g. ``"stablehlo.add"`` or
    ``"custom_call.lapack_sgesdd_ffi"``.
    """
    from importlib import import_module
    from pkgutil import iter_modules

    from . import ops

    registered, properties = dict(_IMPORTERS), dict(_PROPERTIES)
    for module in iter_modules(ops.__path__):
        import_module(f"{ops.__name__}.{module.name}")
    _IMPORTERS.update(registered)  # a user's importers replace those of this package
    _PROPERTIES.update(properties)
    return _IMPORTERS


def properties_of(name: str) -> Properties:
    """Return the properties of an operation's importer; those of an operation without importer are the
    defaults.
    """
    importers()
    return _PROPERTIES.get(name, Properties())


__all__ = ["Properties", "importer", "importers", "properties_of"]
