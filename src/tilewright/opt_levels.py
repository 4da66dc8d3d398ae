"""The levels of optimization O0 to O3: which passes run, and how hard LLVM works.

Passes that a target needs, or that make the program smaller and so pay for themselves, run at every level. Nothing may change a result by more than rounding,
at whatever level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import CompileError

_FIRST: Mapping[str, int] = {
    # What saves memory traffic or work in many models, in little time.
    "recognize": 1,
    "hoist": 1,
    "hoist-invariants": 1,
    "fold-batch-norm": 1,
    "integer-contractions": 1,
    "absorb-permutations": 1,
    "split-reductions": 1,
    # What rearranges weights and tensors for fewer, better kernels.
    "merge-matmuls": 2,
    "choose-layout": 2,
    "flatten-indices": 2,
    "defer-row-scales": 2,
    "transpose-weights": 2,
    "widen-depth": 2,
}
"""The level from which on a pass runs; those not named here always do."""


@dataclass(frozen=True)
class OptLevel:
    """`without`: names of the passes that are left out; `llvm`: LLVM's own level, 0 to 3."""

    name: str
    without: frozenset[str]
    llvm: int


LEVELS: Mapping[str, OptLevel] = {
    f"O{k}": OptLevel(f"O{k}", frozenset(name for name, first in _FIRST.items() if first > k), k) for k in range(4)
}
DEFAULT = "O2"


def opt_level(name: str) -> OptLevel:
    """The level of that name.

    Raises:
        CompileError: there is none; lists those there are.
    """
    if name not in LEVELS:
        raise CompileError(f"no level of optimization {name!r}; known: {', '.join(LEVELS)}")
    return LEVELS[name]


__all__ = ["DEFAULT", "LEVELS", "OptLevel", "opt_level"]
