"""The exceptions that users of Tilewright meet, and nothing else.

All derive from `TilewrightError`, so one `except` catches them; each message names the thing, where it is and what
to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ArtifactError",
    "CompileError",
    "DimsWarning",
    "DivisionError",
    "EngineError",
    "InternalError",
    "OutOfRangeError",
    "OverloadedError",
    "RequestError",
    "ShapeError",
    "SizeError",
    "TilewrightError",
    "UnsupportedOperator",
    "UnsupportedOperatorError",
    "WeightsError",
]


class TilewrightError(Exception):
    """Anything that Tilewright reports to its user."""


class CompileError(TilewrightError):
    """The model, as it is, cannot be compiled for the target."""


class DimsWarning(UserWarning):
    """A compiled model accepts fewer sizes than its caller has asked for."""


class SizeError(CompileError, ValueError):
    """The model declares or computes something too large to exist."""


@dataclass(frozen=True)
class UnsupportedOperator:
    """An operator that the compiler cannot translate, everywhere it occurs in the model: why, and what to do instead."""

    operator: str
    count: int
    locations: tuple[str, ...] = ()
    hint: str = ""
    instead: str = ""

    def __str__(self) -> str:
        shown = ", ".join(self.locations[:3])
        more = f" and {self.count - 3} more" if len(self.locations) > 3 else ""
        where = f": {shown}{more}" if shown else ""
        hint = f"\n      {self.hint}" if self.hint else ""
        instead = f"\n      instead: {self.instead}" if self.instead else ""
        return f"{self.operator} ({self.count}x){where}{hint}{instead}"


class UnsupportedOperatorError(CompileError):
    """The model uses what the compiler, or the `target`, does not have; `operators` lists all of it."""

    def __init__(self, operators: Sequence[UnsupportedOperator], target: str = "") -> None:
        self.operators = tuple(operators)
        listing = "\n".join(f"  - {operator}" for operator in self.operators)
        noun = "operator" if len(self.operators) == 1 else "operators"
        head = (
            f"target {target} cannot run the model"
            if target
            else f"the model uses {len(self.operators)} unsupported {noun}"
        )
        super().__init__(f"{head}:\n{listing}")

    def __reduce__(self) -> Any:
        return _again, (str(self), self.operators)


def _again(message: str, operators: tuple[UnsupportedOperator, ...]) -> UnsupportedOperatorError:
    error = UnsupportedOperatorError(operators)
    error.args = (message,)
    return error


class ShapeError(TilewrightError, ValueError):
    """An argument's name, rank, shape or data type is not what the model takes."""


class OutOfRangeError(TilewrightError, IndexError):
    """A model met an index outside of the dimension it is for."""


class DivisionError(TilewrightError, ZeroDivisionError):
    """A model divided an integer by zero."""


class ArtifactError(TilewrightError):
    """A compiled file cannot be written, read or run here."""


class WeightsError(TilewrightError):
    """A file of weights is not whole, not of a format that is read, or does not fit what it is read for."""


class RequestError(TilewrightError, ValueError):
    """What a request to a language model asks for cannot be: too long a prompt, a bad grammar, a parameter out of its range."""


class OverloadedError(TilewrightError):
    """The engine takes no request now: its queue is full, or it is being stopped."""


class EngineError(TilewrightError):
    """A request failed while it was served, for no fault of its own."""


class InternalError(TilewrightError):
    """A mistake of the compiler itself, not of its user."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}\nThis is a bug in Tilewright, not in your model. Please report it.")
