"""Quantized models as ONNX files, run by ONNX Runtime and read again."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.errors import CompileError

from .models import Mixed, images, made
from .test_quantize import Block, sqnr

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


class Encoder(nn.Module):
    """A layer of a transformer: attention with a mask and a feed-forward network with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: tw.Tensor, mask: tw.Tensor) -> tw.Tensor:
        batch, seq, _ = x.shape
        q, k, v = (p(x).reshape(batch, seq, 4, 8).transpose(0, 2, 1, 3) for p in self.project[:3])
        y = nn.functional.attention(q, k, v, mask[:, None, None, :]).transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.norm(x + self.project[3](y))
        return x + self.second(nn.functional.gelu(self.first(x)))


def check(quantized: Any, path: Path, inputs: dict[str, Any]) -> Counter[str]:
    """Compare the file in ONNX Runtime with the model; the file compiled again has the model's bits. Return
    the nodes by operator.
    """
    quantized.save(path)
    expected = tw.compile(quantized)(**inputs)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, inputs)
    assert sqnr(actual, expected) > 35
    again = tw.compile(path)
    np.testing.assert_array_equal(again(**inputs), expected)
    layers = [layer for layer in quantized.report.layers if layer.precision == "int8"]
    products = re.findall(r"graph\.(?:matmul|conv) .*dtype = i32", again.ir("graph"))
    assert len(products) == len(layers), "small weights are multiplied as bytes, too"
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("model", [Block, Mixed])
@pytest.mark.parametrize("activations", ["asymmetric", "symmetric"])
@pytest.mark.parametrize("weights", ["per_channel", "per_tensor"])
def test_convolutions(model: type[nn.Module], activations: str, weights: str, tmp_path: Path) -> None:
    quantized = tw.quantize(
        made(model), images(), dims={"x": {0: "n<=8"}}, activations=activations, weights=weights
    )
    nodes = check(quantized, tmp_path / "block.onnx", {"x": images(1)[0]})
    assert (
        nodes["Conv"] == (3 if model is Block else 5)
        and nodes["QuantizeLinear"] >= 5
        and nodes["MaxPool"] >= 1
    )


def test_transformer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mask = np.arange(12)[None] < np.array([[12], [7]])
    batches = [(rng.standard_normal((2, 12, 32), np.float32), mask) for _ in range(3)]
    dims = {"x": {0: "n<=4", 1: "2<=seq<=16"}, "mask": {0: "n<=4", 1: "2<=seq<=16"}}
    quantized = tw.quantize(made(Encoder), batches, dims=dims)
    nodes = check(quantized, tmp_path / "encoder.onnx", {"x": batches[0][0], "mask": mask})
    assert nodes["Gelu"] == 1 and nodes["LayerNormalization"] == 1 and nodes["DequantizeLinear"] == 10


@pytest.mark.parametrize("model", [Block, Mixed])
def test_16_bits(tmp_path: Path, model: type[nn.Module]) -> None:
    quantized = tw.quantize(made(model), images(), precisions=("int16",))
    assert {layer.precision for layer in quantized.report.layers} == {"int16"}
    check(quantized, tmp_path / "wide.onnx", {"x": images(1)[0]})


def test_an_operator_that_onnx_lacks(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    quantized = tw.quantize(lambda x: tw.numpy.atan2(model(x), 2.0), [np.ones((2, 4), np.float32)])
    with pytest.raises(CompileError, match=r"graph\.atan2"):
        quantized.save(tmp_path / "model.onnx")
    with pytest.raises(CompileError, match=r"saved as \.onnx or \.tw"):
        quantized.save(tmp_path / "model.so")


def test_weights_of_four_bits_take_half_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "block.onnx"
    check(tw.quantize(made(Block), images(), weight_bits=4), path, {"x": images()[0]})
    stored = {x.name: x for x in onnx.load(path).graph.initializer if x.name.endswith(".weight")}
    assert len(stored) == 4
    for x in stored.values():
        assert x.data_type == onnx.TensorProto.INT4 and len(x.raw_data) == -(-np.prod(x.dims) // 2)
