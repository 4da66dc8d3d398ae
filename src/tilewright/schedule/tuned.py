"""Measured choices for schedule rules' knobs, as lowering asks for them: see `tilewright.driver.tuned`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..artifact.choices import Knob
from ..dialects import loop

TUNED = "measured choices"
"""The state of a kernel that has them."""


@dataclass(frozen=True)
class TunedChoices:
    """The fastest choices known for a kernel."""

    choices: Mapping[str, Knob]
    """The values of knobs that differ from the rule's defaults."""
    digest: str
    """A digest of the code that was measured. Where the choices give other code, the compiler has changed,
    and the measurement says nothing.
    """
    when: str = ""
    """The condition of a variant over the sizes ``size_0``, ``size_1``, ... of the kernel's structure."""
    variants: tuple[TunedChoices, ...] = ()
    """Choices for ranges of sizes: the first whose condition holds counts, before `choices`."""


class TunedKernels(Protocol):
    """Measured choices of kernels for one target."""

    def find(self, structure: str) -> TunedChoices | None:
        """The choices for the kernel with this structure; None where its defaults are the best known."""
        ...

    def digest(self, kernel: loop.Kernel) -> str:
        """A digest of the code of a finalized kernel."""
        ...


__all__ = ["TUNED", "TunedChoices", "TunedKernels"]
