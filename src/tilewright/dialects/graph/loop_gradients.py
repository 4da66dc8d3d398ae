"""Gradients of loops (`graph.scan`, `graph.while`).

The forward loop also stacks the values that the backward pass reads. The backward pass is a scan in the
opposite direction, which carries the gradients of the carried values. The gradient of a value from outside
that every step uses is a sum over the steps. Where it is a sum of products, the factors are stacked and one
product after the loop sums over steps too, as for the weights of recurrent layers in cuDNN (Appleyard et al.,
"Optimizing Performance of Recurrent Neural Networks on GPUs", 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.builder import Builder
from ...ir.cleanup import dce_block
from ...ir.core import Block, Operation, OpResult, Region, Value
from ...ir.run_time_symbols import definitions
from ...ir.symbolic import Dim
from ...ir.types import TensorType
from .base import Adjoint, tensor_type
from .residuals import copy_residuals, inner_uses, is_local, substitute, values_of, varying
from .stacked_sums import Sums
from .term import Term, operator


@dataclass
class Loop:
    """A loop whose gradient is asked for.

    Attributes:
        op: The operation. Its body yields `first` other values, then the carried values, then slices.
        length: The number of steps.
        carried: The body's arguments for the carried values.
        slices: The body's arguments that are slices of whole tensors.
        wholes: For each slice, the whole tensor, or a function that makes it in the backward pass.
        flags: For each slice, whether step ``t`` reads slice ``length - 1 - t``.
        first: How many values the body yields before the carried ones.
        initial: The first number of an operand that is an initial value.
        scanned: The operands' numbers of the slices' whole tensors, or None.
        out_flags: For each stacked result, whether step ``t`` writes slice ``length - 1 - t``.
        extended: Called when the operation stacks a further result.
        reverse: The flag of further stacked results.
    """

    op: Operation
    length: Dim
    carried: Sequence[Value]
    slices: Sequence[Value]
    wholes: Sequence[Callable[[Term], Term]]
    flags: Sequence[bool]
    first: int
    initial: int
    scanned: Sequence[int | None]
    out_flags: list[bool]
    extended: Callable[[], None]
    reverse: bool

    @property
    def body(self) -> Block:
        return self.op.body

    @property
    def ends(self) -> Sequence[Value]:
        """The carried values after a step."""
        return self.body.terminator.operands[self.first : self.first + len(self.carried)]

    @property
    def outputs(self) -> Sequence[Value]:
        """The slices that a step stacks."""
        return self.body.terminator.operands[self.first + len(self.carried) :]

    def stacked(self, value: Value) -> Value:
        """A value of the body, of all steps: a result of the loop that is stacked in the direction `reverse`;
        added where it is missing.
        """
        for k, (v, flag) in enumerate(zip(self.outputs, self.out_flags, strict=True)):
            if v is value and flag == self.reverse:
                return self.op.results[len(self.carried) + k]
        end, kind = self.body.terminator, tensor_type(value)
        end.set_operands([*end.operands, value])
        self.out_flags.append(self.reverse)
        result = OpResult(TensorType(kind.dtype, (self.length, *kind.shape)), self.op, len(self.op.results))
        self.op.results.append(result)
        self.extended()
        return result

    def before_step(self, like: Term, k: int) -> Term:
        """Carried value `k` before every step, stacked in the direction `reverse`."""
        first, after = like.of(self.op.operands[self.initial + k]), like.of(self.stacked(self.ends[k]))
        parts = [first.unsqueeze(0), after]
        whole = like.apply("concat", [x.value for x in (parts[::-1] if self.reverse else parts)], axis=0)
        start, shape = int(self.reverse), after.shape
        return like.apply(
            "slice",
            whole.value,
            starts=(start, *(0 for _ in shape[1:])),
            stops=(shape[0] + start, *shape[1:]),
            steps=(1,) * len(shape),
        )


def loop_gradient(loop: Loop, at: Adjoint) -> list[Term | None]:
    """The gradients of a loop's operands and captured values, as `GraphOp.gradient` returns them."""
    return _Reversed(loop, at).run()


class _Reversed:
    """The backward pass of one loop.

    `block` is the body of the backward scan, whose arguments are the gradients of carried values, the sums of
    captured values' gradients, and slices. `reads` are its slices: pairs of the whole tensor and the flag.
    """

    def __init__(self, loop: Loop, at: Adjoint) -> None:
        self.loop, self.at = loop, at
        self.block = Block([])
        self.inside = Builder(self.block, location=loop.op.location)
        self.reads: list[tuple[Value, bool]] = []
        self.read_args: list[Value] = []

    def run(self) -> list[Term | None]:
        loop, at, body = self.loop, self.at, self.loop.body
        operands = list(loop.op.operands)
        needed = {v for v, wanted in zip((*operands, *at.captured), at.needed, strict=True) if wanted}
        used = {v for op in body.ops for v in inner_uses(op)}
        captured = [v for v in dict.fromkeys((*at.captured, *operands)) if v in needed and v in used]
        count = len(loop.carried)
        finals, slice_gradients = at.cotangents[:count], at.cotangents[count:]
        state = self._carried_gradients(needed, captured, finals, slice_gradients)
        wanted_slices = [k for k, n in enumerate(loop.scanned) if n is not None and operands[n] in needed]
        carried_args = {k: self.block.add_arg(loop.carried[k].type) for k in state}
        given: list[Value | None] = [None] * loop.first
        given += [carried_args.get(k) for k in range(count)]
        for value, dy, flag in zip(list(loop.outputs), slice_gradients, list(loop.out_flags), strict=False):
            given.append(None if dy is None else self._read(dy.value, not flag, value.type))
        wanted = [*(loop.carried[k] for k in state), *(loop.slices[k] for k in wanted_slices), *captured]
        found = at.backward(self.inside, body, given, wanted)
        local = values_of(body)
        after = [self._or_zero(v, loop.carried[k]) for k, v in zip(state, found, strict=False)]
        of_slices = found[len(state) : len(state) + len(wanted_slices)]
        of_captured = found[len(state) + len(wanted_slices) :]

        hidden = definitions(body)
        steps = varying(self.block, [*self.block.args, *varying(body, body.args)])
        sums = Sums(
            self.block,
            steps,
            storable=lambda v: v not in local or not is_local(v, hidden),
            visible=lambda v: v not in local,
        )
        later = [None if g is None else sums.each_step(g) for g in of_slices]
        totals = [None if g is None else sums.total(g) for g in of_captured]
        accumulators: dict[int, tuple[Value, Term]] = {}
        for k, (g, total) in enumerate(zip(of_captured, totals, strict=True)):
            if g is not None and total is None:
                term = Term(self.inside, g).wide()
                arg = self.block.add_arg(term.value.type, index=len(state) + len(accumulators))
                accumulators[k] = (arg, Term(self.inside, arg) + term)
        outputs: list[tuple[Value, bool]] = []
        direct = {
            k: self._output(outputs, g, not loop.flags[n])
            for k, (n, g) in enumerate(zip(wanted_slices, of_slices, strict=True))
            if g is not None and later[k] is None
        }
        backward_factors = {
            v: self._output(outputs, v, not loop.reverse)
            for v in sums.factors
            if v not in local and self._whole(v) is None
        }
        yielded = [*(v.value for v in after), *(a.value for _, a in accumulators.values())]
        self.inside.insert(operator("yield")([*yielded, *(v for v, _ in outputs)]))
        dce_block(self.block)
        self._store_residuals()
        results = self._insert(state, finals, [a for a, _ in accumulators.values()], outputs)
        last, final_sums = results[: len(state)], results[len(state) : len(yielded)]
        stacks = results[len(yielded) :]

        def whole_of(v: Value) -> Term:
            if v in backward_factors:
                return stacks[backward_factors[v]]
            known = self._whole(v)
            return Term(at.b, known) if known is not None else self._forward(v)

        gradients: list[Term | None] = [None] * (len(operands) + len(at.captured))
        for k, term in zip(state, last, strict=True):
            gradients[loop.initial + k] = term
        for k, n in enumerate(wanted_slices):
            place, emit = loop.scanned[n], later[k]
            assert place is not None
            if k in direct:
                gradients[place] = stacks[direct[k]]
            elif emit is not None:
                term = emit(whole_of)
                gradients[place] = term if loop.flags[n] == loop.reverse else _flipped(term)
        everywhere = [*operands, *at.captured]
        numbers = list(accumulators)
        for k, v in enumerate(captured):
            emit = totals[k]
            if k in accumulators:
                self._add(gradients, everywhere.index(v), final_sums[numbers.index(k)])
            elif emit is not None:
                self._add(gradients, everywhere.index(v), emit(whole_of))
        return gradients

    def _add(self, gradients: list[Term | None], k: int, term: Term) -> None:
        known = gradients[k]
        gradients[k] = term if known is None else known + term.cast(known.dtype)

    def _carried_gradients(
        self,
        needed: set[Value],
        captured: Sequence[Value],
        finals: Sequence[Term | None],
        slice_gradients: Sequence[Term | None],
    ) -> list[int]:
        """The carried values that depend on a needed value and affect a result with a gradient."""
        loop = self.loop
        depends: dict[Value, set[Value]] = {v: {v} for v in (*loop.body.args, *captured)}
        for op in loop.body.ops:
            found: set[Value] = set().union(*(depends.get(v, ()) for v in inner_uses(op)))
            for r in op.results:
                depends[r] = found if r.type.dtype.is_float else set()
        active = {*captured}
        active |= {
            a
            for a, n in zip(loop.slices, loop.scanned, strict=True)
            if n is not None and loop.op.operands[n] in needed
        }
        initial = loop.op.operands[loop.initial : loop.initial + len(loop.carried)]
        active |= {a for a, x in zip(loop.carried, initial, strict=True) if x in needed}
        live = {k for k, dy in enumerate(finals) if dy is not None}
        outputs = [v for v, dy in zip(loop.outputs, slice_gradients, strict=False) if dy is not None]
        for _ in loop.carried:
            active |= {
                a for a, end in zip(loop.carried, loop.ends, strict=True) if depends.get(end, set()) & active
            }
            useful = set().union(*(depends.get(v, set()) for v in (*outputs, *(loop.ends[k] for k in live))))
            live |= {k for k, a in enumerate(loop.carried) if a in useful}
        return [k for k, a in enumerate(loop.carried) if k in live and a in active and a.type.dtype.is_float]

    def _read(self, whole: Value, flag: bool, kind: TensorType) -> Value:
        """An argument of the backward body: one slice of `whole` at each step."""
        self.reads.append((whole, flag))
        arg = self.block.add_arg(kind)
        self.read_args.append(arg)
        return arg

    def _or_zero(self, value: Value | None, like: Value) -> Term:
        if value is not None:
            return Term(self.inside, value)
        kind = tensor_type(like)
        zero: Term = Term(self.inside, like).number(0, kind.dtype)
        return zero.broadcast(kind.shape)

    @staticmethod
    def _output(outputs: list[tuple[Value, bool]], value: Value, flag: bool) -> int:
        outputs.append((value, flag))
        return len(outputs) - 1

    def _whole(self, value: Value) -> Value | None:
        """The tensor outside of the loops of which a value is a slice at every step, in the direction of the
        forward loop's stacked results.
        """
        for arg, (whole, flag) in zip(self.read_args, self.reads, strict=True):
            if arg is value and flag == (not self.loop.reverse):
                return whole
        return None

    def _forward(self, value: Value) -> Term:
        """A value of the forward body, of all steps, in the direction `reverse`."""
        loop = self.loop
        like = Term(self.at.b, value)
        if value in loop.carried:
            return loop.before_step(like, list(loop.carried).index(value))
        if value in loop.slices:
            k = list(loop.slices).index(value)
            whole = loop.wholes[k](like)
            return whole if loop.flags[k] == loop.reverse else _flipped(whole)
        return like.of(loop.stacked(value))

    def _store_residuals(self) -> None:
        """Let the backward body read stored values in the place of the forward body's."""
        loop = self.loop
        given: dict[Value, Value] = {}
        for v in copy_residuals(self.block, loop.body, loop.slices):
            flag = loop.reverse
            if v in loop.slices:
                k = list(loop.slices).index(v)
                whole, flag = loop.wholes[k](Term(self.at.b, v)), loop.flags[k]
            else:
                whole = self._forward(v)
            given[v] = self._read(whole.value, not flag, tensor_type(v))
        substitute(self.block, given)

    def _insert(
        self,
        state: Sequence[int],
        finals: Sequence[Term | None],
        sums: Sequence[Value],
        outputs: Sequence[tuple[Value, bool]],
    ) -> list[Term]:
        """The backward scan."""
        b, loop = self.at.b, self.loop
        initial: list[Value] = []
        for k in state:
            dy = finals[k]
            kind = tensor_type(loop.carried[k])
            start = dy if dy is not None else Term(b, loop.carried[k]).number(0, kind.dtype)
            initial.append(start.broadcast(kind.shape).value)
        for arg in sums:
            kind = tensor_type(arg)
            initial.append(Term(b, arg).number(0, kind.dtype).broadcast(kind.shape).value)
        flags = (*(f for _, f in self.reads), *(f for _, f in outputs))
        op = b.insert(
            operator("scan")(
                initial,
                [v for v, _ in self.reads],
                length=loop.length,
                backward=flags if any(flags) else (),
                regions=[Region([self.block])],
            )
        )
        return [Term(b, r) for r in op.results]


def _flipped(x: Term) -> Term:
    return x.apply("flip", x.value, axes=(0,))


__all__ = ["Loop", "loop_gradient"]
