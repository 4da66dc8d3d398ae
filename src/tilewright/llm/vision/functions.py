"""The image encoder in a model library: the function ``see``, and how ``prefill`` and ``decode`` take its
results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from ...frontends.trace import Tensor
from ...ir.types import DType
from ..models.base import LanguageModel
from ..quantized_linear import factors
from ..runner import Floats, Ints
from .given import GivenRows, View


class Seeing(NamedTuple):
    """The additions to the functions of a library for images."""

    functions: dict[str, Any]
    """The function ``see``, with example arguments and the bounds of its sizes."""
    given: list[Any]
    """Example arguments of ``prefill``: rows, index, last and places; None for those that are not needed."""
    sizes: dict[str, dict[int, str]]
    """The bounds of their sizes."""
    offsets: Any
    """The example argument of ``decode``; None: it is not needed."""


def described_vision(model: LanguageModel) -> dict[str, Any] | None:
    """The description of a model's image encoder in a library's metadata; None: it has none."""
    vision = model.vision
    if vision is None:
        return None
    return {"hidden": model.config.hidden, "axes": vision.axes, "two_way": vision.two_way}


def seeing(model: LanguageModel, most: int, chunk: int, of_prompts: DType) -> Seeing:
    """The additions to the functions of a library for the images that a model takes.

    Args:
        model: The model.
        most: The most vectors of one image, for encoders whose number varies.
        chunk: The most tokens of one call of ``prefill``.
        of_prompts: The type in which quantized weights are multiplied.
    """
    vision = model.vision
    if vision is None:
        return Seeing({}, [None] * 4, {}, None)

    @wraps(vision.forward)
    def see(*arrays: Tensor) -> Tensor:
        with factors(of_prompts):
            result: Tensor = vision(*arrays)
        return result

    i32, tokens = np.int32, f"tokens<={chunk}"
    last = np.zeros(2, i32) if vision.two_way else None
    places = np.zeros((2, 3), i32) if vision.axes == 3 else None
    given = {
        "rows": np.zeros((2, model.config.hidden), np.float32), "index": np.zeros(2, i32), "last": last,
        "places": places,
    }  # fmt: skip
    sizes = {name: {0: tokens} for name, example in given.items() if example is not None}
    example, bounds = vision.example(most)
    return Seeing(
        {"see": (see, example, bounds)},
        list(given.values()),
        {**sizes, "rows": {0: f"given<={chunk}"}},
        np.zeros(2, i32) if vision.axes == 3 else None,
    )


class LibrarySight:
    """The `Sight` of a library.

    Args:
        call: Calls a function of the library: ``call(name, *arguments)``.
        described: The description that `described_vision` gave.
        slots: The number of running sequences.
    """

    def __init__(self, call: Callable[..., Any], described: Mapping[str, Any], slots: int) -> None:
        self._call, self._described = call, described
        self.hidden = int(described["hidden"])
        self._offsets: Ints = np.zeros(slots, np.int32)

    def see(self, view: View) -> Floats:
        result: Floats = self._call("see", *view.arrays)
        return result

    def shift(self, slot: int, offset: int) -> None:
        self._offsets[slot] = offset

    def of_prompt(self, n: int, start: int, given: GivenRows | None) -> tuple[Any, ...]:
        """The arguments of ``prefill`` for `n` tokens that follow `start` tokens."""
        given = GivenRows.none(n, start, self.hidden) if given is None else given
        last = (given.last,) if self._described["two_way"] else ()
        places = (given.places,) if self._described["axes"] == 3 else ()
        return given.rows, given.row_of, *last, *places

    def of_rows(self, slots: Ints) -> tuple[Any, ...]:
        """The arguments of ``decode`` for rows of running sequences; slot -1 is none."""
        if self._described["axes"] != 3:
            return ()
        return (np.where(slots < 0, 0, self._offsets[slots]).astype(np.int32),)


__all__ = ["LibrarySight", "Seeing", "described_vision", "seeing"]
