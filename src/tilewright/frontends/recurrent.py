"""Recurrent layers as scans: the common part of all front ends' LSTM, GRU and RNN operators.

A *step* is a function ``(b, x, *states) -> next states`` that builds one time step for ``x`` of shape (batch,
inputs) and states of shape (batch, hidden); the first state is also the layer's output. Each step multiplies
`x` by weights of its own; the compiler moves that product out of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..dialects import graph as g
from ..dialects.graph.scan import Yield
from ..ir.builder import Builder
from ..ir.constant import Constant
from ..ir.core import Block, Region, Value
from ..ir.types import TensorType

Step = Callable[..., Sequence[Value]]
Function = Callable[[Builder, Value], Value]
"""An activation function."""


def sigmoid(b: Builder, x: Value) -> Value:
    return b(g.Sigmoid(x))


def tanh(b: Builder, x: Value) -> Value:
    return b(g.Tanh(x))


def relu(b: Builder, x: Value) -> Value:
    return b(g.Relu(x))


@dataclass(frozen=True)
class Weights:
    """The weights of one layer in one direction: `inputs` (inputs, gates * hidden), `state` (state, gates *
    hidden), biases (gates * hidden).
    """

    inputs: Value
    state: Value
    input_bias: Value | None = None
    state_bias: Value | None = None


def run_layer(
    b: Builder,
    x: Value,
    initial: Sequence[Value],
    step: Step,
    *,
    backward: bool = False,
    alive: Value | None = None,
) -> tuple[Value, list[Value]]:
    """Return the outputs (time, batch, hidden) and the final states of a layer over `x` (time, batch,
    inputs).

    If `backward`, it runs from the last time step to the first. Where `alive` (time, batch, 1; bool) is
    false, states are kept and the output is 0.
    """
    scanned = [x] if alive is None else [x, alive]
    slices = [TensorType(v.type.dtype, v.type.shape[1:]) for v in scanned]
    body = Block([*(v.type for v in initial), *slices])
    inner = Builder(body, location=b.location)
    states, inputs = body.args[: len(initial)], body.args[len(initial) :]
    following = list(step(inner, inputs[0], *states))
    output = following[0]
    if alive is not None:
        nothing = inner(g.Constant(value=Constant(np.zeros((), output.type.dtype.numpy))))
        output = inner(g.Select(inputs[1], output, nothing))
        following = [inner(g.Select(inputs[1], new, old)) for new, old in zip(following, states, strict=True)]
    inner.insert(Yield([*following, output]))
    flags = (*[backward] * len(scanned), backward) if backward else ()
    results = b.insert(
        g.Scan(list(initial), scanned, length=x.type.shape[0], backward=flags, regions=[Region([body])])
    ).results
    *final, outputs = results
    return outputs, final


def rnn_step(w: Weights, f: Function = tanh) -> Step:
    """Return the step ``h' = f(x W + h R + b)``."""

    def step(b: Builder, x: Value, h: Value) -> Sequence[Value]:
        return (f(b, _gates(b, w, x, h)),)

    return step


def lstm_step(
    w: Weights,
    order: str,
    functions: Sequence[Function] = (sigmoid, tanh, tanh),
    *,
    peephole: dict[str, Value] | None = None,
    projection: Value | None = None,
    coupled: bool = False,
    clip: Function | None = None,
) -> Step:
    """Return the step of an LSTM with states (h, c). `order` names the gates in the order of the weights'
    columns: input, forget, (cell) g, output.

    `functions` are those of the gates, of the cell's input and of its output. `peephole` has weights (hidden)
    by which the cell contributes to gates ``i``, ``f`` and ``o``. `projection` (hidden, state) is multiplied
    with the output. If `coupled`, the forget gate is ``1 - i``. `clip` is applied to the arguments of
    activation functions.
    """
    gate, inward, outward = functions

    def step(b: Builder, x: Value, h: Value, c: Value) -> Sequence[Value]:
        z = dict(zip(order, _parts(b, _gates(b, w, x, h), 4), strict=True))

        def activated(name: str, function: Function, cell: Value | None = None) -> Value:
            value = z[name]
            if peephole and cell is not None:
                value = b(g.Add(value, b(g.Mul(peephole[name], cell))))
            return function(b, clip(b, value) if clip is not None else value)

        i = activated("i", gate, c)
        f = b(g.Sub(_one(b, i), i)) if coupled else activated("f", gate, c)
        new = b(g.Add(b(g.Mul(f, c)), b(g.Mul(i, activated("g", inward)))))
        o = activated("o", gate, new)
        y = b(g.Mul(o, outward(b, new)))
        return (y if projection is None else b(g.Matmul(y, projection)), new)

    return step


def gru_step(
    w: Weights,
    order: str,
    functions: Sequence[Function] = (sigmoid, tanh),
    *,
    linear_before_reset: bool = True,
    clip: Function | None = None,
) -> Step:
    """Return the step of a GRU. `order` names the gates in the order of the weights' columns: reset, (update)
    z, and last the new value n.

    If `linear_before_reset`, the reset gate is applied to the product of state and weights, not to the state.
    """
    gate, inward = functions

    def activated(b: Builder, function: Function, value: Value) -> Value:
        return function(b, clip(b, value) if clip is not None else value)

    def step(b: Builder, x: Value, h: Value) -> Sequence[Value]:
        inputs = dict(zip(order, _parts(b, _affine(b, x, w.inputs, w.input_bias), 3), strict=True))
        if linear_before_reset:
            state = dict(zip(order, _parts(b, _affine(b, h, w.state, w.state_bias), 3), strict=True))
        else:
            gates, last = _apart(b, w.state)
            bias, last_bias = (None, None) if w.state_bias is None else _apart(b, w.state_bias)
            state = dict(zip(order[:2], _parts(b, _affine(b, h, gates, bias), 2), strict=True))
        r, z = (activated(b, gate, b(g.Add(inputs[k], state[k]))) for k in "rz")
        if linear_before_reset:
            kept = b(g.Mul(r, state["n"]))
        else:
            kept = _affine(b, b(g.Mul(r, h)), last, last_bias)
        n = activated(b, inward, b(g.Add(inputs["n"], kept)))
        return (b(g.Add(b(g.Mul(b(g.Sub(_one(b, z), z)), n)), b(g.Mul(z, h)))),)

    return step


def _affine(b: Builder, x: Value, weight: Value, bias: Value | None) -> Value:
    y: Value = b(g.Matmul(x, weight))
    return y if bias is None else b(g.Add(y, bias))


def _gates(b: Builder, w: Weights, x: Value, h: Value) -> Value:
    """Return ``(x W + b_w + b_r) + h R``, whose first part does not depend on the previous step."""
    biases = [v for v in (w.input_bias, w.state_bias) if v is not None]
    bias = b(g.Add(*biases)) if len(biases) == 2 else biases[0] if biases else None
    return b(g.Add(_affine(b, x, w.inputs, bias), b(g.Matmul(h, w.state))))


def _parts(b: Builder, x: Value, count: int) -> list[Value]:
    """Return `x` cut into equal parts along its last dimension."""
    size = x.type.shape[-1] // count
    return [_columns(b, x, k * size, (k + 1) * size) for k in range(count)]


def _apart(b: Builder, x: Value) -> tuple[Value, Value]:
    """Return the columns of the first two of three gates, and those of the last."""
    size = x.type.shape[-1] // 3
    return _columns(b, x, 0, 2 * size), _columns(b, x, 2 * size, 3 * size)


def _columns(b: Builder, x: Value, start: int, stop: int) -> Value:
    shape = x.type.shape
    lead = len(shape) - 1
    return b(g.Slice(x, starts=(*(0,) * lead, start), stops=(*shape[:-1], stop), steps=(1,) * (lead + 1)))


def _one(b: Builder, like: Value) -> Value:
    return b(g.Constant(value=Constant(np.ones((), like.type.dtype.numpy))))


__all__ = [
    "Function",
    "Step",
    "Weights",
    "gru_step",
    "lstm_step",
    "relu",
    "rnn_step",
    "run_layer",
    "sigmoid",
    "tanh",
]
