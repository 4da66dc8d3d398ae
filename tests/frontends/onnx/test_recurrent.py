"""ONNX's recurrent layers, compared with the formulas of the standard, and subgraphs that run many times."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import tilewright as tw
from tilewright.dialects import graph
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

RNG = np.random.default_rng(3)
TIME, BATCH, INPUTS, HIDDEN = 6, 3, 4, 5


def array(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


def layer(
    op: str,
    gates: int,
    *,
    directions: int = 1,
    lengths: bool = False,
    peephole: bool = False,
    **attributes: Any,
) -> tuple[Any, dict[str, Any]]:
    """Return a model of one node with all its inputs, and values for them."""
    batch_first = attributes.get("layout", 0)
    x = array(BATCH, TIME, INPUTS) if batch_first else array(TIME, BATCH, INPUTS)
    state = (BATCH, directions, HIDDEN) if batch_first else (directions, BATCH, HIDDEN)
    values = {
        "X": x,
        "W": array(directions, gates * HIDDEN, INPUTS),
        "R": array(directions, gates * HIDDEN, HIDDEN),
        "B": array(directions, 2 * gates * HIDDEN),
        "L": np.array([6, 2, 4], np.int32) if lengths else None,
        "H": array(*state),
    }
    if op == "LSTM":
        values["C"] = array(*state)
        values["P"] = array(directions, 3 * HIDDEN) if peephole else None
    names = [k if v is not None else "" for k, v in values.items()]
    while not names[-1]:
        names.pop()
    values = {k: v for k, v in values.items() if v is not None}
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outputs, hidden_size=HIDDEN, **attributes)
    weights = [onnx.numpy_helper.from_array(values[k], k) for k in ("W", "R", "B", "P") if k in values]
    kept = {k: v for k, v in values.items() if k not in ("W", "R", "B", "P")}
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in kept.items()
    ]
    ends = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, ends, weights), opset_imports=[helper.make_opsetid("", 22)]
    )
    return model, kept


def expected(op: str, model: Any, values: dict[str, Any]) -> list[Any]:
    """Evaluate the standard's formulas in float64, one sequence, step and direction at a time."""
    node = model.graph.node[0]
    given = {**values, **{t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}}
    attribute = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    batch_first = attribute.get("layout", 0)
    x = given["X"].astype(np.float64)
    x = x.swapaxes(0, 1) if batch_first else x
    h0, c0 = (None if given.get(k) is None else given[k].astype(np.float64) for k in "HC")
    if batch_first:
        h0, c0 = (None if s is None else s.swapaxes(0, 1) for s in (h0, c0))
    directions, limit = given["W"].shape[0], attribute.get("clip", np.inf)
    y = np.zeros((TIME, directions, BATCH, HIDDEN))
    final = np.zeros((2, directions, BATCH, HIDDEN))

    def clipped(v: Any) -> Any:
        return np.clip(v, -limit, limit)

    def sigmoid(v: Any) -> Any:
        return 1 / (1 + np.exp(-clipped(v)))

    for d, n in itertools.product(range(directions), range(BATCH)):
        w, r, bias = (given[k][d].astype(np.float64) for k in "WRB")
        bw, br = np.split(bias, 2)
        length = given["L"][n] if "L" in given else TIME
        reverse = attribute.get("direction", b"forward") == b"reverse" or d == 1
        h, c = h0[d, n], None if c0 is None else c0[d, n]
        for t in reversed(range(length)) if reverse else range(length):
            p, q = w @ x[t, n] + bw, r @ h + br
            if op == "RNN":
                h = np.tanh(clipped(p + q))
            elif op == "GRU":
                (pz, pr, ph), (qz, qr, qh) = np.split(p, 3), np.split(q, 3)
                z, reset = sigmoid(pz + qz), sigmoid(pr + qr)
                if attribute.get("linear_before_reset", 0):
                    new = np.tanh(clipped(ph + reset * qh))
                else:
                    new = np.tanh(clipped(ph + r[2 * HIDDEN :] @ (reset * h) + br[2 * HIDDEN :]))
                h = (1 - z) * new + z * h
            else:
                i, o, f, g = np.split(p + q, 4)
                pi, po, pf = np.split(given["P"][d], 3) if "P" in given else (0, 0, 0)
                i = sigmoid(i + pi * c)
                f = 1 - i if attribute.get("input_forget", 0) else sigmoid(f + pf * c)
                c = f * c + i * np.tanh(clipped(g))
                h = sigmoid(o + po * c) * np.tanh(c)
            y[t, d, n] = h
        final[0, d, n], final[1, d, n] = h, 0 if c is None else c
    results = [y, *final[: 2 if op == "LSTM" else 1]]
    return [np.moveaxis(v, -2, 0) if batch_first else v for v in results]


CASES = [
    ("RNN", 1, {}),
    ("RNN", 1, {"directions": 2, "direction": "bidirectional", "lengths": True, "clip": 0.4}),
    ("GRU", 3, {"direction": "reverse", "layout": 1}),
    ("GRU", 3, {"directions": 2, "direction": "bidirectional", "linear_before_reset": 1, "lengths": True}),
    ("GRU", 3, {"linear_before_reset": 1, "clip": 0.3}),
    ("LSTM", 4, {"peephole": True, "clip": 0.5}),
    ("LSTM", 4, {"directions": 2, "direction": "bidirectional", "lengths": True, "layout": 1}),
    ("LSTM", 4, {"direction": "reverse", "input_forget": 1, "lengths": True, "peephole": True}),
]


@pytest.mark.parametrize("op, gates, options", CASES, ids=lambda v: str(v) if isinstance(v, str) else None)
def test_layers(op: str, gates: int, options: dict[str, Any]) -> None:
    model, values = layer(op, gates, **options)
    module = import_onnx(model)
    verify(module)
    assert any(isinstance(node, graph.Scan) for node in module.walk())
    wanted = expected(op, model, values)
    library = tw.compile(module, cache=False)
    for found in (Interpreter(module).run("main", list(values.values())), library(*values.values())):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_activations_take_their_parameters_in_order() -> None:
    names = ["HardSigmoid", "ScaledTanh", "LeakyRelu", "Affine", "Softsign", "ThresholdedRelu"]
    model, values = layer(
        "LSTM", 4, directions=2, direction="bidirectional",
        activations=names, activation_alpha=[0.3, 1.5, 0.1, 0.9, 0.2], activation_beta=[0.4, 0.7, 0.05],
    )  # fmt: skip
    module = import_onnx(model)
    functions = (
        (
            lambda v: np.clip(0.3 * v + 0.4, 0, 1),
            lambda v: 1.5 * np.tanh(0.7 * v),
            lambda v: np.where(v > 0, v, 0.1 * v),
        ),
        (lambda v: 0.9 * v + 0.05, lambda v: v / (1 + np.abs(v)), lambda v: np.where(v > 0.2, v, 0)),
    )
    given = {**values, **{t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}}
    wanted = np.zeros((TIME, 2, BATCH, HIDDEN))
    for d, (gate, inward, outward) in enumerate(functions):
        h, c = given["H"][d].astype(np.float64), given["C"][d]
        for t in reversed(range(TIME)) if d else range(TIME):
            z = given["X"][t] @ given["W"][d].T + h @ given["R"][d].T + sum(np.split(given["B"][d], 2))
            i, o, f, g = np.split(z, 4, 1)
            c = gate(f) * c + gate(i) * inward(g)
            h = wanted[t, d] = gate(o) * outward(c)
    got = Interpreter(module).run("main", list(values.values()))[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


SCAN = """
<ir_version: 9, opset_import: ["" : 19]>
agraph (float[2, 3] init, float[N, 2, 3] xs, float[2, N] ys) => (float[2, 3] last, float[2, K, 3] out)
{
    last, out = Scan <num_scan_inputs = 2, scan_input_axes = [0, -1], scan_input_directions = [0, 1],
                      scan_output_axes = [1], scan_output_directions = [1], body = step (float[2, 3] h,
                          float[2, 3] x, float[2] y) => (float[2, 3] h2, float[2, 3] o)
    {
        one = Constant <value_ints = [1]> ()
        wide = Unsqueeze (y, one)
        scaled = Mul (x, wide)
        h2 = Add (h, scaled)
        tall = Tanh (h2)
        o = Add (tall, init)
    }> (init, xs, ys)
}
"""


def test_scan_with_axes_directions_and_captures() -> None:
    model = parser.parse_model(SCAN)
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_param = "N"
    values = {"init": array(2, 3), "xs": array(7, 2, 3), "ys": array(2, 7)}
    h, rows = values["init"].astype(np.float64), []
    for t in range(7):
        h = h + values["xs"][t] * values["ys"][:, 6 - t, None]
        rows.append(np.tanh(h) + values["init"])
    out = np.stack(rows[::-1], 1)
    module = import_onnx(model)
    library = tw.compile(module, cache=False)
    for found in (Interpreter(module).run("main", list(values.values())), library(*values.values())):
        np.testing.assert_allclose(found[0], h, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[1], out, rtol=1e-5, atol=1e-6)


LOOP = """
<ir_version: 9, opset_import: ["" : 19]>
agraph (float[3] x, float[N, 3] table) => (float[3] y, float[N, 3] steps)
{
    shape = Shape <start = 0, end = 1> (table)
    none = Constant <value_ints = [0]> ()
    trips = Squeeze (shape, none)
    y, steps = Loop <body = step (int64 i, bool go, float[3] h) => (bool stays, float[3] h2, float[3] s)
    {
        stays = Identity (go)
        row = Gather (table, i)
        h2 = Mul (h, row)
        s = Neg (h2)
    }> (trips, , x)
}
"""


def test_loop_over_a_size() -> None:
    model = parser.parse_model(LOOP)
    module = import_onnx(model)
    library = tw.compile(module, cache=False)
    for n in (1, 5):
        x, table = array(3), array(n, 3)
        wanted = x * np.cumprod(table.astype(np.float64), 0)
        for found in (Interpreter(module).run("main", [x, table]), library(x, table)):
            np.testing.assert_allclose(found[0], wanted[-1], rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(found[1], -wanted, rtol=1e-5, atol=1e-7)


def test_loops_that_depend_on_data() -> None:
    model = parser.parse_model(
        LOOP.replace(
            "stays = Identity (go)",
            (
                "low = Constant <value_float = 0.05> ()\n m = ReduceMax <keepdims = 0> (h)\n stays = "
                "Less (low, m)"
            ),
        )
    )
    module = import_onnx(model)
    assert any(isinstance(op, graph.While) for op in module.walk())
