"""Connectionist temporal classification: the loss of sequences without an alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, Block, IRError, Operand, Region, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import prove_lt
from ...ir.types import TensorType, Type, boolean
from .base import GraphOp, tensor_type
from .operands import check_floating, check_shape, need_integer
from .scan import Scan, Yield
from .term import Term

IMPOSSIBLE = -1e30
"""The logarithm that stands for that of zero: finite, so that differences of two have a gradient."""


@operation
class CtcLoss(GraphOp):
    """The negative logarithm of the probability of label sequences, summed over all alignments (Graves et
    al., "Connectionist Temporal Classification", 2006); infinite where there is none.

    An alignment names a class at each time. It becomes the labels when repetitions are merged and blanks are
    removed. With blanks between the labels, before and after them, there are ``2 S + 1`` places; a loop over
    time sums the probabilities of all ways to each place.

    `log_probs` (T, N, C) are logarithms of probabilities, `targets` (N, S) labels in 0 .. C - 1 other than
    `blank`. The first `input_lengths` (N) times and `target_lengths` (N) labels count, all of them where a
    length is larger. The result is (N).
    """

    name = "graph.ctc_loss"
    log_probs: Operand
    targets: Operand
    input_lengths: Operand
    target_lengths: Operand
    blank: Attr = 0

    def infer_types(self) -> Sequence[Type]:
        need_integer(self, "blank", least=0)
        check_floating(self, "log_probs")
        x, y = tensor_type(self.log_probs), tensor_type(self.targets)
        if x.rank != 3 or y.rank != 2:
            raise IRError(f"log_probs have shape {x.shape} and targets {y.shape}: (T, N, C) and (N, S)", self)
        if not prove_lt(self.blank, x.shape[2]):
            raise IRError(f"blank is {self.blank}, and there are {x.shape[2]} classes", self)
        check_shape(self, "targets", (x.shape[1], y.shape[1]))
        for name in ("input_lengths", "target_lengths"):
            check_shape(self, name, (x.shape[1],))
        for name in ("targets", "input_lengths", "target_lengths"):
            if not tensor_type(getattr(self, name)).dtype.is_integer:
                raise IRError(f"{name} are integers", self)
        return (TensorType(x.dtype, (x.shape[1],)),)

    def reference(self, log_probs: Array, targets: Array, times: Array, counts: Array) -> Any:
        losses = []
        for n in range(log_probs.shape[1]):
            labels = [self.blank]
            for label in targets[n, : counts[n]]:
                labels += [int(label), self.blank]
            ways = np.full(len(labels), -np.inf)
            ways[0] = 0.0  # Before the first time there is one way, at the first blank.
            for row in log_probs[: times[n], n].astype(np.float64):
                before = ways.copy()
                for s, label in enumerate(labels):
                    ways[s] = np.logaddexp(before[s], before[s - 1] if s else -np.inf)
                    if s >= 2 and label not in (self.blank, labels[s - 2]):
                        ways[s] = np.logaddexp(ways[s], before[s - 2])
                    ways[s] += row[label]
            losses.append(-np.logaddexp.reduce(ways[-2:]))
        return np.array(losses, log_probs.dtype).reshape(log_probs.shape[1])

    def decompose(self, b: Builder) -> Value:
        x = Term(b, self.log_probs).wide()
        targets, times, counts = (Term(b, v) for v in (self.targets, self.input_lengths, self.target_lengths))
        size, rows = targets.shape[1], targets.shape[0]
        counts = counts.cast(targets.dtype).minimum(size)
        used = targets.iota(size).cast(targets.dtype).reshape((1, size)) < counts.unsqueeze(1)
        labels = used.select(targets, self.blank).unsqueeze(2).pad_axis(2, 1, 0, self.blank)
        labels = labels.reshape((rows, 2 * size)).pad_axis(1, 0, 1, self.blank)
        places = 2 * size + 1
        twice = labels.pad_axis(1, 2, -2, self.blank)
        skips = labels.equals(self.blank) | labels.equals(twice)
        emitted = x.along(labels.unsqueeze(0), 2).maximum(IMPOSSIBLE)
        first = x.iota(places).equals(0).select(x.number(0.0), IMPOSSIBLE)
        start = first.reshape((1, places)).broadcast((rows, places))
        active = x.iota(x.shape[0]).cast(times.dtype).reshape((x.shape[0], 1)) < times
        block = Block([start.value.type, *(TensorType(t.dtype, t.shape[1:]) for t in (emitted, active))])
        inside = Builder(block, location=b.location)
        ways, emission, running = (Term(inside, a) for a in block.args)
        inside.insert(Yield([_step(ways, emission, running, Term(inside, skips.value)).value]))
        scanned = [emitted.value, active.value]
        ends = Term(b, b(Scan([start.value], scanned, length=x.shape[0], regions=[Region([block])])))
        last = (counts * 2).unsqueeze(1)
        at_blank = ends.along(last, 1)
        at_label = ends.along((last - 1).maximum(0), 1)
        at_label = (counts > 0).unsqueeze(1).select(at_label, IMPOSSIBLE)
        loss = -_log_of_sum(at_blank, at_label).reshape((rows,))
        infinite = loss > -IMPOSSIBLE / 10
        return infinite.select(loss.number(float("inf")), loss).cast(tensor_type(self.log_probs).dtype).value


def _step(ways: Term, emitted: Term, running: Term, barred: Term) -> Term:
    """The logarithms (N, places) of the sums over all ways to each place, one time later.

    `barred` (N, places) says which places are not reached from the second one before them, `running` (N)
    which sequences have not ended.
    """
    assert barred.dtype is boolean
    one, two = (ways.pad_axis(1, k, -k, IMPOSSIBLE) for k in (1, 2))
    two = barred.select(IMPOSSIBLE, two)
    return running.unsqueeze(1).select(_log_of_sum(ways, one, two) + emitted, ways)


def _log_of_sum(*terms: Term) -> Term:
    top = terms[0]
    for x in terms[1:]:
        top = top.maximum(x)
    # The result does not depend on the shift, so neither does the gradient.
    top = top.apply("stop_gradient", top.value)
    total = (terms[0] - top).unary("exp")
    for x in terms[1:]:
        total = total + (x - top).unary("exp")
    return total.unary("log") + top


__all__ = ["CtcLoss"]
