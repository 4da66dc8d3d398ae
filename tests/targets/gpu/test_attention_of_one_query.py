"""Attention where each head has one query, and nothing depends on the number of the query."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.devices import need, running

import tilewright as tw

SHAPES = {"q": (2, 4, 1, 8), "k": (2, 2, 8, 8), "v": (2, 2, 8, 8)}


@pytest.mark.parametrize("target", ["cuda", "opencl"])
def test_lengths_of_keys_by_batch(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(target)
    monkeypatch.delenv("TILEWRIGHT_DEBUG", raising=False)  # a slower form is expected
    node = helper.make_node("Attention", ["q", "k", "v", "", "", "", "lengths"], ["y"], is_causal=1)
    floats, ints = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    inputs = [helper.make_tensor_value_info(n, floats, s) for n, s in SHAPES.items()]
    inputs.append(helper.make_tensor_value_info("lengths", ints, (2,)))
    graph = helper.make_graph(
        [node], "decode", inputs, [helper.make_tensor_value_info("y", floats, SHAPES["q"])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=s).astype(np.float32) for s in SHAPES.values())
    lengths = np.array([3, 8])
    keys, values = (np.repeat(x, 2, 1).astype(np.float64) for x in (k, v))
    scores = q @ keys.swapaxes(2, 3) / np.sqrt(8)
    scores[np.broadcast_to(np.arange(8) >= lengths[:, None, None, None], scores.shape)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ values
    library = tw.compile(model, (q, k, v, lengths), target=target, cache=False)
    found = running(library, checked=target == "cuda")(q, k, v, lengths)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
