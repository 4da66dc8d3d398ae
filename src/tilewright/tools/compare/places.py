"""Places inside of a model whose values its own framework and the compiled model both compute."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ...ir.core import Module
    from ...ir.location import Location

MOST_LAYERS = 48
"""The most values that are shown at once to find the layer: each is stored, which changes the kernels."""

Array = np.ndarray[Any, Any]
Visit = Callable[[int, Array], None]
"""Called with the number of a place and its value."""


@dataclass(frozen=True)
class Place:
    """One operator of a model.

    Attributes:
        path: The module that it belongs to, ``encoder.layer.0``; "" for the model itself.
        operator: Its name in the model's framework.
        source: The line of the user's code, ``FILE:LINE``; "" if unknown.
    """

    path: str
    operator: str
    source: str = ""

    @property
    def name(self) -> str:
        """The path with the operator."""
        return f"{self.path}/{self.operator}" if self.path else self.operator

    @classmethod
    def at(cls, location: Location) -> Place:
        """The place of an operator by the `location` that its front end noted."""
        path, _, operator = location.name.rpartition("/")
        return cls(path, operator, f"{location.file}:{location.line}" if location.file else "")

    def __str__(self) -> str:
        return f"{self.name} ({self.source})" if self.source else self.name


class InnerValues(ABC):
    """A model whose inner values can be had from its own framework, and can be made results of a module.

    Attributes:
        framework: The framework that runs the model, with its version.
        places: The operators in the order in which they run, each of one result.
    """

    framework: str
    places: tuple[Place, ...]

    @abstractmethod
    def module(self, shown: Sequence[int]) -> Module:
        """The graph-level module, whose function ``main`` returns the values of some places after its own
        results. `shown` are their numbers, in rising order.
        """

    @abstractmethod
    def run(self, inputs: Mapping[str, Array], visit: Visit) -> list[Array]:
        """Run the model in its framework; returns its results. `visit` gets the value of each place."""


def layers(places: Sequence[Place], most: int = MOST_LAYERS) -> list[tuple[str, int, int]]:
    """Divide a model's operators into layers that follow one another.

    Args:
        places: The operators.
        most: The most layers. Modules within modules are taken apart as deeply as this allows.

    Returns:
        For each layer its name, the number of its first operator, and that of its last.
    """
    by_line = not any(place.path for place in places)
    names = [place.source or place.operator for place in places] if by_line else []
    parts = [re.split(r"[./]", place.path) for place in places]
    deepest = max((len(p) for p in parts), default=1)
    found: list[tuple[str, int, int]] = []
    for depth in range(1, 2 if by_line else deepest + 1):
        labels = names or [".".join(p[:depth]) for p in parts]
        finer: list[tuple[str, int, int]] = []
        for number, label in enumerate(labels):
            if finer and finer[-1][0] == label:
                finer[-1] = (label, finer[-1][1], number)
            else:
                finer.append((label, number, number))
        if found and len(finer) > most:
            break
        found = finer
    while len(found) > most:  # lines that call others in turn, for example
        pairs = [found[k : k + 2] for k in range(0, len(found), 2)]
        found = [(pair[-1][0], pair[0][1], pair[-1][2]) for pair in pairs]
    return found


__all__ = ["Array", "InnerValues", "Place", "Visit", "layers"]
