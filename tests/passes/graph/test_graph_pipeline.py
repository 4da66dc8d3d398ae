"""The graph pipeline on real architectures from both front ends: which operators are recognized, which are
left, and that values do not change.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.zoo.models import MODELS

from tilewright.dialects import graph as g
from tilewright.ir.core import Module
from tilewright.ir.passes import CheckOptions
from tilewright.passes.graph.specialize_shapes import specialize_shapes

from .graphs import BATCH, SEQ, build, graph_pipeline, literal, operators, weight

TRANSFORMERS = {  # Operators expected in two layers.
    "bert": {"Attention": 2, "LayerNorm": 5, "Gelu": 2},
    "gpt2": {"Attention": 2, "LayerNorm": 5, "Gelu": 2},
    "llama": {"Attention": 2, "RmsNorm": 5, "Silu": 2, "Rotary": 4},
    "swin": {"Attention": 4, "LayerNorm": 11, "Gelu": 4},
    "t5-encoder": {"Attention": 2, "RmsNorm": 5},
    "vit": {"Attention": 2, "LayerNorm": 5, "Gelu": 2},
    "whisper-encoder": {"Attention": 2, "LayerNorm": 5, "Gelu": 4},
}
WRITTEN_OUT = (
    "Softmax",
    "Erf",
    "Tanh",
    "Sqrt",
    "Rsqrt",
    "Reciprocal",
    "Pow",
    "Neg",
    "GatherNd",
    "Cumsum",
    "Isnan",
    "BroadcastTo",
)
"""Operators of the decompositions of recognized operators, none of which may remain."""


def imported(name: str, frontend: str, dynamic: bool = True) -> Module:
    model = MODELS[name]
    dims = model.dims if dynamic else None
    if frontend == "onnx":
        from tilewright.frontends.onnx import import_onnx

        return import_onnx(model.onnx_model("tiny", dynamic=dynamic), dims=dims)
    from tilewright.frontends.torch import import_torch

    example = model.inputs("tiny", batch=2, seq=12)
    return import_torch(model.torch_model("tiny"), tuple(example.values()), dims=dims)


@cache
def optimized(name: str, frontend: str) -> Module:
    """Return a model after the pipeline, which is checked after each pass."""
    module = imported(name, frontend)
    check = CheckOptions(draws=2, ranges={"input_ids": (0, 99)})
    return graph_pipeline().run(module, verify_each=True, check=check)


def attentions(module: Module) -> list[Any]:
    return [op for op in module.walk() if isinstance(op, g.Attention)]


@pytest.mark.parametrize("frontend", ["onnx", "torch"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_layer_is_recognized(name: str, frontend: str) -> None:
    module = optimized(name, frontend)
    found = operators(module)
    assert {k: found[k] for k in TRANSFORMERS[name]} == TRANSFORMERS[name]
    # Swin broadcasts its windows' mask to the batch, and ViT its class token.
    allowed = {"BroadcastTo"} if name in ("swin", "vit") else set()
    assert not [k for k in WRITTEN_OUT if found[k] and k not in allowed]
    for op in attentions(module):
        assert op.causal == (name in ("gpt2", "llama"))
        assert (op.mask is None) == (name not in ("bert", "swin", "t5-encoder"))
    if name == "llama":
        # Keys are not repeated for each query head.
        assert {op.k.type.shape[1] for op in attentions(module)} == {2}


@pytest.mark.parametrize("frontend", ["onnx", "torch"])
@pytest.mark.parametrize("name", ["resnet50", "convnext"])
def test_images_are_turned_once(name: str, frontend: str) -> None:
    module = optimized(name, frontend)
    assert operators(module)["Transpose"] == 1
    assert {op.layout for op in module.walk() if "layout" in op.attributes} == {"channels_last"}
    assert operators(module)["BatchNorm"] == 0


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_specialized_model_is_recognized_as_well(name: str) -> None:
    module = imported(name, "onnx")
    specialize_shapes(module, {"batch": 1, "seq": 16})
    check = CheckOptions(draws=1, ranges={"input_ids": (0, 99)})
    graph_pipeline().run(module, verify_each=True, check=check)
    found = operators(module)
    assert found["Attention"] == 2
    assert not [k for k in WRITTEN_OUT if found[k]]
    assert all(op.causal == (name != "bert") for op in attentions(module))


def test_running_it_again_changes_nothing() -> None:
    for name in ("bert", "resnet50"):
        module = optimized(name, "onnx").clone()
        before = operators(module)
        graph_pipeline().run(module)
        assert operators(module) == before


def encoder(layers: int, width: int) -> Module:
    """Return a BERT as torch.onnx writes it, with small weights and with all the work that the pipeline has
    in each layer.
    """

    def linear(b: Any, x: Any, n: int) -> Any:
        return b(g.Add(b(g.Matmul(x, weight(b, x.type.shape[-1], n))), weight(b, n)))

    def heads(b: Any, x: Any) -> Any:
        return b(g.Transpose(b(g.Reshape(x, shape=(BATCH, SEQ, 4, width // 4))), permutation=(0, 2, 1, 3)))

    def body(b: Any, x: Any) -> Any:
        for _ in range(layers):
            q, k, v = (heads(b, linear(b, x, width)) for _ in range(3))
            kt = b(g.Transpose(b(g.Reshape(k, shape=(BATCH * 4, SEQ, width // 4))), permutation=(0, 2, 1)))
            kt = b(g.Reshape(kt, shape=(BATCH, 4, width // 4, SEQ)))
            scale = literal(b, 0.6)
            w = b(g.Softmax(b(g.Matmul(b(g.Mul(q, scale)), b(g.Mul(kt, scale))))))
            w = b(g.Select(b(g.Isnan(w)), literal(b, 0.0), w))
            y = b(
                g.Reshape(
                    b(g.Transpose(b(g.Matmul(w, v)), permutation=(0, 2, 1, 3))), shape=(BATCH, SEQ, width)
                )
            )
            x = b(g.LayerNorm(b(g.Add(linear(b, y, width), x)), weight(b, width), weight(b, width)))
            h = linear(b, x, 4 * width)
            e = b(g.Add(b(g.Erf(b(g.Div(h, literal(b, 2**0.5))))), literal(b, 1.0)))
            h = b(g.Mul(h, b(g.Mul(literal(b, 0.5), e))))
            x = b(g.LayerNorm(b(g.Add(linear(b, h, width), x)), weight(b, width), weight(b, width)))
        return x

    return build({"x": (BATCH, SEQ, width)}, body)


def test_time_grows_with_the_number_of_layers() -> None:
    def seconds(layers: int) -> float:
        best = 1e9
        for _ in range(3):
            module = encoder(layers, 16)
            start = time.perf_counter()
            graph_pipeline().run(module)
            best = min(best, time.perf_counter() - start)
            assert operators(module)["Attention"] == layers
        return best

    short, long = seconds(3), seconds(12)
    assert long < 4 * 2.5 * max(short, 0.01)


def test_the_pipeline_prints_as_a_list() -> None:
    assert str(graph_pipeline()).splitlines()[:5] == [
        "drop-derivative-marks",
        "cse",
        "recompute-attention",
        "update-slices",
        "integer-contractions",
    ]


def test_passes_accept_a_graph_without_operators() -> None:
    module = build({"x": (BATCH, 3)}, lambda b, x: x)
    graph_pipeline().run(module)
    assert operators(module) == Counter()


@pytest.mark.parametrize("name", ["bert", "t5-encoder", "vit", "whisper-encoder"])
def test_the_torchscript_exporter(name: str, tmp_path: Path) -> None:
    import torch

    from tilewright.frontends.onnx import import_onnx

    model = MODELS[name]
    example = model.inputs("tiny", batch=2, seq=12)
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.torch_model("tiny"),
            tuple(example.values()),
            str(path),
            input_names=list(example),
            dynamo=False,
            dynamic_axes={n: {d: f"d{d}" for d in model.dims.get(n, {})} for n in example},
            opset_version=17,
        )
    module = import_onnx(path, dims=model.dims)
    check = CheckOptions(draws=2, ranges={"input_ids": (0, 99)})
    graph_pipeline().run(module, verify_each=True, check=check)
    found = operators(module)
    assert {k: found[k] for k in TRANSFORMERS[name]} == TRANSFORMERS[name]
