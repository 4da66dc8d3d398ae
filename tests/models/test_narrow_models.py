"""Models with 16-bit weights compile, sum in float32, round once, and agree with PyTorch in the same type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch")

TYPES = {"bfloat16": 2**-8, "float16": 2**-11}
"""Half a unit in the last place of a number between 1 and 2, which is the largest relative error of one
rounding.
"""


def model_of(dtype: Any) -> Any:
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(48)
            self.qkv = torch.nn.Linear(48, 144)
            self.out = torch.nn.Linear(48, 48)
            self.up, self.down = torch.nn.Linear(48, 96), torch.nn.Linear(96, 48)

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 4, 12).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, 48))
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    return torch.nn.Sequential(Block(), Block(), torch.nn.LayerNorm(48)).eval().to(dtype)


def within(found: Any, narrow: Any, wide: Any, ulp: float) -> None:
    """Check that the result is as near to the model's result in float32 as PyTorch's narrow result is, up to
    a few roundings.
    """
    ours, theirs = (float((y.float() - wide).abs().max()) for y in (found, narrow))
    assert ours <= 1.5 * theirs + 2 * ulp * float(wide.abs().max()), (ours, theirs)


@pytest.mark.parametrize("name", TYPES)
def test_torch_modules(name: str) -> None:
    dtype = getattr(torch, name)
    model = model_of(dtype)
    x = torch.randn(2, 9, 48, dtype=dtype)
    library = tw.compile(model, (x,), dims={"input": {1: "seq<=32"}}, cache=False)
    assert library.inputs[0].dtype == library.outputs[0].dtype == name
    found = library(x)
    assert found.dtype is dtype
    with torch.no_grad():
        within(found, model(x), model.float()(x.float()), TYPES[name])


@pytest.mark.parametrize("name", TYPES)
def test_convolutions(name: str) -> None:
    dtype = getattr(torch, name)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1, groups=16),
        torch.nn.BatchNorm2d(16),
        torch.nn.Conv2d(16, 24, 1),
        torch.nn.MaxPool2d(2),
    )
    model = model.eval().to(dtype)
    x = torch.randn(1, 3, 12, 12, dtype=dtype)
    found = tw.compile(model, (x,), cache=False)(x)
    with torch.no_grad():
        within(found, model(x), model.float()(x.float()), TYPES[name])


def test_numpy_gives_ml_dtypes() -> None:
    model = model_of(torch.bfloat16)
    x = torch.randn(1, 5, 48, dtype=torch.bfloat16)
    library = tw.compile(model, (x,), cache=False)
    array = x.float().numpy().astype(ml_dtypes.bfloat16)
    found = library(array)
    assert found.dtype == np.dtype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(np.float32), library(x).float().numpy())


def test_sums_are_wide_and_rounded_once() -> None:
    """Sums keep terms that a sum in bfloat16 would lose: 1 + 255 * 2**-9, rounded once, is 1.5 and not 1."""
    weight = torch.full((1, 256), 2.0**-9, dtype=torch.bfloat16)
    weight[0, 0] = 1
    model = torch.nn.Linear(256, 1, bias=False).to(torch.bfloat16)
    model.weight.data = weight
    x = torch.ones(3, 256, dtype=torch.bfloat16)
    found = tw.compile(model, (x,), cache=False)(x)
    assert found.float().tolist() == [[1.5]] * 3


@pytest.mark.parametrize("name", TYPES)
def test_onnx_models(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    kind = {"bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16}[name]
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else np.float16)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((24, 16)).astype(dtype)
    initializer = helper.make_tensor("w", kind, w.shape, w.tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", kind, ["batch", 24])],
        [helper.make_tensor_value_info("y", kind, ["batch", 16])],
        [initializer],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    x = rng.standard_normal((5, 24)).astype(dtype)
    found = tw.compile(model, cache=False)(x)
    exact = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
    assert found.dtype == dtype
    error = np.abs(found.astype(np.float64) - exact)
    assert (error <= 1.01 * TYPES[name] * exact + 1e-5).all()


def test_a_lower_precision_leaves_narrow_models_alone() -> None:
    model = model_of(torch.bfloat16)
    x = torch.randn(1, 5, 48, dtype=torch.bfloat16)
    plain, low = (tw.compile(model, (x,), precision=p, cache=False) for p in (None, "bf16"))
    assert low.report.conversions == 0
    np.testing.assert_allclose(low(x).float().numpy(), plain(x).float().numpy(), rtol=3e-2, atol=3e-2)
