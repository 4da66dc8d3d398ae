"""Quantization that ONNX's own tests do not cover: convolutions, whose test has an opset that is too old, and
narrow element types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify


def test_qlinear_conv_with_channel_scales_and_bias():
    text = """<ir_version: 10, opset_import: ["": 18]>
        main (uint8[N, 3, 8, 8] x, float xs, uint8 xz, int8[4, 3, 3, 3] w, float[4] ws, int8[4] wz, float
            ys, uint8 yz, int32[4] b)
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
    # A value halfway between two integers may be rounded the other way.
    assert np.abs(y.astype(int) - expected.astype(int)).max() <= 1
    assert (y == expected).mean() > 0.99


def evaluated(text: str, *inputs: Any) -> tuple[Any, Any]:
    """Return the results of a model's text from the interpreter and from ONNX's reference."""
    proto = onnx.parser.parse_model(text)
    names = [i.name for i in proto.graph.input]
    (expected,) = ReferenceEvaluator(proto).run(None, dict(zip(names, inputs, strict=True)))
    module = import_onnx(proto)
    verify(module)
    (found,) = Interpreter(module).run("main", list(inputs))
    assert found.dtype == expected.dtype
    return found, expected


@pytest.mark.parametrize("target", ["float8e4m3fn", "float8e5m2fnuz", "float4e2m1", "int4", "uint2"])
def test_blocks_of_which_the_last_is_not_full(target: str):
    code = onnx.TensorProto.DataType.Value(target.upper())
    text = f"""<ir_version: 13, opset_import: ["": 25]>
        main (float[3, 10] x, float[3, 3] s) => ({target}[3, 10] y) {{
            y = QuantizeLinear<axis=1, block_size=4, output_dtype={code}>(x, s)
        }}"""
    rng = np.random.default_rng(0)
    x, scale = rng.normal(0, 100, (3, 10)).astype(np.float32), rng.uniform(0.1, 20, (3, 3)).astype(np.float32)
    found, expected = evaluated(text, x, scale)
    np.testing.assert_array_equal(found, expected)
    text = f"""<ir_version: 13, opset_import: ["": 25]>
        main ({target}[3, 10] x, float16[3, 3] s) => (float16[3, 10] y) {{
            y = DequantizeLinear<axis=1, block_size=4>(x, s)
        }}"""
    found, expected = evaluated(text, found, scale.astype(np.float16))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode: str, saturate: int):
    text = f"""<ir_version: 13, opset_import: ["": 25]>
        main (float[N] x) => (float8e8m0[N] y) {{
            y = Cast<to=24, saturate={saturate}, round_mode="{mode}">(x)
        }}"""
    exponents = 2.0 ** np.arange(-120.0, 128.0)[:, None]
    x = (exponents * [1, 1.25, 1.5, 1.75, -1.1]).astype(np.float32).reshape(-1)
    found, expected = evaluated(text, np.append(x, np.asarray([np.inf, -np.inf, np.nan, 0], np.float32)))
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("name", ["int4", "uint2", "float4_e2m1fn", "float8_e4m3fnuz"])
def test_packed_weights(tmp_path: Path, name: str, external: bool):
    dtype = np.dtype(getattr(ml_dtypes, name))
    weight = np.arange(0, 21).reshape(3, 7).astype(np.int8).astype(dtype)
    tensor = onnx.numpy_helper.from_array(weight, "w")
    node = onnx.helper.make_node("Cast", ["w"], ["y"], to=onnx.TensorProto.FLOAT)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 7])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "main", [], [y], [tensor]))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=external, size_threshold=0)
    (found,) = Interpreter(import_onnx(tmp_path / "model.onnx")).run("main", [])
    np.testing.assert_array_equal(found, weight.astype(np.float32))
