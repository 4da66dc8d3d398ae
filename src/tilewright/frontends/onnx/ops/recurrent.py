"""RNN, GRU and LSTM: one scan per direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.builder import Builder
from ....ir.core import Value
from ....ir.types import i64
from ...recurrent import Function, Step, Weights, gru_step, lstm_step, rnn_step, run_layer
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .matrix import transposed
from .shape import reshape, slice_

if TYPE_CHECKING:
    from ..node import Node

StepOf = Callable[[int, Weights, Sequence[Function], Function | None], Step]


@importer("RNN")
def _rnn(n: Node) -> list[Value]:
    return _layer(n, 1, ("Tanh",), lambda d, w, f, clip: rnn_step(w, _clipped(f[0], clip)))


@importer("GRU")
def _gru(n: Node) -> list[Value]:
    linear = bool(n.attr("linear_before_reset", 0))

    def step(direction: int, w: Weights, functions: Sequence[Function], clip: Function | None) -> Step:
        return gru_step(w, "zrn", functions, linear_before_reset=linear, clip=clip)

    return _layer(n, 3, ("Sigmoid", "Tanh"), step)


@importer("LSTM")
def _lstm(n: Node) -> list[Value]:
    coupled = bool(n.attr("input_forget", 0))
    weights = n.optional(7)

    def step(direction: int, w: Weights, functions: Sequence[Function], clip: Function | None) -> Step:
        peephole = None
        if weights is not None:
            size = weights.type.shape[1] // 3
            row = _part(n, weights, direction)
            peephole = {k: slice_(n, row, 0, p * size, (p + 1) * size) for p, k in enumerate("iof")}
        return lstm_step(w, "iofg", functions, peephole=peephole, coupled=coupled, clip=clip)

    return _layer(n, 4, ("Sigmoid", "Tanh", "Tanh"), step, states=2)


def _layer(n: Node, gates: int, defaults: Sequence[str], step_of: StepOf, states: int = 1) -> list[Value]:
    """Return the outputs (time, directions, batch, hidden) and the final states (directions, batch, hidden),
    or batch-first with `layout` 1.
    """
    batch_first = bool(n.attr("layout", 0))
    direction = n.attr("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    x, w, r = n.value(0), n.value(1), n.value(2)
    x = _swapped(n, x) if batch_first else x
    hidden, batch = r.type.shape[2], x.type.shape[1]
    if n.attr("hidden_size", hidden) != hidden:
        raise Unsupported(f"hidden_size is {n.attr('hidden_size')}, the weights have {hidden}")
    initial = []
    for k in range(5, 5 + states):
        state = n.optional(k)
        if state is None:
            zero = n.constant(0, x.type.dtype)
            state = n.emit(g.BroadcastTo(zero, shape=(directions, batch, hidden)))
        elif batch_first:
            state = _swapped(n, state)
        initial.append(state)
    names = n.attr("activations") or [*defaults] * directions
    if names == ["Tanh", "Tanh"] and len(defaults) == 1:
        names = names[:directions]  # RNN's default names two functions also for one direction
    functions = _functions(n, names, len(defaults), directions)
    limit = n.attr("clip")
    clip: Function | None = (
        None if limit is None else (lambda b, v: b(g.Clamp(v, minimum=-limit, maximum=limit)))
    )
    alive = _alive(n, x) if n.has(4) else None
    outputs: list[Value] = []
    final: list[list[Value]] = [[] for _ in range(states)]
    for d in range(directions):
        biases: list[Value | None] = [None, None]
        if n.has(3):
            row, size = _part(n, n.value(3), d), gates * hidden
            biases = [slice_(n, row, 0, 0, size), slice_(n, row, 0, size, 2 * size)]
        weights = Weights(transposed(n, _part(n, w, d)), transposed(n, _part(n, r, d)), *biases)
        y, last = run_layer(
            n.importer.builder,
            x,
            [_part(n, s, d) for s in initial],
            step_of(d, weights, functions[d], clip),
            backward=direction == "reverse" or d == 1,
            alive=alive,
        )
        outputs.append(reshape(n, y, (y.type.shape[0], 1, batch, hidden)))
        for kept, value in zip(final, last, strict=True):
            kept.append(reshape(n, value, (1, batch, hidden)))
    results = [_joined(n, outputs, 1), *(_joined(n, kept, 0) for kept in final)]
    if batch_first:
        y = results[0]
        results = [n.emit(g.Transpose(y, permutation=(2, 0, 1, 3))), *(_swapped(n, v) for v in results[1:])]
    return results


def _joined(n: Node, parts: list[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else n.emit(g.Concat(parts, axis=axis))


def _swapped(n: Node, x: Value) -> Value:
    """Exchange time and batch (or directions and batch)."""
    return n.emit(g.Transpose(x, permutation=(1, 0, *range(2, x.type.rank))))


def _part(n: Node, x: Value, direction: int) -> Value:
    """Return one direction's part of a tensor whose first dimension counts directions."""
    return reshape(n, slice_(n, x, 0, direction, direction + 1), x.type.shape[1:])


def _alive(n: Node, x: Value) -> Value:
    """Whether a time step lies within its sequence, of shape (time, batch, 1)."""
    time, batch = x.type.shape[:2]
    steps = n.emit(g.Iota(shape=(time, 1, 1), axis=0, dtype=i64))
    lengths = reshape(n, cast(n, n.value(4), i64), (1, batch, 1))
    return n.emit(g.elementwise.BINARY["lt"](steps, lengths))


_PLAIN: dict[str, Callable[[Value], Any]] = {
    "Relu": lambda x: g.Relu(x),
    "Tanh": lambda x: g.Tanh(x),
    "Sigmoid": lambda x: g.Sigmoid(x),
    "Softsign": lambda x: g.Softsign(x),
    "Softplus": lambda x: g.Softplus(x, threshold=float("inf")),
}
_DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01, None),
    "ThresholdedRelu": (1.0, None),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, None),
}
"""Default alpha and beta of the functions that have them."""


def _functions(n: Node, names: list[str], each: int, directions: int) -> list[list[Function]]:
    """Return the activation functions of every direction; functions with parameters take the given ones in
    order.
    """
    if len(names) != each * directions:
        raise Unsupported(f"{len(names)} activations instead of {each * directions}")
    alphas, betas = list(n.attr("activation_alpha") or ()), list(n.attr("activation_beta") or ())
    known = {name.lower(): name for name in (*_PLAIN, *_DEFAULTS)}
    functions = []
    for label in names:
        name = known.get(label.lower())
        if name is None:
            raise Unsupported(f"the activation '{label}'")
        alpha, beta = _DEFAULTS.get(name, (None, None))
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        functions.append(_function(name, alpha, beta))
    return [functions[k * each : (k + 1) * each] for k in range(directions)]


def _function(name: str, alpha: Any, beta: Any) -> Function:
    def apply(b: Builder, x: Value) -> Value:
        def scaled(v: Value, factor: float) -> Value:
            return b(g.Mul(v, g.elementwise.constant(b, factor, x)))

        match name:
            case "Affine":
                return b(g.Add(scaled(x, alpha), g.elementwise.constant(b, beta, x)))
            case "LeakyRelu":
                return b(g.LeakyRelu(x, slope=alpha))
            case "ThresholdedRelu":
                above = b(g.elementwise.BINARY["gt"](x, g.elementwise.constant(b, alpha, x)))
                return b(g.Select(above, x, g.elementwise.constant(b, 0, x)))
            case "ScaledTanh":
                return scaled(b(g.Tanh(scaled(x, beta))), alpha)
            case "HardSigmoid":
                return b(g.HardSigmoid(x, alpha=alpha, beta=beta))
            case "Elu":
                return b(g.Elu(x, alpha=alpha))
        return b(_PLAIN[name](x))

    return apply


def _clipped(function: Function, clip: Function | None) -> Function:
    return function if clip is None else (lambda b, x: function(b, clip(b, x)))
