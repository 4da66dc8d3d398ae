"""Quantized ONNX operators, compiled for every instruction set that runs here, compared with ONNX's
definitions in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.targets.cpu.isa import runs_here
from tilewright.targets.cpu.ports import LEVELS

pytestmark = pytest.mark.every_isa

RNG = np.random.default_rng(0)
TARGETS = pytest.mark.parametrize(
    "target",
    [
        "cpu",
        *(f"cpu:{name}" for name, isa in LEVELS.items() if name.startswith("x86") and runs_here(isa)),
        "wasm32",
        "wasm32:relaxed",
    ],
)


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


def compiled(
    target: str,
    nodes: list[Any],
    inputs: dict[str, Any],
    constants: dict[str, Any],
    result: Any,
    shape: Any = None,
) -> tuple[Any, Any]:
    """Return the library of a model of `nodes` with the output "y", and its result for `inputs`."""

    def info(name: str, dtype: Any, shape: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    graph = helper.make_graph(
        nodes,
        "quantized",
        [info(k, v.dtype, v.shape) for k, v in inputs.items()],
        [info("y", result, shape)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    library = tw.compile(model, tuple(inputs.values()), target=target)
    return library, np.asarray(library(*inputs.values()))


def quantized(y: Any, scale: Any, zero: Any) -> Any:
    info = np.iinfo(zero.dtype)
    return np.clip(np.rint(y / scale) + zero, info.min, info.max).astype(zero.dtype)


@TARGETS
@pytest.mark.parametrize("a", [np.uint8, np.int8])
@pytest.mark.parametrize("b", [np.uint8, np.int8])
def test_matmul_integer(target: str, a: Any, b: Any) -> None:
    """MatMulInteger is exact with a zero point for each row and each column."""
    x, w = numbers((19, 70), a), numbers((70, 37), b)
    zeros = {"za": numbers((19, 1), a).reshape(19), "zb": numbers((37,), b)}
    node = helper.make_node("MatMulInteger", ["x", "w", "za", "zb"], ["y"])
    _, y = compiled(target, [node], {"x": x}, {"w": w, **zeros}, np.int32, (19, 37))
    expected = (x.astype(np.int64) - zeros["za"][:, None]) @ (w.astype(np.int64) - zeros["zb"])
    np.testing.assert_array_equal(y, expected)


@TARGETS
def test_both_factors_at_run_time(target: str) -> None:
    x, w = numbers((3, 33, 66), np.uint8), numbers((3, 66, 20), np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    _, y = compiled(target, [node], {"x": x, "w": w}, {}, np.int32, (3, 33, 20))
    np.testing.assert_array_equal(y, x.astype(np.int64) @ w.astype(np.int64))


@TARGETS
@pytest.mark.parametrize("groups,channels", [(1, 16), (1, 3), (4, 16), (16, 16)])
def test_conv_integer(target: str, groups: int, channels: int) -> None:
    """ConvInteger pads the image with its zero point, which is known only at run time."""
    x, w, zero = (
        numbers((2, channels, 9, 8), np.uint8),
        numbers((16, channels // groups, 3, 3), np.int8),
        np.array(77, np.uint8),
    )
    node = helper.make_node(
        "ConvInteger", ["x", "w", "z"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1], group=groups
    )
    _, y = compiled(target, [node], {"x": x, "z": zero}, {"w": w}, np.int32, (2, 16, 5, 8))
    padded = np.pad(x.astype(np.int64) - 77, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros((2, 16, 5, 8), np.int64)
    per = channels // groups
    for group in range(groups):
        of = slice(group * 16 // groups, (group + 1) * 16 // groups)
        for i, j in np.ndindex(3, 3):
            part = padded[:, group * per : (group + 1) * per, i : i + 9 : 2, j : j + 8]
            expected[:, of] += np.einsum("ncyx,oc->noyx", part, w[of, :, i, j].astype(np.int64))
    np.testing.assert_array_equal(y, expected)


@TARGETS
def test_qlinear_matmul(target: str) -> None:
    x, w = numbers((17, 70), np.uint8), numbers((70, 33), np.int8)
    scales = RNG.uniform(0.001, 0.02, 33).astype(np.float32)
    constants = {
        "sx": np.float32(0.02),
        "zx": np.uint8(5),
        "w": w,
        "sw": scales,
        "zw": numbers((33,), np.int8),
        "sy": np.float32(0.3),
        "zy": np.int8(7),
    }
    node = helper.make_node("QLinearMatMul", ["x", *constants], ["y"])
    _, y = compiled(target, [node], {"x": x}, constants, np.int8, (17, 33))
    real = (x.astype(np.float64) - 5) @ (w.astype(np.float64) - constants["zw"]) * 0.02 * scales
    expected = quantized(real, 0.3, constants["zy"])
    assert len(np.unique(expected)) > 20
    assert np.abs(y.astype(int) - expected).max() <= 1 and (y == expected).mean() > 0.99


@TARGETS
def test_quantize_product_activation_quantize(target: str) -> None:
    """Quantization, product, activation and quantization are fused. The scales are powers of two, so that
    results are exact.
    """
    x, w = RNG.standard_normal((21, 64)).astype(np.float32), numbers((40, 64), np.int8)
    bias = RNG.integers(-3000, 3000, 40).astype(np.int32)
    constants = {
        "sx": np.float32(2**-6),
        "zx": np.uint8(128),
        "w": w,
        "sw": np.float32(2**-7),
        "zw": np.int8(0),
        "b": bias,
        "sb": np.float32(2**-13),
        "sy": np.float32(2**-3),
        "zy": np.uint8(0),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"]),
        helper.make_node("DequantizeLinear", ["b", "sb"], ["bd"]),
        helper.make_node("Gemm", ["xd", "wd", "bd"], ["p"], transB=1),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["y"]),
    ]
    library, y = compiled(target, nodes, {"x": x}, constants, np.uint8, (21, 40))
    q = quantized(x, constants["sx"], constants["zx"]).astype(np.int64) - 128
    expected = quantized(
        np.maximum((q @ w.T.astype(np.int64) + bias) * 2.0**-13, 0), 2.0**-3, constants["zy"]
    )
    assert len(np.unique(expected)) > 20
    np.testing.assert_array_equal(y, expected)
    # One kernel quantizes x; the other computes the product and everything after it.
    assert len(library.metadata["kernels"]) == 2


@TARGETS
def test_dynamic_quantization(target: str) -> None:
    x, w = RNG.standard_normal((9, 50)).astype(np.float32), numbers((50, 24), np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    _, y = compiled(target, nodes, {"x": x}, {"w": w}, np.float32, (9, 24))
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / scale), 0, 255)
    q = np.clip(np.rint(x / scale) + zero, 0, 255)
    np.testing.assert_allclose(y, (q - zero) @ w.astype(np.float64) * scale, rtol=1e-5, atol=1e-4)
