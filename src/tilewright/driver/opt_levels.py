"""The levels of optimization O0 to O3: which passes run, and how hard LLVM works.

The list of passes (`passes.pipelines`) says from which level on each pass runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CompileError

if TYPE_CHECKING:
    from ..passes.info import PassContext, PassInfo


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


def pass_list(opt: str = DEFAULT, context: PassContext | None = None) -> list[PassInfo]:
    """The passes that a level of optimization runs, in order, registered ones included.

    Without a `context` (the target's and the precision's: ``target.lowering.context(precision)``), the passes
    of all targets and precisions are listed, each with the `condition` under which it runs. A pass that runs
    several times stands as often.

    Raises:
        CompileError: there is no such level.
    """
    from ..passes.registry import all_passes, passes_in

    number = opt_level(opt).number
    if context is not None:
        return passes_in(context, opt=number)
    return [info for info in all_passes() if info.min_opt <= number]


__all__ = ["DEFAULT", "LEVELS", "OptLevel", "opt_level", "pass_list"]
