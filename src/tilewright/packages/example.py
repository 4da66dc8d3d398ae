"""Sizes for the example programs of packages: the least that the model takes, at least 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..artifact.c_interface import sizes
from ..runtime.expressions import evaluate


def example_symbols(entry: Mapping[str, Any]) -> dict[str, int]:
    """The value of each symbol of a function's sizes."""
    return {symbol: max(entry["symbols"][symbol][0] or 1, 1) for symbol in sizes(entry)}


def example_shape(tensor: Mapping[str, Any], symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor for these values."""
    return tuple(int(evaluate(size, symbols)) for size in tensor["shape"])


__all__ = ["example_shape", "example_symbols"]
