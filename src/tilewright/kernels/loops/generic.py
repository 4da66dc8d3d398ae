"""Element types that a loop program is made for several of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ...errors import KernelError
from ...ir.types import DType, SizeText, TensorSpec


@dataclass(frozen=True)
class ElementType:
    """One of several element types, in the annotations and the body of a loop program: `element_type`."""

    name: str
    """The name, for errors."""
    choices: tuple[DType, ...]
    """The element types that it may be."""

    def __getitem__(self, sizes: SizeText | tuple[SizeText, ...]) -> GenericSpec:
        """The type of an array: ``T["n", "d"]``."""
        return GenericSpec(self, sizes if isinstance(sizes, tuple) else (sizes,))


@dataclass(frozen=True)
class GenericSpec:
    """The type of an array whose element type is one of several."""

    element: ElementType
    """The element type."""
    sizes: tuple[SizeText, ...]
    """The sizes as written."""

    def of(self, chosen: Mapping[ElementType, DType]) -> TensorSpec:
        """The type where the element types are `chosen`."""
        return TensorSpec(chosen[self.element], self.sizes)


def element_type(name: str, *choices: DType) -> ElementType:
    """One of several element types: ``T = tw.element_type("T", tw.f32, tw.bf16)``.

    A loop program with arrays of ``T["n"]`` becomes a `KernelFamily`, with a kernel for each choice.

    Args:
        name: The name, for errors.
        *choices: The element types that it may be.

    Raises:
        KernelError: There is no choice, or one is no element type.
    """
    if not choices or not all(isinstance(d, DType) for d in choices):
        raise KernelError(f"the element type {name!r} has the choices {choices}; give types such as tw.f32")
    return ElementType(name, choices)


_CURRENT: ContextVar[Mapping[ElementType, DType]] = ContextVar("element types of the kernel that Python runs")


def running(function: Callable[..., Any], chosen: Mapping[ElementType, DType]) -> Callable[..., Any]:
    """A function that runs with element types `chosen`."""

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        token = _CURRENT.set(chosen)
        try:
            return function(*args, **named)
        finally:
            _CURRENT.reset(token)

    return run


def current(dtype: DType | ElementType) -> DType:
    """The element type that a choice is in the kernel that Python runs."""
    return _CURRENT.get({})[dtype] if isinstance(dtype, ElementType) else dtype


__all__ = ["ElementType", "GenericSpec", "current", "element_type", "running"]
