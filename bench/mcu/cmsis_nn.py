"""A program that calls CMSIS-NN's kernels in the order of a network's layers, without an interpreter.

TensorFlow Lite Micro calls the same kernels, and its interpreter, allocator and flat buffers come on top. The
weights are random, in the peer's layout and quantization: int8, one scale for each channel of a convolution.
Buffers are placed by their live ranges, the largest first, as TensorFlow Lite Micro's planner does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.dialects.graph.base import tensor_type
from tilewright.ir.core import Value
from tilewright.quantization.prepare import main_function, prepared

from .networks import Network

DECLARATIONS = '#include "arm_nnfunctions.h"'


@dataclass
class Peer:
    """The text of a program as it grows, and the live ranges of its buffers."""

    data: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    buffers: dict[str, list[int]] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def buffer(self, size: int) -> str:
        """A buffer that is written by the next step."""
        name = f"B{len(self.buffers)}"
        self.buffers[name] = [size, len(self.steps), len(self.steps)]
        return name

    def call(self, text: str, reads: Iterable[str] = ()) -> None:
        for name in reads:
            if name in self.buffers:
                self.buffers[name][2] = len(self.steps)
        self.steps.append(text)

    def constant(self, ctype: str, values: np.ndarray) -> str:
        name = f"c{len(self.data)}"
        text = ",".join(map(str, values.ravel().tolist()))
        self.data.append(f"static const {ctype} {name}[{values.size}] = {{{text}}};")
        return name

    def weights(self, count: int) -> str:
        return self.constant("int8_t", self.rng.integers(-127, 128, count))

    def bias(self, count: int) -> str:
        return self.constant("int32_t", self.rng.integers(-1000, 1000, count))

    def scales(self, channels: int) -> str:
        """Multipliers of 31 bits and shifts to the right."""
        return ", ".join(
            f"(int32_t*){self.constant('int32_t', values)}"
            for values in (self.rng.integers(1 << 30, (1 << 31) - 1, channels), np.full(channels, -8))
        )

    def arena(self) -> tuple[int, dict[str, int]]:
        """The bytes of all buffers together, and the offset of each."""
        placed: dict[str, int] = {}
        for name in sorted(self.buffers, key=lambda n: -self.buffers[n][0]):
            size, first, last = self.buffers[name]
            at = 0
            others = [
                (placed[n], placed[n] + -(-s // 16) * 16)
                for n, (s, begin, end) in self.buffers.items()
                if n in placed and begin <= last and first <= end
            ]
            for low, high in sorted(others):
                if at + size <= low:
                    break
                at = max(at, high)
            placed[name] = at
        return max(placed[n] + self.buffers[n][0] for n in placed), placed


def _dims(n: int, h: int, w: int, c: int) -> str:
    return f"&(cmsis_nn_dims){{{n}, {h}, {w}, {c}}}"


def _pair(pair: Any) -> str:
    return f"{{{pair[1]}, {pair[0]}}}"  # Widths come first.


def peer_of(network: Network) -> tuple[str, str, str]:
    """The declarations, the data and the statement that runs a network."""
    peer = Peer()
    module = prepared(network.make(), (network.samples()[0],), None, None)
    function = main_function(module)
    (x,) = function.body.args
    names: dict[Value, str] = {x: "input"}
    for op in function.body.ops:
        if isinstance(op, graph.Conv):
            names[op.result] = _conv(peer, op, names[op.x], names)
        elif isinstance(op, graph.Matmul):
            names[op.result] = _dense(peer, op, names[op.operands[0]])
        elif isinstance(op, graph.ReduceMean):
            names[op.result] = _pool(peer, op, names[op.operands[0]])
        elif isinstance(op, graph.Softmax):
            names[op.result] = _softmax(peer, op, names[op.operands[0]])
        elif isinstance(op, graph.Add) and all(v in names for v in op.operands):
            names[op.result] = _add(peer, op, [names[v] for v in op.operands])
        else:  # part of the layer before it, or one that only names numbers anew
            source = next((v for v in op.operands if v in names), None)
            if source is not None and op.results:
                names[op.results[0]] = names[source]
    result = names[function.body.last.operands[0]]  # type: ignore[union-attr]
    peer.buffers[result][2] = len(peer.steps)
    size, placed = peer.arena()
    text = "\n".join(peer.steps)
    for name in sorted(placed, key=len, reverse=True):
        text = text.replace(f"{name}@", f"(arena + {placed[name]})")
    length = tensor_type(x).size
    data = [
        *peer.data,
        f"static const _Alignas(8) int8_t input[{length}] = {{1, 2, 3}};",
        f"static _Alignas(16) int8_t arena[{size}];",
    ]
    return DECLARATIONS, "\n".join(data), f"{{\n{text}\n}}"


def _context(peer: Peer, question: str) -> tuple[str, str]:
    """A step's scratch memory: the bytes are found by running the peer's own function, see `SCRATCH`."""
    name = peer.buffer(SCRATCH.get(question, 0))
    ASKED[question] = None
    return name, f"&(cmsis_nn_context){{{name}@, 0}}"


SCRATCH: dict[str, int] = {}
"""Answers of CMSIS-NN's functions that tell the bytes of scratch memory, by the text of the call."""
ASKED: dict[str, None] = {}


def _conv(peer: Peer, op: Any, source: str, names: dict[Value, str]) -> str:
    (_, channels, h, w), (outputs, _, kh, kw) = (tensor_type(v).shape for v in (op.x, op.w))
    _, _, oh, ow = tensor_type(op.result).shape
    depthwise = op.groups == channels and op.groups > 1
    padding = [low for low, _ in op.padding]
    kind, multiplier, prefix = ("dw_conv", "1, ", "depthwise_conv") if depthwise else ("conv", "", "convolve")
    parameters = (
        f"&(cmsis_nn_{kind}_params){{128, -128, {multiplier}{_pair(op.strides)}, {_pair(padding)}, {{1, 1}}, "
        "{-128, 127}}"
    )
    shapes = [_dims(1, h, w, channels), _dims(1 if depthwise else outputs, kh, kw, channels)]
    out = _dims(1, oh, ow, outputs)
    question = f"arm_{prefix}_wrapper_s8_get_buffer_size({parameters}, {shapes[0]}, {shapes[1]}, {out})"
    target = peer.buffer(oh * ow * outputs)
    scratch, context = _context(peer, question)
    count = kh * kw * channels * (1 if depthwise else outputs)
    peer.call(
        f"arm_{prefix}_wrapper_s8({context}, {parameters}, &(cmsis_nn_per_channel_quant_params){{"
        f"{peer.scales(outputs)}}}, {shapes[0]}, {_at(source)}, {shapes[1]}, {peer.weights(count)}, "
        f"{_dims(1, 1, 1, outputs)}, {peer.bias(outputs)}, {out}, {target}@);",
        [source, scratch],
    )
    return target


def _at(name: str) -> str:
    return name if name == "input" else f"{name}@"


def _dense(peer: Peer, op: Any, source: str) -> str:
    depth, outputs = tensor_type(op.operands[1]).shape
    target = peer.buffer(outputs)
    shapes = [_dims(1, 1, 1, depth), _dims(depth, 1, 1, outputs)]
    weights, bias = peer.weights(depth * outputs), peer.bias(outputs)
    # The sums of the weights' rows are constants: TensorFlow Lite Micro computes them once where it has room
    # for them, here they are data, which only code for MVE reads.
    sums = peer.bias(outputs)
    peer.call(
        f"arm_fully_connected_s8(&(cmsis_nn_context){{(void*){sums}, 0}}, &(cmsis_nn_fc_params){{128, 0, "
        f"-128, {{-128, 127}}}}, &(cmsis_nn_per_tensor_quant_params){{1500000000, -8}}, {shapes[0]}, "
        f"{_at(source)}, {shapes[1]}, {weights}, {_dims(1, 1, 1, outputs)}, {bias}, "
        f"{_dims(1, 1, 1, outputs)}, {target}@);",
        [source],
    )
    return target


def _pool(peer: Peer, op: Any, source: str) -> str:
    _, channels, h, w = tensor_type(op.operands[0]).shape
    target = peer.buffer(channels)
    scratch, context = _context(peer, f"arm_avgpool_s8_get_buffer_size(1, {channels})")
    peer.call(
        f"arm_avgpool_s8({context}, &(cmsis_nn_pool_params){{{{1, 1}}, {{0, 0}}, {{-128, 127}}}}, "
        f"{_dims(1, h, w, channels)}, {_at(source)}, {_dims(1, h, w, 1)}, {_dims(1, 1, 1, channels)}, "
        f"{target}@);",
        [source, scratch],
    )
    return target


def _softmax(peer: Peer, op: Any, source: str) -> str:
    count = math.prod(tensor_type(op.result).shape)
    target = peer.buffer(count)
    peer.call(f"arm_softmax_s8({_at(source)}, 1, {count}, 1077952640, 23, -248, {target}@);", [source])
    return target


def _add(peer: Peer, op: Any, sources: list[str]) -> str:
    count = math.prod(tensor_type(op.result).shape)
    target = peer.buffer(count)
    operands = ", ".join(map(_at, sources))
    peer.call(
        f"arm_elementwise_add_s8({operands}, 128, 1073741824, 0, 128, 1073741824, -1, 20, {target}@, -128, "
        f"1500000000, -18, -128, 127, {count});",
        sources,
    )
    return target


def sources_of(checkout: Path) -> list[Path]:
    """CMSIS-NN's sources; those for floats left out."""
    return [
        path
        for path in sorted((checkout / "Source").rglob("*.c"))
        if not path.stem.endswith(("f16", "f32")) and "Bindings" not in path.parts
    ]


__all__ = ["ASKED", "SCRATCH", "peer_of", "sources_of"]
