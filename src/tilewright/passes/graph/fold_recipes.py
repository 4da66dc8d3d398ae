"""Records how folded constants can be computed again: the operator that computed each, and its operands.

The cache of compiled models stores these records instead of the data. Operators are recorded as text, which
can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...dialects import func
from ...dialects.graph.base import GraphOp
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Module
from ...ir.interpreter import Array, Interpreter
from ...ir.parser import parse
from ...ir.printer import print_op

MAX_DEPTH = 32
"""Largest number of successive folds that are computed again; the data of later ones are stored."""


@dataclass(frozen=True, eq=False)
class _Fold:
    """An operator as a module of its own, and its operands: constants, or results (by number) of other folds.

    It does not hold the data of these results.
    """

    text: str
    operands: tuple[Constant | tuple[_Fold, int], ...]
    depth: int

    def results(self, known: dict[_Fold, list[Array]]) -> list[Array]:
        """The results of the operator; each fold in `known` runs once."""
        if self not in known:
            arrays = [
                o.array if isinstance(o, Constant) else o[0].results(known)[o[1]] for o in self.operands
            ]
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
    """Record in `results`, which an operator computed from `sources`, how they are computed again.

    A view of one of the model's arrays needs no record: its data are in the model.
    """
    kept = [s.source for s in sources if s.again is None and not s.is_made]
    large = [
        (number, result)
        for number, result in enumerate(results)
        if result.nbytes >= Constant.WRITTEN
        and not result.is_splat
        and not any(np.may_share_memory(result.array, array) for array in kept)
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
    """The text of a module whose function applies the operator to its arguments."""
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
    b.insert(func.Return(list(copy.results)))
    return print_op(module)


__all__ = ["remember"]
