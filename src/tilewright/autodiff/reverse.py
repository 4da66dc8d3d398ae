"""Reverse-mode differentiation of the operators of a block.

The operators are visited from the last to the first. Each tells the gradients with respect to its operands
from those with respect to its results (`GraphOp.gradient`), and the gradients of a value that has several
uses are added (reverse accumulation: Linnainmaa, 1976; Griewank and Walther, "Evaluating Derivatives", 2008).
The backward pass is appended as operators of the same level, so that it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import NotImplementedType

from ..dialects.graph.base import Adjoint, GraphOp, tensor_type
from ..dialects.graph.term import Term
from ..errors import GradientError
from ..ir.builder import Builder
from ..ir.core import Block, Operation, Value
from ..ir.types import TensorType


def backward(
    b: Builder,
    ops: Sequence[Operation],
    cotangents: Sequence[tuple[Value, Value]],
    wanted: Sequence[Value],
) -> list[Value | None]:
    """Append the backward pass of `ops` at `b`.

    An operator without a rule is replaced by its decomposition, also in the forward pass.

    Args:
        b: The place of the backward pass, where the values of `ops` are visible.
        ops: The operators of one block, in order.
        cotangents: Pairs of a value and the gradient with respect to it, of the same type. A value may stand
            in several pairs.
        wanted: The values whose gradients are asked for, defined before `ops` or by one of them.

    Returns:
        The gradient of each wanted value, of its type; None where it does not affect the values of
        `cotangents`, or is not floating point.

    Raises:
        GradientError: The gradient needs that of operators that have none; the message lists all of them.
    """
    refused: dict[str, None] = {}
    result = _Backward(b, wanted, refused).run(ops, cotangents)
    if refused:
        raise GradientError(
            "no gradient is defined for the following operators; use tw.stop_gradient where none is needed, "
            "or define one with tw.custom_gradient:" + "".join(f"\n  - {line}" for line in refused)
        )
    return result


class _Backward:
    """One backward pass. `refused` collects the operators without a gradient, over nested blocks too."""

    def __init__(self, b: Builder, wanted: Sequence[Value], refused: dict[str, None]) -> None:
        self.b = b
        self.wanted = wanted
        self.refused = refused
        self.active: set[Value] = {v for v in wanted if is_floating(v)}
        self.gradients: dict[Value, Value] = {}

    def run(self, ops: Iterable[Operation], cotangents: Sequence[tuple[Value, Value]]) -> list[Value | None]:
        stack = list(ops)
        for op in stack:
            self._spread(op)
        for value, gradient in cotangents:
            self._add(value, Term(self.b, gradient))
        while stack:
            op = stack.pop()
            given = [self.gradients.get(r) for r in op.results]
            if any(g is not None for g in given) and self._is_active(op):
                with self.b.at(op.location):
                    stack += self._visit(op, given)
        return [self.gradients.get(v) for v in self.wanted]

    def _is_active(self, op: Operation) -> bool:
        return any(v in self.active for v in uses(op))

    def _spread(self, op: Operation) -> None:
        """Mark the results of an operator whose operands depend on the wanted values."""
        if self._is_active(op):
            self.active.update(r for r in op.results if is_floating(r))

    def _visit(self, op: Operation, given: Sequence[Value | None]) -> list[Operation]:
        """Add the gradients of the operands; return the operators of a decomposition, which are visited
        instead.
        """
        if not isinstance(op, GraphOp):
            self._refuse(op)
            return []
        own = set(op.operands)
        captured = [v for v in dict.fromkeys(uses(op)) if v in self.active and v not in own]
        values = (*op.operands, *captured)
        at = Adjoint(self.b, op, given, [v in self.active for v in values], captured, self._nested)
        found = op.gradient(at)
        if isinstance(found, NotImplementedType):
            self._refuse(op)
            return []
        if found is None:
            return self._decomposed(op, given)
        for value, term in zip(values, found, strict=True):
            if term is not None and value in self.active:
                self._add(value, term)
        return []

    def _decomposed(self, op: GraphOp, given: Sequence[Value | None]) -> list[Operation]:
        before, block = op.previous, op.parent
        assert block is not None
        made = op.decompose(Builder.before(op))
        if made is None:
            self._refuse(op)
            return []
        results = [made] if isinstance(made, Value) else list(made)
        ops = block.between(before, op)
        for part in ops:
            self._spread(part)
        for new, gradient in zip(results, given, strict=True):
            if gradient is not None:
                self._add(new, Term(self.b, gradient))
        # The operator stays, since a function that is being traced may still hold its results.
        for old, new in zip(op.results, results, strict=True):
            old.replace_by(new)
        return ops

    def _add(self, value: Value, term: Term) -> None:
        """Add a gradient to that of `value`, summed to its shape and converted to its type."""
        kind = tensor_type(value)
        whole = term.sum_to(kind.shape).broadcast(kind.shape).cast(kind.dtype)
        known = self.gradients.get(value)
        self.gradients[value] = whole.value if known is None else (Term(self.b, known) + whole).value

    def _nested(
        self,
        b: Builder,
        block: Block,
        cotangents: Sequence[Value | None],
        wanted: Sequence[Value],
    ) -> list[Value | None]:
        """Append the backward pass of a block, whose terminator's operands have these gradients, at `b`."""
        ops = [op for op in block.ops if not op.terminator]
        ends = zip(block.terminator.operands, cotangents, strict=True)
        pairs = [(v, g) for v, g in ends if g is not None]
        return _Backward(b, wanted, self.refused).run(ops, pairs)

    def _refuse(self, op: Operation) -> None:
        self.refused[f"{op.name.removeprefix('graph.')} at {op.location}"] = None


def is_floating(value: Value) -> bool:
    """Whether a value is a tensor of floating-point numbers, which may have a gradient."""
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def uses(op: Operation) -> Iterator[Value]:
    """The operands of an operation and of the operations in its regions, also values that are defined in
    these regions.
    """
    for inside in op.walk() if op.regions else (op,):
        yield from inside.operands


__all__ = ["backward", "is_floating", "uses"]
