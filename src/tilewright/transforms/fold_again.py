"""How folded constants are made once more: the operator that computed each, and of what.

The cache of compiled models keeps this instead of their data. Operators are noted as text, so that it can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialects import func
from ..dialects.graph.base import GraphOp
from ..ir.builder import Builder
from ..ir.constant import Constant
from ..ir.core import Module
from ..ir.interpreter import Interpreter
from ..ir.parser import parse
from ..ir.printer import print_op

MAX_DEPTH = 32
"""Folds after one another that are made again; after more of them the data are kept."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class _Fold:
    """An operator alone in a module, and what it takes: constants, or results (by number) of other folds, whose data it does not hold."""

    text: str
    operands: tuple[Constant | tuple[_Fold, int], ...]
    depth: int

    def results(self, known: dict[_Fold, list[Array]]) -> list[Array]:
        """What it computes; each fold runs once."""
        if self not in known:
            arrays = [o.array if isinstance(o, Constant) else o[0].results(known)[o[1]] for o in self.operands]
            known[self] = Interpreter(parse(self.text)).run("main", arrays)
        return known[self]


@dataclass(frozen=True, eq=False)
class _Folded:
    """Writes a result of a fold."""

    fold: _Fold
    number: int

    def __call__(self, out: Array) -> None:
        out[...] = self.fold.results({})[self.number]


def remember(results: Sequence[Constant], op: GraphOp, sources: Sequence[Constant]) -> None:
    """Note in `results`, which an operator computed of `sources`, how they are made again.

    A view of an array of the model's is found where that lies, and needs no note.
    """
    kept = [s.source for s in sources if s.again is None and not s.is_made]
    large = [
        (number, result)
        for number, result in enumerate(results)
        if result.nbytes >= Constant.WRITTEN
        and not result.is_splat
        and not any(np.may_share_memory(result.array, array) for array in kept)  # type: ignore[arg-type]
    ]
    operands: list[Constant | tuple[_Fold, int]] = [
        (s.again.fold, s.again.number) if isinstance(s.again, _Folded) else s for s in sources
    ]
    depth = 1 + max((o[0].depth for o in operands if isinstance(o, tuple)), default=0)
    if not large or depth > MAX_DEPTH or op.regions:
        return
    fold = _Fold(_alone(op), tuple(operands), depth)
    for number, result in large:
        result.again = _Folded(fold, number)


def _alone(op: GraphOp) -> str:
    """The text of a module whose function computes the operator of its arguments."""
    main = func.Func(
        sym_name="main",
        arg_names=tuple(f"x{k}" for k in range(len(op.operands))),
        result_names=tuple(f"y{k}" for k in range(len(op.results))),
    )
    module = Module()
    module.body.append(main)
    copy = op.clone({v: main.body.add_arg(v.type) for v in op.operands})
    b = Builder(main.body)
    b.insert(copy)
    b(func.Return(list(copy.results)))
    return print_op(module)


__all__ = ["remember"]
