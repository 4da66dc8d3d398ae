"""The levels of optimization O0 to O3: which passes run, and how hard LLVM works.

The list of passes (`passes.pipelines`) says from which level on each pass runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import CompileError


@dataclass(frozen=True)
class OptLevel:
    """A level of optimization."""

    name: str
    number: int
    """0 to 3: passes with a greater `PassInfo.min_opt` are left out, and LLVM optimizes at its level of this
    number."""

    @property
    def llvm(self) -> int:
        """LLVM's own level of optimization."""
        return self.number

    @property
    def without(self) -> frozenset[str]:
        """Names of the passes that the level leaves out, registered ones included."""
        from ..passes.registry import all_passes

        return frozenset(info.name for info in all_passes() if info.min_opt > self.number)


LEVELS: Mapping[str, OptLevel] = {f"O{k}": OptLevel(f"O{k}", k) for k in range(4)}
DEFAULT = "O2"


def opt_level(name: str) -> OptLevel:
    """The level of that name, "O0" to "O3".

    Raises:
        CompileError: there is no such level; lists the known ones.
    """
    if name not in LEVELS:
        raise CompileError(f"no level of optimization {name!r}; known: {', '.join(LEVELS)}")
    return LEVELS[name]


__all__ = ["DEFAULT", "LEVELS", "OptLevel", "opt_level"]
