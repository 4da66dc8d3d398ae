"""The benchmark models, each defined once: a PyTorch module with fixed weights and its inputs.

To add one, append to `_ALL`; it then runs on every engine. Engines that read files get its ONNX export (see
`prepare`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.zoo.models import MINILM, MODELS, ZooModel

SEQUENCE = 128
OPTIONS = 1 << 20


@dataclass(frozen=True)
class Model:
    """A model of the benchmark.

    `module()` returns the `torch.nn.Module` in eval mode, always with the same weights; `inputs(batch)`
    returns its tensors by name, in argument order. `images` states that torch runs it faster channels-last.
    `numpy` and `jax`, if the model is usually written with them, take the module and return a function of
    NumPy (JAX) arrays. `export()` is a variant of the module for ONNX export, if needed.
    """

    name: str
    module: Callable[[], Any]
    inputs: Callable[[int], dict[str, Any]]
    batches: tuple[int, ...] = (1, 8)
    precisions: tuple[str, ...] = ("float32", "bf16")
    images: bool = False
    numpy: Callable[[Any], Callable[..., Any]] | None = None
    jax: Callable[[Any], Callable[..., Any]] | None = None
    export: Callable[[], Any] | None = None


def of_zoo(model: ZooModel, images: bool = False) -> Model:
    return Model(
        model.name,
        lambda: model.torch_model("full"),
        lambda batch: model.inputs("full", batch=batch, seq=SEQUENCE),
        images=images,
    )


def random_tensor(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def seeded(make: Callable[[], Any]) -> Any:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


# -- A small multi-layer perceptron --------------------------------------------------------------------------


def _mlp() -> Any:
    from torch import nn

    return seeded(
        lambda: nn.Sequential(
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
    )


def _mlp_jax(module: Any) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    layers = [
        (jnp.asarray(m.weight.detach().numpy()).T, jnp.asarray(m.bias.detach().numpy())) for m in module[::2]
    ]

    def run(x: Any) -> Any:
        for weight, bias in layers[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = layers[-1]
        return x @ weight + bias

    return run


# -- A recurrent network -------------------------------------------------------------------------------------


def _lstm() -> Any:
    from torch import nn

    class Lstm(nn.Module):
        """Two layers of width 256 over a sequence of 128."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(256, 256, num_layers=2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.lstm(x)[0]

    return seeded(Lstm)


# -- Option prices -------------------------------------------------------------------------------------------


def black_scholes(xp: Any, erf: Callable[[Any], Any], spot: Any, strike: Any, years: Any) -> tuple[Any, Any]:
    """Prices of European calls and puts at 2 % interest and 30 % volatility; `xp` is numpy, torch or
    jax.numpy.
    """
    rate, volatility = 0.02, 0.3
    deviation = volatility * xp.sqrt(years)
    d1 = (xp.log(spot / strike) + (rate + 0.5 * volatility * volatility) * years) / deviation
    d2 = d1 - deviation
    below1 = 0.5 + 0.5 * erf(d1 * 0.7071067811865476)
    below2 = 0.5 + 0.5 * erf(d2 * 0.7071067811865476)
    discounted = strike * xp.exp(-rate * years)
    call = spot * below1 - discounted * below2
    return call, call - spot + discounted


def _black_scholes() -> Any:
    import torch

    class BlackScholes(torch.nn.Module):
        def forward(self, spot: Any, strike: Any, years: Any) -> Any:
            return black_scholes(torch, torch.erf, spot, strike, years)

    return BlackScholes().eval()


def _black_scholes_inputs(batch: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    ranges = {"spot": (10, 50), "strike": (10, 50), "years": (0.1, 2)}
    return {
        name: low + (high - low) * torch.rand(batch * OPTIONS, generator=generator)
        for name, (low, high) in ranges.items()
    }


def _black_scholes_numpy(_: Any) -> Callable[..., Any]:
    import numpy
    from scipy.special import erf

    return lambda *arrays: black_scholes(numpy, erf, *arrays)


def _black_scholes_jax(_: Any) -> Callable[..., Any]:
    import jax

    return lambda *arrays: black_scholes(jax.numpy, jax.scipy.special.erf, *arrays)


def _swin() -> Any:
    """The zoo's Swin with torch's fused attention, which torch.onnx cannot export."""
    module = MODELS["swin"].torch_model("full")
    module.model.set_attn_implementation("sdpa")
    return module


_ALL = [
    of_zoo(MINILM),
    of_zoo(MODELS["distilbert"]),
    of_zoo(MODELS["bert"]),
    of_zoo(MODELS["vit"]),
    of_zoo(MODELS["gpt2"]),
    of_zoo(MODELS["whisper-encoder"]),
    of_zoo(MODELS["resnet50"], images=True),
    of_zoo(MODELS["mobilenet_v2"], images=True),
    of_zoo(MODELS["convnext"], images=True),
    replace(of_zoo(MODELS["swin"]), module=_swin, export=lambda: MODELS["swin"].torch_model("full")),
    Model("lstm", _lstm, lambda batch: {"x": random_tensor(batch, SEQUENCE, 256)}),
    Model("mlp", _mlp, lambda batch: {"x": random_tensor(batch, 64)}, jax=_mlp_jax),
    Model(
        "black-scholes",
        _black_scholes,
        _black_scholes_inputs,
        batches=(1,),
        precisions=("float32",),
        numpy=_black_scholes_numpy,
        jax=_black_scholes_jax,
    ),
]
BENCH_MODELS: dict[str, Model] = {model.name: model for model in _ALL}
"""The benchmark models by name."""
