"""Errors for operators of a model whose operands the graph level does not accept."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import CompileError, InternalError, TilewrightError
from ..ir.core import IRError, Value
from ..ir.location import Location
from ..ir.symbolic import Expr


def refusal(name: str, location: Location, error: IRError, operands: Iterable[object]) -> TilewrightError:
    """The error for an operator of a model that its own framework has checked.

    With operands of constant sizes the framework has accepted what the graph level refuses: that is a bug of
    the importer. The framework may not have checked dynamic sizes, and the user can say more.

    Args:
        name: The operator.
        location: Its place in the model.
        error: The error of the check of the operands.
        operands: The operator's operands; those that are tensors count.
    """
    dims = [d for x in operands if isinstance(x, Value) for d in getattr(x.type, "shape", ())]
    sizes = dict.fromkeys(f"'{d}'" for d in dims if isinstance(d, Expr))
    if not sizes:
        return InternalError(f"importing {name} at {location}: {error}")
    return CompileError(
        f"{name} at {location}: {without_location(error)}. Its operands have the dynamic sizes "
        f"{', '.join(sizes)}: give sizes that are always equal one name in `dims`, or make them constant"
    )


def without_location(error: Exception) -> str:
    """The text of an error without the place that an `IRError` ends with."""
    text = str(error)
    return text.rsplit(" (at ", 1)[0] if isinstance(error, IRError) else text


__all__ = ["refusal", "without_location"]
