"""The models of `bench.training` and their training steps in JAX, compiled by ``jax.jit``.

Parameters are those of PyTorch's modules, by their names there, so that all engines have the same losses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tilewright.artifact.disk_cache import cache_folder

Parameters = dict[str, Any]
Forward = Callable[[Parameters, Any], tuple[Any, Parameters]]
"""A function of parameters and a batch that returns scores, and new buffers by name."""

RATE, DECAY, BETAS, EPSILON = 1e-4, 0.01, (0.9, 0.999), 1e-8
"""AdamW as in the other engines: the learning rate, and the defaults of ``torch.optim.AdamW``."""


def step_of(name: str, precision: str, threads: int, module: Any, x: Any, labels: Any) -> Callable[[], float]:
    """A function that makes one step and returns the loss."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import jax
    import jax.numpy as jnp

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    kind = jnp.bfloat16 if precision == "bf16" else jnp.float32
    forward: Forward = partial(FORWARD[name], kind)
    trained = {n for n, _ in module.named_parameters()}
    given = {n: jnp.asarray(p.detach().numpy()) for n, p in module.state_dict(keep_vars=True).items()}
    parameters = {n: p for n, p in given.items() if n in trained}
    buffers = {n: p for n, p in given.items() if n not in trained}
    moments = [{n: jnp.zeros_like(p) for n, p in parameters.items()} for _ in range(2)]

    def loss(parameters: Parameters, buffers: Parameters, x: Any, labels: Any) -> Any:
        scores, new = forward({**parameters, **buffers}, x)
        logarithms = jax.nn.log_softmax(scores.astype(jnp.float32))
        return -jnp.take_along_axis(logarithms, labels[:, None], 1).mean(), {**buffers, **new}

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, x: Any, labels: Any) -> Any:
        count, parameters, buffers, (first, second) = state
        differentiated = jax.value_and_grad(loss, has_aux=True)
        (value, buffers), gradients = differentiated(parameters, buffers, x, labels)
        count = count + 1
        new: tuple[Parameters, Parameters, Parameters] = ({}, {}, {})
        for n, p in parameters.items():
            g = gradients[n]
            m = BETAS[0] * first[n] + (1 - BETAS[0]) * g
            v = BETAS[1] * second[n] + (1 - BETAS[1]) * g * g
            size = m / (1 - BETAS[0] ** count)
            scale = jnp.sqrt(v / (1 - BETAS[1] ** count)) + EPSILON
            new[0][n], new[1][n], new[2][n] = p * (1 - RATE * DECAY) - RATE * size / scale, m, v
        return (count, new[0], buffers, [new[1], new[2]]), value

    state = jnp.float32(0), parameters, buffers, moments
    batch = jnp.asarray(x.numpy()), jnp.asarray(labels.numpy())

    def run() -> float:
        nonlocal state
        state, value = step(state, *batch)
        jax.block_until_ready(state)
        return float(value)

    return run


def linear(kind: Any, p: Parameters, name: str, x: Any) -> Any:
    """``torch.nn.Linear``; the factors have the type `kind`, the result is float32."""
    import jax.numpy as jnp

    y = jnp.matmul(x.astype(kind), p[f"{name}.weight"].T.astype(kind), preferred_element_type=jnp.float32)
    return y + p[f"{name}.bias"]


def norm(p: Parameters, name: str, x: Any, epsilon: float = 1e-5) -> Any:
    """``torch.nn.LayerNorm``."""
    import jax.numpy as jnp

    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon) * p[f"{name}.weight"] + p[f"{name}.bias"]


def attention(kind: Any, q: Any, k: Any, v: Any, heads: int, causal: bool) -> Any:
    """Attention of (batch, length, width) tensors."""
    import jax

    parts = (x.reshape(*x.shape[:2], heads, -1).astype(kind) for x in (q, k, v))
    return jax.nn.dot_product_attention(*parts, is_causal=causal).reshape(q.shape)


def mlp(kind: Any, p: Parameters, x: Any) -> tuple[Any, Parameters]:
    import jax

    for name in ("0", "2"):
        x = jax.nn.relu(linear(kind, p, name, x))
    return linear(kind, p, "4", x), {}


def gpt(kind: Any, p: Parameters, tokens: Any) -> tuple[Any, Parameters]:
    import jax
    import jax.numpy as jnp

    x = p["words.weight"][tokens] + p["places.weight"]
    for k in range(4):
        at = f"blocks.{k}."
        parts = jnp.split(linear(kind, p, at + "projections", norm(p, at + "first", x)), 3, -1)
        x = x + linear(kind, p, at + "out", attention(kind, *parts, 8, True))
        y = jax.nn.gelu(linear(kind, p, at + "network.0", norm(p, at + "second", x)), approximate=False)
        x = x + linear(kind, p, at + "network.2", y)
    return linear(kind, p, "head", norm(p, "norm", x)).reshape(-1, p["words.weight"].shape[0]), {}


def lstm(kind: Any, p: Parameters, x: Any) -> tuple[Any, Parameters]:
    import jax
    import jax.numpy as jnp

    hidden = {"hh.weight": p["lstm.weight_hh_l0"], "hh.bias": p["lstm.bias_hh_l0"]}
    inputs = {"ih.weight": p["lstm.weight_ih_l0"], "ih.bias": p["lstm.bias_ih_l0"]}

    def cell(carry: Any, part: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(part + linear(kind, hidden, "hh", h), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros((x.shape[0], 256))
    (h, _), _ = jax.lax.scan(cell, (zero, zero), linear(kind, inputs, "ih", x).swapaxes(0, 1))
    return linear(kind, p, "head", h), {}


def bert(kind: Any, p: Parameters, tokens: Any) -> tuple[Any, Parameters]:
    import jax
    import jax.numpy as jnp

    at = "model.bert.embeddings."
    words, places, types = (p[f"{at}{n}_embeddings.weight"] for n in ("word", "position", "token_type"))
    x = norm(p, at + "LayerNorm", words[tokens] + places[: tokens.shape[1]] + types[0], 1e-12)
    for k in range(12):
        at = f"model.bert.encoder.layer.{k}."
        q, key, v = (linear(kind, p, f"{at}attention.self.{n}", x) for n in ("query", "key", "value"))
        y = linear(kind, p, at + "attention.output.dense", attention(kind, q, key, v, 12, False))
        x = norm(p, at + "attention.output.LayerNorm", x + y, 1e-12)
        y = jax.nn.gelu(linear(kind, p, at + "intermediate.dense", x), approximate=False)
        x = norm(p, at + "output.LayerNorm", x + linear(kind, p, at + "output.dense", y), 1e-12)
    pooled = jnp.tanh(linear(kind, p, "model.bert.pooler.dense", x[:, 0]))
    return linear(kind, p, "model.classifier", pooled), {}


@dataclass
class Convolutions:
    """Convolutions without bias, channels last, each with ``torch.nn.BatchNorm2d`` behind it. `new` has the
    running statistics.
    """

    kind: Any
    parameters: Parameters
    epsilon: float = 1e-5
    momentum: float = 0.1
    new: Parameters = field(default_factory=dict)

    def __call__(self, at: str, x: Any, stride: int = 1, groups: int = 1) -> Any:
        import jax
        import jax.numpy as jnp

        p = self.parameters
        weight = p[f"{at}.convolution.weight"].transpose(2, 3, 1, 0).astype(self.kind)
        y = jax.lax.conv_general_dilated(
            x.astype(self.kind),
            weight,
            (stride, stride),
            ((weight.shape[0] // 2,) * 2,) * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        ).astype(jnp.float32)
        mean, variance, count = y.mean((0, 1, 2)), y.var((0, 1, 2)), y.size // y.shape[-1]
        at += ".normalization."
        for name, value in (("mean", mean), ("var", variance * count / (count - 1))):
            old = p[f"{at}running_{name}"]
            self.new[f"{at}running_{name}"] = (1 - self.momentum) * old + self.momentum * value
        return (y - mean) * (p[at + "weight"] / jnp.sqrt(variance + self.epsilon)) + p[at + "bias"]


def resnet50(kind: Any, p: Parameters, x: Any) -> tuple[Any, Parameters]:
    import jax
    import jax.numpy as jnp

    convolved = Convolutions(kind, p)
    at = "model.resnet."
    y = jax.nn.relu(convolved(at + "embedder.embedder", x.transpose(0, 2, 3, 1), 2))
    window = ((0, 0), (1, 1), (1, 1), (0, 0))
    y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), window)
    for stage, depth in enumerate((3, 4, 6, 3)):
        for k in range(depth):
            at = f"model.resnet.encoder.stages.{stage}.layers.{k}."
            stride = 2 if stage and not k else 1
            z = jax.nn.relu(convolved(at + "layer.0", y))
            z = convolved(at + "layer.2", jax.nn.relu(convolved(at + "layer.1", z, stride)))
            y = jax.nn.relu(z + (y if k else convolved(at + "shortcut", y, stride)))
    return linear(kind, p, "model.classifier.1", y.mean((1, 2))), convolved.new


def mobilenet_v2(kind: Any, p: Parameters, x: Any) -> tuple[Any, Parameters]:
    import jax

    convolved, relu6 = Convolutions(kind, p, epsilon=1e-3, momentum=0.997), jax.nn.relu6
    at = "model.mobilenet_v2."
    y = relu6(convolved(at + "conv_stem.first_conv", x.transpose(0, 2, 3, 1), 2))
    y = relu6(convolved(at + "conv_stem.conv_3x3", y, groups=y.shape[-1]))
    y = convolved(at + "conv_stem.reduce_1x1", y)
    for k in range(16):
        layer = f"{at}layer.{k}."
        stride = 2 if k in (0, 2, 5, 12) else 1
        z = relu6(convolved(layer + "expand_1x1", y))
        z = relu6(convolved(layer + "conv_3x3", z, stride, z.shape[-1]))
        z = convolved(layer + "reduce_1x1", z)
        y = y + z if stride == 1 and y.shape == z.shape else z
    y = relu6(convolved(at + "conv_1x1", y))
    return linear(kind, p, "model.classifier", y.mean((1, 2))), convolved.new


FORWARD = {"mlp": mlp, "gpt": gpt, "lstm": lstm, "bert": bert}
FORWARD |= {"resnet50": resnet50, "mobilenet_v2": mobilenet_v2}
