"""Loading weights: which ones match, which do not, and how much memory it takes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tilewright.errors import CompileError
from tilewright.llm.cache import NoCache
from tilewright.llm.load_weights import load_weights
from tilewright.llm.models import build

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 50,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
}


def test_definition_of_a_large_model_needs_no_memory() -> None:
    sizes = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    }
    tracemalloc.start()
    model = build({**SMALL, **sizes, "model_type": "llama"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(p.size for p in model.parameters()) > 1e9
    assert peak < 20e6
    tokens = np.zeros((1, 2), np.int64)
    with pytest.raises(
        CompileError, match=r"parameter of shape \(32000, 2048\) has no values yet: load weights first"
    ):
        model(tokens, NoCache(tokens))


def arrays(model: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        n: (0.3 * random.standard_normal(p.shape)).astype(np.float32) for n, p in model.named_parameters()
    }


def test_taken_over() -> None:
    model = build({**SMALL, "model_type": "llama"})
    weights = arrays(model)
    load_weights(model, weights)
    for name, p in model.named_parameters():
        assert np.shares_memory(p.numpy(), weights[name])
    half = build({**SMALL, "model_type": "llama"}, dtype="bfloat16")
    load_weights(half, weights)
    name, p = next(iter(half.named_parameters()))
    assert p.dtype == "bfloat16"
    np.testing.assert_allclose(p.numpy().astype(np.float32), weights[name], rtol=1e-2)
    # The model computes in bfloat16, so that results differ by rounding only.
    tokens = np.arange(12).reshape(2, 6)
    full, rounded = (m(tokens, NoCache(tokens)) for m in (model, half))
    assert rounded.dtype == "bfloat16"
    difference = rounded.numpy().astype(np.float32) - full.numpy()
    assert np.sqrt((difference**2).mean()) < 0.05 * full.numpy().std()


def test_complaints() -> None:
    model = build({**SMALL, "model_type": "llama"})
    weights = arrays(model)
    gone = weights.pop("model.layers.1.mlp.up_proj.weight")
    weights["model.layers.1.mlp.upward.weight"] = gone
    with pytest.raises(
        CompileError,
        match=(
            r"do not fit Llama: 1 missing: "
            r"model.layers.1.mlp.up_proj.weight; 1 unknown: model.layers.1.mlp.upward.weight$"
        ),
    ):
        load_weights(model, weights)
    weights["model.layers.1.mlp.up_proj.weight"] = weights.pop("model.layers.1.mlp.upward.weight").T
    weights["model.norm.weight"] = np.ones(31, np.float32)
    names = (
        r"model.norm.weight \[31\], here \[32\], "
        r"model.layers.1.mlp.up_proj.weight \[32, 48\], here \[48, 32\]$"
    )
    with pytest.raises(CompileError, match=f"2 misshapen: {names}"):
        load_weights(model, weights)


def test_experts_and_names_given_twice() -> None:
    model = build({**SMALL, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1})
    weights = arrays(model)
    for layer in range(2):
        for ours, theirs in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
            for k, matrix in enumerate(weights.pop(f"model.layers.{layer}.mlp.experts.{ours}.weight")):
                weights[f"model.layers.{layer}.block_sparse_moe.experts.{k}.{theirs}.weight"] = matrix
    load_weights(model, weights)
    np.testing.assert_array_equal(
        model.model.layers[1].mlp.experts.up_proj.weight.numpy()[1],
        weights["model.layers.1.block_sparse_moe.experts.1.w3.weight"],
    )
    third = "model.layers.0.block_sparse_moe.experts.2.w1.weight"
    with pytest.raises(CompileError, match=rf"1 unknown: {third}$"):
        load_weights(model, {**weights, third: np.zeros((48, 32), np.float32)})
    router = "model.layers.0.block_sparse_moe.gate.weight"
    with pytest.raises(CompileError, match=rf"1 twice: {router} and model.layers.0.mlp.gate.weight"):
        load_weights(model, {**weights, router: weights["model.layers.0.mlp.gate.weight"]})
    del weights["model.layers.0.block_sparse_moe.experts.1.w1.weight"]
    with pytest.raises(CompileError, match=r"1 missing: model.layers.0.mlp.experts.gate_proj.weight$"):
        load_weights(model, weights)
