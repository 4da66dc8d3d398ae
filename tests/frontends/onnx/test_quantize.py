"""Quantized convolution, which ONNX's bundled tests have only in an opset that is too old."""

from __future__ import annotations

import numpy as np
import onnx.parser
from onnx.reference import ReferenceEvaluator

from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify


def test_qlinear_conv_with_channel_scales_and_bias():
    text = """<ir_version: 10, opset_import: ["": 18]>
        main (uint8[N, 3, 8, 8] x, float xs, uint8 xz, int8[4, 3, 3, 3] w, float[4] ws, int8[4] wz, float ys, uint8 yz, int32[4] b)
            => (uint8[N, 4, 4, 4] y) {
            y = QLinearConv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, xs, xz, w, ws, wz, ys, yz, b)
        }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    inputs = [
        rng.integers(0, 256, (2, 3, 8, 8), np.uint8),
        np.float32(0.02),
        np.uint8(120),
        rng.integers(-128, 128, (4, 3, 3, 3), np.int8),
        np.array([0.01, 0.02, 0.005, 0.03], np.float32),
        np.zeros(4, np.int8),
        np.float32(0.2),
        np.uint8(100),
        rng.integers(-2000, 2000, 4, np.int32),
    ]
    names = [i.name for i in proto.graph.input]
    (expected,) = ReferenceEvaluator(proto).run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))
    module = import_onnx(proto)
    verify(module)
    (y,) = Interpreter(module).run("main", inputs)
    assert y.dtype == np.uint8
    assert len(np.unique(y)) > 50
    # A value that falls on a tie may round the other way.
    assert np.abs(y.astype(int) - expected.astype(int)).max() <= 1
    assert (y == expected).mean() > 0.99
