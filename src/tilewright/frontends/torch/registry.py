"""The table of importers: from the name of an ATen overload to the function that builds it from graph
operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

Importer = Callable[..., Any]
_IMPORTERS: dict[str, Importer] = {}
_COMPLEX: dict[str, Importer] = {}


def importer(*names: str) -> Callable[[Importer], Importer]:
    """Register ``function(node, *args, **kwargs)`` as the importer of overloads such as ``aten.add.Tensor``.

    Positional arguments have the order of the operator's schema; its keyword-only arguments are passed by
    name. Tensors are SSA values (None if absent), symbolic sizes `Dim`, dtypes `DType`; device, layout and
    memory format are left out. An importer returns an SSA value, or for an operator with several results a
    sequence of them (None for an unsupported one).

    Raises:
        ValueError: An overload has an importer already.
    """

    def register(function: Importer) -> Importer:
        for name in names:
            if name in _IMPORTERS:
                raise ValueError(f"two importers for {name}")
            _IMPORTERS[name] = function
        return function

    return register


def set_importer(name: str, function: Importer) -> None:
    """Register the importer of one overload, in place of an earlier one; see `importer`."""
    _IMPORTERS[name] = function


def complex_importer(*names: str) -> Callable[[Importer], Importer]:
    """Register an importer, as `importer` does, for calls with complex operands or results, which are
    `frontends.complex.Complex` pairs.
    """

    def register(function: Importer) -> Importer:
        _COMPLEX.update(dict.fromkeys(names, function))
        return function

    return register


def importers_in(module: str) -> dict[str, Importer]:
    """Return the importers that a module has registered."""
    return {name: function for name, function in _IMPORTERS.items() if function.__module__ == module}


def complex_importers() -> dict[str, Importer]:
    """Return all importers of calls with complex operands or results, by overload name."""
    importers()
    return _COMPLEX


@cache
def importers() -> dict[str, Importer]:
    """Return all importers by overload name (``aten.add.Tensor``)."""
    from importlib import import_module
    from pkgutil import iter_modules

    from . import ops

    for module in iter_modules(ops.__path__):
        import_module(f"{ops.__name__}.{module.name}")
    return _IMPORTERS


def decomposition_table() -> Any:
    """Return a new table of all torch decompositions but those of operators that have an importer, which
    therefore stay whole.
    """
    return _decomposition_table(len(importers())).copy()


@lru_cache(maxsize=1)
def _decomposition_table(_: int) -> Any:
    """See `decomposition_table`; the argument is the number of importers, since users may register more at
    any time.

    torch's default table stops at core ATen, which keeps some operators (interpolation, for example) that
    torch can decompose.
    """
    import torch
    from torch._decomp import decomposition_table as every

    table = torch.export.default_decompositions()
    for operator, function in every.items():
        # torch._refs decomposes into operators of the prims dialect, whose names mean nothing to users.
        if (
            isinstance(operator, torch._ops.OpOverload)
            and operator not in table
            and not function.__module__.startswith("torch._refs")
        ):
            table[operator] = function
    for name in importers():
        if name.count(".") != 2:  # A higher-order operator has no overloads.
            continue
        namespace, packet, overload = name.split(".")
        overload_of = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
        if overload_of is not None:
            table.pop(overload_of, None)
    return table
