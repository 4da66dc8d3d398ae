"""Operators of ``com.microsoft`` agree with ONNX Runtime's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

random = np.random.default_rng(0)


saturates = pytest.mark.skipif(
    not any(llvm.get_host_cpu_features().get(name) for name in ("avx512vnni", "avxvnni", "dotprod")),
    reason="ONNX Runtime's sums of two products of bytes saturate on processors without VNNI",
)


def floats(*shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def bytes_(*shape: int, dtype: Any = np.uint8) -> Any:
    return random.integers(0, 256, shape).astype(np.uint8).view(dtype)


def scale(*shape: int) -> Any:
    return (random.random(shape) * 0.02 + 0.01).astype(np.float32)


def zero(*shape: int) -> Any:
    return random.integers(100, 150, shape).astype(np.uint8) if shape else np.array(120, np.uint8)


def ids(high: int, *shape: int) -> Any:
    return random.integers(0, high, shape).astype(np.int32)


def compare(
    op: str,
    inputs: Sequence[Any],
    outputs: int = 1,
    constant: Sequence[int] = (),
    ulps: int = 1,
    **attributes: Any,
) -> None:
    """Compare one node in the interpreter with ONNX Runtime. `constant` holds the positions of the inputs
    that are initializers; an input of None is absent.
    """
    names, infos, constants, fed = [], [], [], {}
    for k, given in enumerate(inputs):
        names.append("" if given is None else f"i{k}")
        if given is None:
            continue
        x = np.asarray(given)
        if k in constant:
            constants.append(onnx.numpy_helper.from_array(x, names[-1]))
        else:
            infos.append(
                helper.make_tensor_value_info(names[-1], helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            )
            fed[names[-1]] = x
    results = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, domain="com.microsoft", **attributes)
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", infos, made, constants)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for output in proto.graph.output:
        output.ClearField("type")
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, fed)
    module = import_onnx(proto)
    verify(module)
    found = Interpreter(module).run("main", list(fed.values()))
    for y, z in zip(found, expected, strict=True):
        assert y.shape == z.shape and y.dtype == z.dtype
        if y.dtype.kind in "iu":  # The results are rounded from real numbers that differ in their last bits.
            assert np.abs(y.astype(int) - z.astype(int)).max(initial=0) <= ulps
        else:
            np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantized_arithmetic(op, dtype):
    side = (
        [bytes_(3, 5, dtype=dtype), scale(), np.array(3, dtype)],
        [bytes_(5, dtype=dtype), scale(), np.array(7, dtype)],
    )
    compare(op, [*side[0], *side[1], np.float32(0.05), np.array(9, dtype)])


def test_quantized_functions():
    x = [bytes_(2, 3, 4), np.float32(0.02), np.uint8(120)]
    compare("QLinearSigmoid", [*x, np.float32(1 / 256), np.uint8(0)], constant=[1, 2, 3, 4])
    compare("QLinearLeakyRelu", [*x, np.float32(0.02), np.uint8(100)], constant=[1, 2, 3, 4], alpha=0.2)
    for opset, axis in ((13, 1), (12, 1), (13, -1)):
        compare(
            "QLinearSoftmax",
            [*x, np.float32(1 / 256), np.uint8(0)],
            constant=[1, 2, 3, 4],
            axis=axis,
            opset=opset,
        )


@pytest.mark.parametrize("last", [0, 1])
def test_quantized_pooling(last):
    shape = (2, 6, 7, 3) if last else (2, 3, 6, 7)
    x = [bytes_(*shape), np.float32(0.02), np.uint8(120), np.float32(0.01), np.uint8(100)]
    compare("QLinearGlobalAveragePool", x, channels_last=last)
    if not last:
        compare("QLinearAveragePool", x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0])


def test_quantized_pieces():
    first, second = (
        [bytes_(2, 3), np.float32(0.02), np.uint8(120)],
        [bytes_(2, 5), np.float32(0.03), np.uint8(100)],
    )
    compare(
        "QLinearConcat",
        [np.float32(0.04), np.uint8(110), *first, *second],
        constant=[0, 1, 3, 4, 6, 7],
        axis=1,
    )


@saturates
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("columns", [(), (6,)])
def test_quantized_gemm(whole, columns):
    a = [bytes_(4, 8), np.float32(0.02), np.uint8(120)]
    b = [bytes_(6, 8, dtype=np.int8), scale(*columns), np.zeros(columns, np.int8)]
    bias = random.integers(-999, 999, 6).astype(np.int32)
    ends = [np.float32(0.05), np.uint8(120)] if whole else []
    compare("QGemm", [*a, *b, bias, *ends], transB=1, alpha=1.0)


@saturates
@pytest.mark.parametrize("columns", [(), (6,)])
def test_products_of_integers_as_real_numbers(columns):
    b, s, z = bytes_(8, 6), scale(*columns), zero(*columns)
    compare("MatMulIntegerToFloat", [bytes_(3, 8), b, np.float32(0.02), s, np.uint8(120), z, floats(6)])
    compare("DynamicQuantizeMatMul", [floats(3, 8), b, s, z, floats(6)])
    compare("DynamicQuantizeMatMul", [np.abs(floats(3, 8)), b.view(np.int8), s])


@pytest.mark.parametrize(
    ("bits", "points"),  # ONNX Runtime has no kernel for 8 bits with floating-point zero points.
    [
        (2, "none"),
        (2, "packed"),
        (2, "real"),
        (4, "none"),
        (4, "packed"),
        (4, "real"),
        (8, "none"),
        (8, "packed"),
    ],
)
def test_weights_of_few_bits(bits, points):
    depth, columns, block = 80, 6, 32
    blocks = -(-depth // block)
    weight, scales = bytes_(columns, blocks, block * bits // 8), scale(columns, blocks)
    zeros: Any = None
    if points == "packed":
        zeros = bytes_(columns, -(-blocks * bits // 8))
    elif points == "real":
        zeros = (random.random((columns, blocks)) * 2**bits).astype(np.float32)
    inputs = [floats(2, 3, depth), weight, scales, zeros, None, floats(columns)]
    compare("MatMulNBits", inputs, constant=[1, 2, 3], K=depth, N=columns, bits=bits, block_size=block)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("points", [False, True])
def test_rows_of_few_bits(bits, points):
    rows, width, block = 10, 64, 16
    data, scales = bytes_(rows, width * bits // 8), scale(rows, width // block)
    zeros = bytes_(rows, width // block * bits // 8) if points else None
    inputs = [data, ids(rows, 2, 3), scales, zeros]
    compare(
        "GatherBlockQuantized",
        inputs,
        constant=[0, 2, 3],
        bits=bits,
        block_size=block,
        gather_axis=0,
        quantize_axis=1,
    )


@saturates
@pytest.mark.parametrize("causal", [0, 1])
def test_quantized_attention(causal):
    x, w = bytes_(2, 5, 12), bytes_(12, 36, dtype=np.int8)
    points = [np.uint8(120), np.int8(3)]
    mask = np.array([5, 3], np.int32)
    inputs = [x, w, floats(36), np.float32(0.02), np.float32(0.01), mask, *points]
    compare("QAttention", inputs, num_heads=3, unidirectional=causal)


@pytest.mark.parametrize("segments", [False, True])
def test_embeddings(segments):
    words, places, kinds = floats(20, 16), floats(10, 16), floats(2, 16)
    second = ids(2, 2, 5) if segments else None
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
    inputs = [ids(20, 2, 5), second, words, places, kinds if segments else None, floats(16), floats(16), mask]
    compare("EmbedLayerNormalization", inputs, outputs=3, epsilon=1e-5)


def test_sums_normalized_with_their_statistics():
    compare(
        "SkipLayerNormalization",
        [floats(2, 5, 16), floats(2, 5, 16), floats(16), floats(16), floats(16)],
        outputs=4,
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_params": [0.2]},
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        {"activation": "Tanh"},
    ],
    ids=lambda a: a["activation"],
)
def test_convolutions_with_activations(attributes):
    compare("FusedConv", [floats(2, 3, 6, 7), floats(4, 3, 3, 3), floats(4)], pads=[1, 1, 1, 1], **attributes)


def test_products_with_transposes_and_activations():
    compare(
        "FusedGemm",
        [floats(3, 8), floats(6, 8), floats(6)],
        transB=1,
        activation="LeakyRelu",
        activation_alpha=0.2,
    )
    compare("FusedMatMul", [floats(3, 2, 4), floats(2, 5, 4)], transBatchA=1, transB=1, alpha=0.5)
    compare("FusedMatMul", [floats(4, 2, 3), floats(2, 4, 5)], transBatchA=1, transA=1)
    compare("Trilu", [floats(4, 5), np.array(1, np.int64)], upper=0)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("offset", [False, True])
def test_rotary_embedding(interleaved, offset):
    tables = floats(20, 4), floats(20, 4)
    places = np.array([3], np.int64) if offset else ids(20, 2, 5).astype(np.int64)
    compare("RotaryEmbedding", [floats(2, 5, 24), places, *tables], interleaved=interleaved)
    compare("RotaryEmbedding", [floats(2, 3, 5, 8), places, *tables], interleaved=interleaved)
