"""Models of many kinds with random weights from fixed seeds, whose generated code `generated_code.py`
records.

Models are exported from their frameworks before they are compiled, so that the seconds of a compilation are
those of Tilewright alone. The file must run on versions with other names of modules: it uses the public
interface only, and finds the modules of `tilewright.llm` by what they define.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import tilewright as tw

Arguments = tuple[Any, dict[str, Any]]
"""A model and the keyword arguments of `tilewright.compile`."""


@dataclass(frozen=True)
class Sample:
    """A model with its name."""

    name: str
    build: Callable[[], Callable[[str], Any]]
    """Makes the model, which may take seconds, and returns a function that compiles it for a target's name.
    """


def _plain(name: str, build: Callable[[], Arguments]) -> Sample:
    def prepared() -> Callable[[str], Any]:
        model, options = build()
        args = options.pop("args", None)
        return lambda target: tw.compile(model, args, target=target, cache=False, **options)

    return Sample(name, prepared)


def _normal(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    """Normally distributed float32 numbers of standard deviation 0.1."""
    return (0.1 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


# -- PyTorch -------------------------------------------------------------------------------------------------


def _exported(make: Callable[[], Any], args: Any, shapes: Any = None, **options: Any) -> Arguments:
    """A module, made after torch's generator is seeded, exported in eval mode with dynamic `shapes`."""
    import torch

    logging.getLogger("torch").setLevel(logging.ERROR)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return torch.export.export(make().eval(), args, dynamic_shapes=shapes), options


def _field(model: Any, field: str, *names: str) -> Any:
    """A module that passes its arguments to `model` under `names` and returns one field of the result."""
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any) -> Any:
            return getattr(self.model(**dict(zip(names, args, strict=True))), field)

    return Wrapper()


def _bert() -> Arguments:
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=256, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=128,
    )  # fmt: skip
    ids = torch.arange(5, 53).reshape(3, 16)
    axes = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("seq", min=2, max=128)}
    names = ("input_ids", "attention_mask")
    return _exported(
        lambda: _field(BertModel(config, add_pooling_layer=False), "last_hidden_state", *names),
        (ids, torch.ones_like(ids)),
        ((axes, axes),),
    )


def _resnet() -> Arguments:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], layer_type="bottleneck", num_labels=10
    )
    return _exported(
        lambda: _field(ResNetForImageClassification(config), "logits", "pixel_values"),
        (torch.zeros(2, 3, 32, 32),),
        (({0: torch.export.Dim("batch", min=1, max=8)},),),
    )


def _vit() -> Arguments:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=96, num_hidden_layers=2, num_attention_heads=3, intermediate_size=192,
        image_size=32, patch_size=8,
    )  # fmt: skip
    make = lambda: _field(ViTForImageClassification(config), "logits", "pixel_values")  # noqa: E731
    return _exported(make, (torch.zeros(1, 3, 32, 32),))


def _lstm() -> Arguments:
    import torch

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(64, 48)
            self.lstm = torch.nn.LSTM(48, 40, num_layers=2, bidirectional=True, batch_first=True)
            self.head = torch.nn.Linear(80, 9)

        def forward(self, ids: Any) -> Any:
            return self.head(self.lstm(self.table(ids))[0])

    return _exported(Tagger, (torch.arange(28).reshape(2, 14),))


def _mlp_bf16() -> Arguments:
    import torch

    def make() -> Any:
        layers = torch.nn
        return layers.Sequential(
            layers.Linear(128, 256), layers.GELU(), layers.LayerNorm(256), layers.Linear(256, 192),
            layers.SiLU(), layers.Linear(192, 33),
        )  # fmt: skip

    axes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    return _exported(make, (torch.zeros(4, 128),), axes, precision="bf16")


def _recommender() -> Arguments:
    """Embedding tables, products between features, a softmax, a scatter and a top-k."""
    import torch

    class Recommender(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(n, 16, mode="sum") for n in (50, 30, 20))
            layers = torch.nn.Linear(13, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)
            self.bottom = torch.nn.Sequential(*layers)
            self.top = torch.nn.Linear(16 + 16, 24)

        def forward(self, dense: Any, sparse: Any, places: Any) -> Any:
            x = self.bottom(dense)
            rows = [table(sparse[:, k]) for k, table in enumerate(self.tables)]
            features = torch.stack([x, *rows], 1)
            pairs = torch.softmax(features @ features.transpose(1, 2), -1).flatten(1)
            scores = self.top(torch.cat([x, pairs], 1))
            counts = torch.zeros(40).scatter_add(0, places, scores.sum(1))
            values, indices = torch.topk(scores, 5)
            return values, indices, counts.cumsum(0)

    sparse = torch.arange(5 * 3 * 4).reshape(5, 3, 4) % 20
    return _exported(Recommender, (torch.zeros(5, 13), sparse, torch.arange(5)))


# -- ONNX ----------------------------------------------------------------------------------------------------


def _quantized_conv() -> Arguments:
    """8-bit convolutions between QuantizeLinear and DequantizeLinear, one of them depthwise, and a
    product.
    """
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(3)

    def codes(*shape: int) -> np.ndarray[Any, Any]:
        return random.integers(-127, 128, shape).astype(np.int8)

    constants = {
        "s": np.float32(0.02), "z": np.uint8(120), "ws": np.float32(0.01), "wz": np.int8(0),
        "channels": _normal(4, 16) ** 2 + np.float32(0.01), "zeros": np.zeros(16, np.int8),
        "w1": codes(16, 3, 3, 3), "b1": random.integers(-500, 500, 16).astype(np.int32),
        "w2": codes(16, 1, 3, 3), "w3": codes(32, 16, 1, 1), "w4": codes(32, 10), "shape": np.array([-1, 32]),
    }  # fmt: skip

    def conv(x: str, w: str, y: str, scales: str = "ws", zeros: str = "wz", *bias: str, **how: Any) -> Any:
        names = [x, "s", "z", w, scales, zeros, "s", "z", *bias]
        return helper.make_node("QLinearConv", names, [y], **how)

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        conv("q", "w1", "q1", "channels", "zeros", "b1", pads=[1, 1, 1, 1], strides=[2, 2]),
        conv("q1", "w2", "q2", "channels", "zeros", pads=[1, 1, 1, 1], group=16),
        conv("q2", "w3", "q3"),
        helper.make_node("DequantizeLinear", ["q3", "s", "z"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["pool"]),
        helper.make_node("Reshape", ["pool", "shape"], ["flat"]),
        helper.make_node("QuantizeLinear", ["flat", "s", "z"], ["qf"]),
        helper.make_node("QLinearMatMul", ["qf", "s", "z", "w4", "ws", "wz", "s", "z"], ["qy"]),
        helper.make_node("DequantizeLinear", ["qy", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, {"dims": {"x": {0: "batch<=8"}}}


_RUN_TIME_SIZES = """<ir_version: 10, opset_import: ["" : 22]>
agraph (float[n, 6] x, int64 trips, float[6] y)
    => (float[k, 6] rows, float[6] last, float[m, 6] all, float[6] chosen) {
    zero = Constant <value_float=0.0> ()
    axis = Constant <value_ints=[1]> ()
    sums = ReduceSum <keepdims=0> (x, axis)
    positive = Greater (sums, zero)
    found = NonZero (positive)
    at = Squeeze (found)
    picked = Gather <axis=0> (x, at)
    rows = Softmax <axis=1> (picked)
    flag = Constant <value = bool {1}> ()
    go = Squeeze (flag)
    last, all = Loop (trips, go, y) <body = b (int64 i, bool c, float[6] state)
        => (bool again, float[6] out, float[6] one) {
        half = Constant <value_float=0.5> ()
        scaled = Mul (state, half)
        out = Sin (scaled)
        total = ReduceSum <keepdims=0> (out)
        again = Less (total, half)
        one = Identity (out)
    }>
    whole = ReduceSum <keepdims=0> (x)
    up = Greater (whole, zero)
    chosen = If (up) <
        then_branch = t () => (float[6] a) { a = Exp (y) },
        else_branch = e () => (float[6] d) { d = Neg (y) }
    >
}"""


def _run_time_sizes() -> Arguments:
    """NonZero, which has a run-time size; a Loop that may end early and stacks results; an If."""
    from onnx import parser

    return parser.parse_model(_RUN_TIME_SIZES), {"dims": {"x": {0: "n<=32"}}}


# -- Traced functions, JAX -----------------------------------------------------------------------------------


def _traced_states() -> Arguments:
    """Two functions that share weights and a state."""
    nn, tnp = tw.nn, tw.numpy
    nn.seed(0)
    layer, norm = nn.Linear(64, 64), nn.LayerNorm(64)
    cache = tw.State("cache", (16, 64))

    def prefill(x: Any) -> Any:
        y = norm(layer(x))
        cache[: x.shape[0]] = y
        return tnp.tanh(y).mean(0)

    def decode(x: Any, place: Any) -> Any:
        cache[place] = layer(x)
        scores = x @ cache.value.T
        weights = tnp.exp(scores - scores.max(1, keepdims=True))
        return (weights / weights.sum(1, keepdims=True)) @ cache.value

    functions = {
        "prefill": (prefill, (np.zeros((4, 64), np.float32),), {"x": {0: "n<=16"}}),
        "decode": (decode, (np.zeros((2, 64), np.float32), np.zeros(2, np.int64))),
    }
    return functions, {}


def _jax_gradient() -> Arguments:
    """A loss of a recurrence, a Fourier transform and a sort, and its gradient, for a symbolic batch."""
    import jax
    import jax.numpy as jnp

    weights, mixed = _normal(5, 24, 24), _normal(6, 24, 8)

    def loss(x: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            state = jnp.tanh(state @ weights + row)
            return state, state.sum(-1)

        last, sums = jax.lax.scan(step, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))
        spectrum = jnp.abs(jnp.fft.rfft(last)) ** 2
        shares = jax.nn.log_softmax(jax.nn.gelu(last @ mixed))
        return spectrum.mean() - shares[:, 0].sum() + jnp.sort(sums, 0)[0].sum()

    (batch,) = jax.export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, 5, 24), np.float32)
    exported = jax.export.export(jax.jit(jax.value_and_grad(loss)), platforms=["cpu"])(spec)
    return exported, {"dims": {"x": {0: "batch<=8"}}}


def _float64() -> Arguments:
    """Centered rows in float64, which not every target has."""
    return lambda x: (x - x.mean(-1, keepdims=True)) * 0.5, {"args": (_normal(9, 6, 40).astype(np.float64),)}


# -- Language models -----------------------------------------------------------------------------------------


def _definition(name: str) -> Any:
    """A class or function of `tilewright.llm`, in whichever module defines it.

    Raises:
        LookupError: no module does.
    """
    package = importlib.import_module("tilewright.llm")
    for found in pkgutil.walk_packages(package.__path__, "tilewright.llm."):
        spec = importlib.util.find_spec(found.name)
        text = Path(spec.origin).read_text() if spec and spec.origin else ""
        if f"def {name}(" in text or f"class {name}:" in text:
            return getattr(importlib.import_module(found.name), name)
    raise LookupError(f"no module of tilewright.llm defines {name!r}")


def _llama_int4() -> Callable[[str], Any]:
    """A function that compiles a Llama with a paged cache and int4 weights in groups of 32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=160, max_position_embeddings=256,
    )  # fmt: skip
    compile_library = _definition("compile_library")
    options = _definition("LibraryOptions")(context=256, chunk=64, max_batch=4)
    folder = TemporaryDirectory()
    whole, int4 = f"{folder.name}/whole", f"{folder.name}/int4"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(settings).save_pretrained(whole)
    convert = ["llm", "convert", whole, "-o", int4, "--quantization", "int4_g32"]
    subprocess.run([sys.executable, "-m", "tilewright", *convert], check=True, stdout=subprocess.DEVNULL)

    def compiled(target: str, held: Any = folder) -> Any:
        return compile_library(Path(held.name, "int4"), options, target=target)

    return compiled


SAMPLES = (
    _plain("bert", _bert),
    Sample("llama-int4", _llama_int4),
    _plain("resnet", _resnet),
    _plain("lstm", _lstm),
    _plain("vit", _vit),
    _plain("quantized-conv", _quantized_conv),
    _plain("traced-states", _traced_states),
    _plain("jax-gradient", _jax_gradient),
    _plain("run-time-sizes", _run_time_sizes),
    _plain("mlp-bf16", _mlp_bf16),
    _plain("recommender", _recommender),
    _plain("float64", _float64),
)

__all__ = ["SAMPLES", "Sample"]
