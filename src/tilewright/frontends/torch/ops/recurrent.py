"""LSTM, GRU and simple recurrent layers: one scan for each layer and direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ...recurrent import Step, Weights, gru_step, lstm_step, relu, rnn_step, run_layer
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer

Options = tuple[bool, int, float, bool, bool, bool]
"""``has_biases``, ``num_layers``, ``dropout``, ``train``, ``bidirectional``, ``batch_first``."""


@importer("tilewright.lstm.default", "aten.lstm.input")
def lstm(
    n: Node, x: Value, states: Sequence[Value], params: Sequence[Value], *options: *Options
) -> list[Value]:
    def step(w: Weights, projection: Value | None) -> Step:
        return lstm_step(w, "ifgo", projection=projection)

    projected = states[0].type.shape[2] != states[1].type.shape[2]
    return _layers(n, x, states, params, step, projected, *options)


@importer("tilewright.gru.default", "aten.gru.input")
def gru(n: Node, x: Value, state: Value, params: Sequence[Value], *options: *Options) -> list[Value]:
    return _layers(n, x, [state], params, lambda w, _: gru_step(w, "rzn"), False, *options)


@importer("tilewright.rnn_tanh.default", "aten.rnn_tanh.input")
def rnn_tanh(n: Node, x: Value, state: Value, params: Sequence[Value], *options: *Options) -> list[Value]:
    return _layers(n, x, [state], params, lambda w, _: rnn_step(w), False, *options)


@importer("tilewright.rnn_relu.default", "aten.rnn_relu.input")
def rnn_relu(n: Node, x: Value, state: Value, params: Sequence[Value], *options: *Options) -> list[Value]:
    return _layers(n, x, [state], params, lambda w, _: rnn_step(w, relu), False, *options)


def _layers(
    n: Node,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    step: Callable[[Weights, Value | None], Step],
    projected: bool,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    """Return the outputs, then each final state of all layers and directions, in torch's order."""
    if train and dropout:
        raise Unsupported("dropout between layers is random; model.eval() removes it")
    directions = 2 if bidirectional else 1
    each = 2 + 2 * has_biases + projected
    x = n.transpose(x, (1, 0, 2)) if batch_first else x
    final: list[list[Value]] = [[] for _ in states]
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            w, r, *rest = params[number * each : (number + 1) * each]
            biases = rest[:2] if has_biases else (None, None)
            projection = n.transpose(rest[-1], (1, 0)) if projected else None
            weights = Weights(n.transpose(w, (1, 0)), n.transpose(r, (1, 0)), *biases)
            initial = [_state(n, s, number) for s in states]
            y, last = run_layer(
                n.importer.builder, x, initial, step(weights, projection), backward=direction == 1
            )
            outputs.append(y)
            for kept, value in zip(final, last, strict=True):
                kept.append(n.reshape(value, (1, *value.type.shape)))
        x = outputs[0] if directions == 1 else n.emit(g.Concat(outputs, axis=2))
    stacked = [v[0] if len(v) == 1 else n.emit(g.Concat(v, axis=0)) for v in final]
    return [n.transpose(x, (1, 0, 2)) if batch_first else x, *stacked]


@importer("aten.mkldnn_rnn_layer.default")
def mkldnn_rnn_layer(
    n: Node, x: Value, w: Value, r: Value, w_bias: Value, r_bias: Value, h: Value, c: Value, reverse: bool,
    batch_sizes: Sequence[int], mode: int, _: object, __: object, has_biases: bool, *options: bool,
) -> list[Any]:  # fmt: skip
    """Import one direction of one LSTM layer, which torch.compile builds for an LSTM without gradients."""
    bidirectional, batch_first, train = options
    if mode != 2 or batch_sizes or bidirectional or batch_first or train:
        raise Unsupported("an unknown form of recurrent layer")
    biases = (w_bias, r_bias) if has_biases else (None, None)
    weights = Weights(n.transpose(w, (1, 0)), n.transpose(r, (1, 0)), *biases)
    initial = [n.reshape(v, v.type.shape[-2:]) for v in (h, c)]
    y, last = run_layer(n.importer.builder, x, initial, lstm_step(weights, "ifgo"), backward=reverse)
    return [y, *(n.reshape(v, s.type.shape) for v, s in zip(last, (h, c), strict=True)), None]


def _state(n: Node, states: Value, number: int) -> Value:
    shape = states.type.shape
    one = n.emit(g.Slice(states, starts=(number, 0, 0), stops=(number + 1, *shape[1:]), steps=(1, 1, 1)))
    return n.reshape(one, shape[1:])
