"""Writes a graph-level module as an ONNX model: operators that have a counterpart in ONNX, and
`graph.quantize` and `graph.dequantize` as `QuantizeLinear` and `DequantizeLinear`. Others are decomposed
first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..dialects import graph as g
from ..dialects.func import Func, entries
from ..dialects.graph.base import GraphOp, tensor_type
from ..errors import CompileError, missing_package
from ..ir.builder import Builder
from ..ir.cleanup import dce
from ..ir.core import Module, Operation, Value
from ..ir.symbolic import Dim, FloorDiv, Max, Min, Mod, Symbol
from ..ir.types import f32
from ..passes.graph.match import array_of
from ..passes.graph.remove_checks import remove_checks

OPSET, IR_VERSION = 21, 10
"""Opset 21 has 16-bit quantization; ONNX Runtime reads it since 1.20."""

Writer = Callable[["_Model", Any], str]

_UNARY = {
    "Neg": "Neg", "Abs": "Abs", "Sign": "Sign", "Not": "Not", "Sqrt": "Sqrt", "Floor": "Floor",
    "Ceil": "Ceil", "Round": "Round", "Exp": "Exp", "Log": "Log", "Sin": "Sin", "Cos": "Cos", "Tan": "Tan",
    "Tanh": "Tanh", "Erf": "Erf", "Sigmoid": "Sigmoid", "Isnan": "IsNaN", "Isinf": "IsInf", "Relu": "Relu",
    "Identity": "Identity", "StopGradient": "Identity", "Softsign": "Softsign", "Softplus": "Softplus",
    "Reciprocal": "Reciprocal", "Mish": "Mish", "HardSwish": "HardSwish",
}  # fmt: skip
_BINARY = {
    "Add": "Add", "Sub": "Sub", "Mul": "Mul", "Div": "Div", "Pow": "Pow", "Min": "Min", "Max": "Max",
    "And": "And", "Or": "Or", "Eq": "Equal", "Lt": "Less", "Le": "LessOrEqual", "Gt": "Greater",
    "Ge": "GreaterOrEqual",
}  # fmt: skip
_REDUCTIONS = {
    "ReduceSum": "ReduceSum", "ReduceMean": "ReduceMean", "ReduceMax": "ReduceMax", "ReduceMin": "ReduceMin",
    "ReduceProd": "ReduceProd",
}  # fmt: skip


def export_onnx(module: Module, path: str | Path) -> None:
    """Write a module of one function to an ONNX file.

    Raises:
        CompileError: The package onnx is missing, the function keeps states, or ONNX lacks operators; the
            message lists all of them.
    """
    try:
        import onnx
    except ImportError as error:
        raise CompileError(missing_package(error) or str(error)) from error
    (function,) = entries(module)
    if function.updates or function.nested:
        raise CompileError(f"{path}: models with states, lists or complex numbers are not written as ONNX")
    module = module.clone()
    remove_checks(module)
    (function,) = entries(module)
    if lacking := _decompose(function):
        listed = "; ".join(f"{name} ({', '.join(places[:3])})" for name, places in lacking.items())
        raise CompileError(f"{path}: ONNX has no operators for {listed}; save the model as .tw")
    model = _Model(function).model()
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _decompose(function: Func) -> dict[str, list[str]]:
    """Decompose operators that ONNX lacks; return those without a decomposition, with their places."""
    lacking: dict[str, list[str]] = {}
    todo = list(function.body.ops)[::-1]
    while todo:
        op = todo.pop()
        if op.terminator or writer_of(op) is not None:
            continue
        first = op.previous
        made = op.decompose(Builder.before(op)) if isinstance(op, GraphOp) else None
        if made is None:
            lacking.setdefault(op.name, []).append(str(op.location))
            continue
        start = function.body.first if first is None else first.next
        todo += list(function.body.between(start, op))[::-1]
        op.replace_by(made)
    dce(function)
    return lacking


def writer_of(op: Operation) -> Writer | None:
    """The writer of an operator; None if it is decomposed."""
    name = type(op).__name__
    if name in _UNARY:
        return lambda m, op: m.node(_UNARY[name], [m.name(op.operands[0])])
    if name in _BINARY:
        return lambda m, op: m.node(_BINARY[name], [m.name(v) for v in op.operands])
    if name in _REDUCTIONS:
        return lambda m, op: m.node(
            _REDUCTIONS[name], [m.name(op.x), m.integers(op.axes)], keepdims=int(op.keepdims)
        )
    writer = _WRITERS.get(type(op))
    return writer if writer is not None and _fits(op) else None


def _fits(op: Any) -> bool:
    """Whether an operator has attributes that ONNX has."""
    if isinstance(op, (g.Matmul, g.Conv)):
        return op.dtype is None and getattr(op, "layout", "channels_first") == "channels_first"
    if isinstance(op, g.LayerNorm):
        rank = op.x.type.rank
        trailing = tuple(range(rank - len(op.axes), rank))
        return op.scale is not None and tuple(a % rank for a in op.axes) == trailing
    if isinstance(op, g.AvgPool):
        return op.divisor is None and op.layout == "channels_first"
    if isinstance(op, g.MaxPool):
        return bool(op.layout == "channels_first")
    if isinstance(op, g.AdaptiveAvgPool):
        return all(n == 1 for n in op.size) and op.layout == "channels_first"
    return not isinstance(op, g.Pad) or (op.mode == "constant" and op.fill is None)


class _Model:
    """An ONNX model that grows."""

    def __init__(self, function: Func) -> None:
        self.function = function
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.names: dict[Value, str] = {}
        self.sizes: dict[Any, str] = {}
        self.known: dict[Any, str] = {}
        self.taken: set[str] = set(function.result_names)

    def model(self) -> Any:
        """The model, complete."""
        from onnx import helper

        inputs = []
        for name, argument in zip(self.function.arg_names, self.function.body.args, strict=True):
            self.names[argument] = self.fresh(name)
            inputs.append(self._described(self.names[argument], argument))
        for op in self.function.body.ops:
            if not op.terminator:
                self.location = op.location.name
                writer = writer_of(op)
                assert writer is not None
                self.names[op.results[0]] = writer(self, op)
        outputs = []
        for name, value in zip(self.function.result_names, self.function.outputs, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.names[value]], [name]))
            outputs.append(self._described(name, value))
        graph = helper.make_graph(self.nodes, "main", inputs, outputs, self.initializers)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
            producer_name="tilewright",
        )  # fmt: skip

    def _described(self, name: str, value: Value) -> Any:
        from onnx import helper

        t = tensor_type(value)
        shape = [d if isinstance(d, int) else str(d) for d in t.shape]
        return helper.make_tensor_value_info(name, code_of(t.dtype), shape)

    def fresh(self, hint: str) -> str:
        """A name that no value has."""
        name, k = hint, 1
        while name in self.taken:
            k += 1
            name = f"{hint}_{k}"
        self.taken.add(name)
        return name

    def name(self, value: Value) -> str:
        return self.names[value]

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        from onnx import helper

        output = self.fresh(f"{kind.lower()}_{len(self.nodes)}")
        name = self.fresh(f"{getattr(self, 'location', '')}/{kind}")
        attributes = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=name, **attributes))
        return output

    def array(self, array: Any, hint: str = "constant") -> str:
        """Add constant data; return its name."""
        from onnx import numpy_helper

        array = np.asarray(array)
        key = (str(array.dtype), array.shape, array.tobytes()) if array.size <= 64 else None
        if key is not None and key in self.known:
            return self.known[key]
        name = self.fresh(hint or "constant")
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        if key is not None:
            self.known[key] = name
        return name

    def integers(self, values: Sequence[Dim]) -> str:
        """An i64 vector of sizes, which may be symbolic."""
        if all(isinstance(v, int) for v in values):
            return self.array(np.array(values, np.int64), "sizes")
        return self.node("Concat", [self.size(v) for v in values], axis=0)

    def size(self, d: Dim) -> str:
        """An i64 vector of one size."""
        if isinstance(d, int):
            return self.array(np.array([d], np.int64), "size")
        if d not in self.sizes:
            total = ""
            for coefficient, atoms in d.terms:
                part = self.size(coefficient)
                for atom in atoms:
                    part = self.node("Mul", [part, self._atom(atom)])
                total = self.node("Add", [total, part]) if total else part
            self.sizes[d] = total
        return self.sizes[d]

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            for value in self.function.body.args:
                for axis, d in enumerate(tensor_type(value).shape):
                    if d is atom.expr:
                        return self.node("Shape", [self.names[value]], start=axis, end=axis + 1)
            raise CompileError(f"the size '{atom.name}' is no dimension of an input: ONNX cannot state it")
        kinds = {FloorDiv: "Div", Mod: "Mod", Min: "Min", Max: "Max"}
        return self.node(kinds[type(atom)], [self.size(atom.a), self.size(atom.b)])


def code_of(dtype: Any) -> int:
    """The number of an element type in ONNX."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype.numpy)))


def _constant(m: _Model, op: Any) -> str:
    return m.array(op.value.array, op.value.name)


def _symbolic(m: _Model, op: Any) -> str:
    return m.node("Reshape", [m.integers(op.values), m.integers(op.shape)])


def _clamp(m: _Model, op: Any) -> str:
    dtype = tensor_type(op.x).dtype.numpy
    limits = ["" if v is None else m.array(np.asarray(v, dtype)) for v in op.limits()]
    return m.node("Clip", [m.name(op.x), *limits])


def _conv(m: _Model, op: Any) -> str:
    operands = [m.name(op.x), m.name(op.w)]
    if op.bias is not None:
        operands.append(m.name(op.bias))
    low, high = zip(*op.padding, strict=True)
    return m.node(
        "Conv", operands, strides=list(op.strides), pads=[*low, *high], group=op.groups,
        dilations=list(op.dilations) or None, kernel_shape=list(tensor_type(op.w).shape[2:]),
    )  # fmt: skip


def _pool(m: _Model, op: Any) -> str:
    low, high = zip(*op.padding, strict=True)
    average, dtype = isinstance(op, g.AvgPool), tensor_type(op.x).dtype
    wide = dtype.is_integer and dtype.bits == 16  # ONNX has no such pooling
    x = m.node("Cast", [m.name(op.x)], to=code_of(f32)) if wide else m.name(op.x)
    y = m.node(
        "AveragePool" if average else "MaxPool", [x], kernel_shape=list(op.kernel),
        strides=list(op.strides), pads=[*low, *high], dilations=list(op.dilations) or None,
        ceil_mode=int(op.ceil_mode), count_include_pad=int(op.count_include_pad) if average else None,
    )  # fmt: skip
    return m.node("Cast", [y], to=code_of(dtype)) if wide else y


def _layer_norm(m: _Model, op: Any) -> str:
    operands = [m.name(op.x), m.name(op.scale), *([m.name(op.bias)] if op.bias is not None else [])]
    return m.node("LayerNormalization", operands, axis=-len(op.axes), epsilon=float(op.epsilon))


def _slice(m: _Model, op: Any) -> str:
    rank = op.x.type.rank
    parts = [m.integers(v) for v in (op.starts, op.stops, range(rank), op.steps)]
    return m.node("Slice", [m.name(op.x), *parts])


def _pad(m: _Model, op: Any) -> str:
    fill = m.array(np.asarray(op.value, tensor_type(op.x).dtype.numpy))
    return m.node("Pad", [m.name(op.x), m.integers((*op.low, *op.high)), fill])


def _conversion(m: _Model, op: Any) -> str:
    """`QuantizeLinear` or `DequantizeLinear`; parameters of one axis are vectors."""
    integers = op.dtype if isinstance(op, g.Quantize) else tensor_type(op.x).dtype
    given, zero = array_of(op.scale), None if op.zero is None else array_of(op.zero)
    assert given is not None
    sizes, axis = given.shape, None
    if given.size > 1:
        axis = op.x.type.rank - len(sizes) + max(range(len(sizes)), key=sizes.__getitem__)
    scale = given.reshape(-1 if given.size > 1 else ())
    zeros = np.zeros(scale.shape, integers.numpy)
    if zero is not None:
        zeros = np.broadcast_to(zero.reshape(-1 if zero.size > 1 else ()), scale.shape)
    kind = "QuantizeLinear" if isinstance(op, g.Quantize) else "DequantizeLinear"
    return m.node(kind, [m.name(op.x), m.array(scale, "scale"), m.array(zeros, "zero")], axis=axis)


_WRITERS: dict[type[Operation], Writer] = {
    g.Constant: _constant,
    g.Symbolic: _symbolic,
    g.Clamp: _clamp,
    g.Conv: _conv,
    g.MaxPool: _pool,
    g.AvgPool: _pool,
    g.AdaptiveAvgPool: lambda m, op: m.node("GlobalAveragePool", [m.name(op.x)]),
    g.LayerNorm: _layer_norm,
    g.Slice: _slice,
    g.Pad: _pad,
    g.Quantize: _conversion,
    g.Dequantize: _conversion,
    g.Rsqrt: lambda m, op: m.node("Reciprocal", [m.node("Sqrt", [m.name(op.x)])]),
    g.Ne: lambda m, op: m.node("Not", [m.node("Equal", [m.name(v) for v in op.operands])]),
    g.Select: lambda m, op: m.node("Where", [m.name(v) for v in op.operands]),
    g.Cast: lambda m, op: m.node("Cast", [m.name(op.x)], to=code_of(op.dtype)),
    g.Gelu: lambda m, op: m.node("Gelu", [m.name(op.x)], approximate=op.approximate),
    g.Silu: lambda m, op: m.node("Mul", [m.name(op.x), m.node("Sigmoid", [m.name(op.x)])]),
    g.LeakyRelu: lambda m, op: m.node("LeakyRelu", [m.name(op.x)], alpha=float(op.slope)),
    g.Matmul: lambda m, op: m.node("MatMul", [m.name(v) for v in op.operands]),
    g.Einsum: lambda m, op: m.node("Einsum", [m.name(v) for v in op.operands], equation=op.equation),
    g.Softmax: lambda m, op: m.node("Softmax", [m.name(op.x)], axis=op.axis),
    g.LogSoftmax: lambda m, op: m.node("LogSoftmax", [m.name(op.x)], axis=op.axis),
    g.BroadcastTo: lambda m, op: m.node("Expand", [m.name(op.x), m.integers(op.shape)]),
    g.Reshape: lambda m, op: m.node("Reshape", [m.name(op.x), m.integers(op.shape)], allowzero=1),
    g.Transpose: lambda m, op: m.node("Transpose", [m.name(op.x)], perm=list(op.permutation)),
    g.Concat: lambda m, op: m.node("Concat", [m.name(v) for v in op.operands], axis=op.axis),
    g.Gather: lambda m, op: m.node("Gather", [m.name(op.x), m.name(op.indices)], axis=op.axis),
    g.Argmax: lambda m, op: m.node(
        "ArgMax", [m.name(op.x)], axis=op.axis, keepdims=int(op.keepdims), select_last_index=int(op.last)
    ),
}

__all__ = ["export_onnx"]
