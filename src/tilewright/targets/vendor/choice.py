"""The choice of what computes an operator: a vendor's library, or generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...dialects.kernels import KernelDefinition
from ...errors import CompileError
from ...passes.graph.library_forms import Form, Product, Shape, structure_of
from ...passes.graph.use_libraries import Choose
from .convolutions import convolution_kernel, convolves
from .kernels import FAMILIES
from .products import multiplies, product_kernel

Recorded = Callable[[str], Mapping[str, Any] | None]
"""The measured choices for a structure: ``{"library": name}``, an empty name for generated code; or None."""


def computes(library: str, form: Form) -> bool:
    """Whether a library computes operators of a form."""
    return multiplies(library, form) if isinstance(form, Product) else convolves(library, form)


def kernel_of(library: str, form: Form) -> KernelDefinition:
    """The kernel that computes a form by a library."""
    return product_kernel(library, form) if isinstance(form, Product) else convolution_kernel(library, form)


def chooser(
    names: Sequence[str],
    recorded: Recorded | None = None,
    seen: list[tuple[Form, Shape]] | None = None,
) -> Choose:
    """Chooses, for `passes.graph.use_libraries`, what computes an operator.

    Args:
        names: The libraries. The first that computes an operator is taken where no choice is recorded.
        recorded: The recorded choices.
        seen: Gets each operator that one of the libraries computes, whatever is chosen.
    """

    def choose(form: Form, shape: Shape) -> KernelDefinition | None:
        able = [n for n in names if computes(n, form)]
        if able and seen is not None:
            seen.append((form, shape))
        known = recorded(structure_of(form, shape)) if able and recorded is not None else None
        if known is not None:
            able = [n for n in able if n == known.get("library")]
        return kernel_of(able[0], form) if able else None

    return choose


def checked_names(libraries: str | Iterable[str], target: str) -> tuple[str, ...]:
    """The option `libraries` of `tilewright.compile`, checked.

    Raises:
        CompileError: There is no such library, or it is for other targets.
    """
    names = (libraries,) if isinstance(libraries, str) else tuple(libraries)
    family = target.partition(":")[0]
    for name in names:
        if name not in FAMILIES:
            raise CompileError(f"libraries: {name!r} is unknown; known are {', '.join(FAMILIES)}")
        if family != FAMILIES[name]:
            raise CompileError(
                f"libraries: {name!r} is for the target {FAMILIES[name]}, the model is compiled for {target}"
            )
    return names


__all__ = ["checked_names", "chooser", "computes", "kernel_of"]
