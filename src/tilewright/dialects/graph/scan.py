"""Loops over time: `graph.scan` runs its body once for each slice of its inputs and passes values from step
to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, Effect, IRError, Operation, Value, VariadicOperand, operation
from ...ir.interpreter import Array, Frame
from ...ir.symbolic import Dim, Expr, free_symbols, prove_eq, symbol
from ...ir.types import TensorType, Type
from .. import tensor
from ..func import Func
from ..tensor_builder import TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, tensor_type
from .loop_gradients import Loop, loop_gradient
from .operands import need_size
from .term import Term


@operation
class Yield(Operation):
    """Ends the body of a scan: the next carried values, then this step's slice of each stacked result."""

    name = "graph.yield"
    effects = Effect.CONTROL
    terminator = True
    values: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return ()


@operation
class Scan(GraphOp):
    """A loop over slices: ``*carried, *slices = body(*carried, *(x[t] for x in scanned))`` for ``t = 0, 1,
    ..., length - 1``.

    The body's arguments are the carried values, which start as `initial`, and one slice along the leading
    axis of each scanned input; the body captures other values directly. The results are the carried values
    after the last step, then the slices of every step stacked along a new leading axis. `backward` has one
    entry for each scanned input, then for each stacked result (empty: none): where it is true, step ``t``
    reads or writes slice ``length - 1 - t``.
    """

    name = "graph.scan"
    num_regions = 1
    initial: VariadicOperand
    scanned: VariadicOperand
    length: Attr
    backward: Attr = ()

    @property
    def carried(self) -> tuple[Value, ...]:
        """The body's arguments for the carried values."""
        return tuple(self.body.args[: len(self.initial)])

    @property
    def slices(self) -> tuple[Value, ...]:
        """The body's arguments for the slices of scanned inputs."""
        return tuple(self.body.args[len(self.initial) :])

    def place(self, k: int, step: Dim) -> Dim:
        """Position of the slice of scanned input `k`, or of stacked result ``k - len(scanned)``, at
        `step`.
        """
        return self.length - 1 - step if self.backward and self.backward[k] else step

    def infer_types(self) -> Sequence[Type]:
        need_size(self, "length")
        if not isinstance(self.backward, (tuple, list)):
            raise IRError(f"backward is {self.backward!r}, needs a tuple of booleans", self)
        count = len(self.initial)
        stacked = [v.type for v in self.body.terminator.operands[count:]]
        return (
            *(v.type for v in self.initial),
            *(TensorType(t.dtype, (self.length, *t.shape)) for t in stacked),
        )

    def verify(self) -> None:
        count, results = len(self.initial), self.body.terminator.operands
        if len(self.body.args) != len(self.operands) or len(results) < count:
            raise IRError(
                f"body takes {len(self.body.args)} and yields {len(results)} values for {count} carried and "
                f"{len(self.scanned)} scanned",
                self,
            )
        if self.backward and len(self.backward) != len(self.scanned) + len(results) - count:
            raise IRError("'backward' needs one entry for each scanned input and stacked result", self)
        for k, (x, arg, end) in enumerate(zip(self.initial, self.carried, results, strict=False)):
            if x.type is not arg.type or not same_type(arg.type, end.type):
                raise IRError(
                    f"carried value {k} begins as {x.type}, is {arg.type} and becomes {end.type}", self
                )
        for k, (x, arg) in enumerate(zip(self.scanned, self.slices, strict=True)):
            t = tensor_type(x)
            if (
                not t.rank
                or not prove_eq(t.shape[0], self.length)
                or TensorType(t.dtype, t.shape[1:]) is not arg.type
            ):
                raise IRError(f"scanned input {k} is {t}, its {self.length} slices are {arg.type}", self)

    def interpret(self, env: Frame, *operands: Array) -> Any:
        count = len(self.initial)
        carried, scanned = list(operands[:count]), operands[count:]
        types = [r.type for r in self.results[count:]]
        stacked = [np.empty([int(env.evaluate(d)) for d in t.shape], t.dtype.numpy) for t in types]
        for step in range(int(env.evaluate(self.length))):
            places = [int(env.evaluate(self.place(k, step))) for k in range(len(scanned) + len(stacked))]
            yielded = env.run_block(
                self.body, [*carried, *(x[p] for x, p in zip(scanned, places, strict=False))]
            )
            carried = yielded[:count]
            for y, p, part in zip(stacked, places[len(scanned) :], yielded[count:], strict=True):
                y[p] = part
        return [*carried, *stacked]

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        count, inputs = len(self.initial), len(self.scanned)
        flags = list(self.backward) or [False] * (inputs + len(self.results) - count)
        out_flags = flags[inputs:]

        def extended() -> None:
            joined = (*flags[:inputs], *out_flags)
            self.backward = joined if any(joined) else ()

        return loop_gradient(
            Loop(
                self,
                self.length,
                self.carried,
                self.slices,
                [partial(_outside, x) for x in self.scanned],
                flags[:inputs],
                first=0,
                initial=0,
                scanned=range(count, count + inputs),
                out_flags=out_flags,
                extended=extended,
                reverse=bool(self.backward) and all(self.backward),
            ),
            at,
        )

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        """A `tensor.scan` that reads the slices and whose body has this operation's operators, which are
        lowered later.
        """
        count = len(self.initial)
        step = symbol(step_name(self), 0, self.length - 1)
        places = tuple(self.place(len(self.scanned) + k, step) for k in range(len(self.results) - count))
        types = [r.type for r in self.results]
        loop = tensor.Scan(
            [x.value for x in operands[:count]],
            step=step,
            places=places,
            result_types=types,
            location=self.location,
        )
        values: dict[Value, Value] = {a: loop.body.add_arg(a.type, a.hint) for a in self.carried}
        inside = TensorBuilder(Builder(loop.body, location=self.location))
        for k, (x, arg) in enumerate(zip(operands[count:], self.slices, strict=True)):
            place, whole = self.place(k, step), inside.wrap(x.value)
            values[arg] = inside.compute(arg.type.shape, lambda *i, x=whole, p=place: x[(p, *i)]).value
        for op in self.body.ops:
            if op.terminator:
                ends = [values.get(v, v) for v in op.operands]
                for k, arg in enumerate(self.carried):
                    ends[k] = inside.reshape(inside.wrap(ends[k]), arg.type.shape).value
                inside.builder.insert(tensor.Yield(ends))
            else:
                loop.body.append(op.clone(values))
        t.builder.insert(loop)
        return [t.wrap(r) for r in loop.results]


def _outside(x: Value, like: Term) -> Term:
    return like.of(x)


def same_type(a: TensorType, b: TensorType) -> bool:
    """Whether types are equal, symbolic dimensions compared by proof."""
    return a.dtype is b.dtype and a.rank == b.rank and all(map(prove_eq, a.shape, b.shape))


def step_name(op: Operation) -> str:
    """Name of a scan's step symbol, distinct from those of enclosing scans and from the function's
    dimensions.
    """
    depth, around = 0, op.parent_op
    while around is not None and not isinstance(around, Func):
        depth += isinstance(around, (GraphOp, tensor.Scan, tensor.While))
        around = around.parent_op
    types = [a.type for a in around.body.args] if around is not None else []
    taken = {s.name for t in types for d in t.shape if isinstance(d, Expr) for s in free_symbols(d)}
    name = f"step{depth}"
    while name in taken:
        name = f"_{name}"
    return name


__all__ = ["Scan", "Yield", "same_type", "step_name"]
