"""Specializes shapes: replaces symbolic dimensions by numbers everywhere in a module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...ir.core import Block, Module, Operation
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr, bounds, free_symbols
from ...ir.types import BufferType, TensorType


def specialize_shapes(module: Module, sizes: Mapping[str, int]) -> None:
    """Set symbols to sizes, in all types and attributes.

    Args:
        module: Is changed in place.
        sizes: Sizes by the symbols' names.

    Raises:
        KeyError: a name is not a symbol of the module's functions.
        ValueError: a size is outside of its symbol's bounds.
    """
    known: dict[str, Expr] = {}
    for block in _blocks(module):
        for arg in block.args:
            for d in getattr(arg.type, "shape", ()):
                if not isinstance(d, int):
                    known.update({s.name: s for s in free_symbols(d)})
    mapping: dict[Expr, Dim] = {}
    for name, size in sizes.items():
        if name not in known:
            raise KeyError(
                f"no dimension is called {name!r}; symbolic are: {', '.join(sorted(known)) or 'none'}"
            )
        low, high = bounds(known[name])
        if (
            (low is not None and size < low)
            or (high is not None and size > high)
            or size % known[name].multiple_of
        ):
            raise ValueError(
                f"dimension '{name}' = {size} is outside of its bounds {low}..{'' if high is None else high}"
            )
        mapping[known[name]] = size
    replace = partial(_replaced, mapping=mapping)
    for op in module.walk():
        op.attributes = {k: replace(v) for k, v in op.attributes.items()}
        for result in op.results:
            result.type = replace(result.type)
        for region in op.regions:
            for block in region.blocks:
                for arg in block.args:
                    arg.type = replace(arg.type)


def _blocks(op: Operation) -> list[Block]:
    return [block for inner in op.walk() for region in inner.regions for block in region.blocks]


def _replaced(value: object, mapping: Mapping[Expr, Dim]) -> Any:
    if isinstance(value, Expr):
        return substitute(value, mapping)
    if isinstance(value, TensorType):
        return TensorType(value.dtype, [substitute(d, mapping) for d in value.shape], value.layout)
    if isinstance(value, BufferType):
        return BufferType(value.dtype, [substitute(d, mapping) for d in value.shape], value.space)
    if isinstance(value, tuple):
        return tuple(_replaced(v, mapping) for v in value)
    if isinstance(value, dict):
        return {k: _replaced(v, mapping) for k, v in value.items()}
    return value
