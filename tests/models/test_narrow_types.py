"""A model whose inputs, weights and results have 8, 4 and 2 bits is compiled, saved, loaded, and called with
NumPy and torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.errors import ShapeError

pytestmark = pytest.mark.every_isa


def model(weight: np.ndarray[Any, Any]) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph("""main (float8e4m3fn[N, 64] x, float s, uint2[N] k)
        => (float[N, 48] y, float8e5m2[N, 48] eight, float4e2m1[48, N] four, int4[64, 48] same, float[N]
            count) {
            wide = DequantizeLinear(w, s)
            real = Cast<to=1>(x)
            y = MatMul(real, wide)
            eight = Cast<to=19>(y)
            narrow = Cast<to=23>(y)
            four = Transpose<perm=[1, 0]>(narrow)
            same = Identity(w)
            count = Cast<to=1>(k)
        }""")
    graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)])


def test_compiled_saved_and_loaded(tmp_path: Path) -> None:
    weight = (np.arange(64 * 48) % 15 - 7).reshape(64, 48).astype(np.int8).astype(ml_dtypes.int4)
    x = np.random.default_rng(0).normal(size=(5, 64)).astype(ml_dtypes.float8_e4m3fn)
    inputs = {"x": x, "s": np.float32(0.25), "k": np.arange(5).astype(ml_dtypes.uint2)}
    proto = model(weight)
    wanted = ReferenceEvaluator(proto).run(None, inputs)
    tw.compile(proto).save(tmp_path / "model.so")
    with tw.load(tmp_path / "model.so") as library:
        for _ in range(2):  # The second call is a repeated one, which takes a shorter path.
            for found, want in zip(library(*inputs.values()), wanted, strict=True):
                assert found.dtype == want.dtype
                np.testing.assert_allclose(found.astype(np.float32), want.astype(np.float32), rtol=1e-5)
        with pytest.raises(ShapeError, match="expected float8_e4m3fn, got float32"):
            library(x.astype(np.float32), *list(inputs.values())[1:])


def test_torch_gets_what_it_can_hold() -> None:
    weight = (np.arange(64 * 48) % 15 - 7).reshape(64, 48).astype(np.int8).astype(ml_dtypes.int4)
    graph = model(weight)
    del graph.graph.input[2], graph.graph.output[4], graph.graph.node[-1]
    x = torch.randn(3, 64).to(torch.float8_e4m3fn)
    with tw.compile(graph) as library:
        for _ in range(2):
            y, eight, four, same = library(x, torch.tensor(0.25))
            kinds = [y.dtype, eight.dtype, four.dtype, same.dtype]
            assert kinds == [torch.float32, torch.float8_e5m2, torch.float32, torch.int8]
            assert (same.numpy() == weight.astype(np.int8)).all()
            assert torch.equal(eight.float(), y.to(torch.float8_e5m2).float())
