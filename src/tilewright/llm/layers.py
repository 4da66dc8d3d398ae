"""Layers that model definitions share: attention with rotary embedding, feed-forward blocks.

Parameters have the names and layouts of Hugging Face. Projections of one input stay separate, as in the
checkpoint; the pass ``merge-matmuls`` joins them. Activations are [batch, n, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import CompileError
from ..frontends.nn import Linear, Module
from ..frontends.nn import functional as F
from ..frontends.nn.layers import uniform
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.tensor import TensorLike
from .cache import Cache
from .config import Config, Rope


class Rotation(NamedTuple):
    """Cosines and sines [batch, n, 1, size] of the rotation angles of the first `size` elements of heads."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False
    """Whether the pairs are neighbors, (2i, 2i + 1), instead of (i, i + size / 2)."""


Rotations = Rotation | Mapping[str, Rotation] | None
"""The rotation of all layers, or one for each kind of layer; None: no rotation."""

_TANH = {"approximate": "tanh"}
ACTIVATIONS: dict[str, Callable[[Any], Tensor]] = {
    "gelu": F.gelu,
    "gelu_fast": lambda x: F.gelu(x, **_TANH),
    "gelu_new": lambda x: F.gelu(x, **_TANH),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, **_TANH),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) * F.relu(x),
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}
"""Activation functions by their names in config.json."""


def activation(config: Config, default: str | None = None) -> Callable[[Any], Tensor]:
    """The activation of the feed-forward blocks, a function from a tensor to one of the same shape and type.

    Args:
        config: The configuration, whose ``hidden_act`` is the activation's name.
        default: The name that counts where the configuration has none.

    Raises:
        CompileError: The activation is unknown.
    """
    name = config.get("hidden_act", default) or config["hidden_act"]
    if name not in ACTIVATIONS:
        raise CompileError(
            f"activation {name!r} in config.json is not supported; known: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


class RotaryEmbedding(Module):
    """The rotations of tokens at positions [batch, n], computed at run time in float32 (Su et al. 2021).

    Args:
        rope: The frequencies of the pairs and the factor of cosines and sines.
        interleaved: Whether pairs are neighbors; see `Rotation`.

    Raises:
        CompileError: The kind of scaling is unknown, or one of its settings is missing.
    """

    def __init__(self, rope: Rope, interleaved: bool = False) -> None:
        super().__init__()
        self.frequencies, self.magnitude = rope.scaled
        self.interleaved = interleaved

    def forward(self, positions: Tensor) -> Rotation:
        """Return cosines and sines [batch, n, 1, size], float32, for `positions` [batch, n] of integers."""
        angles = tnp.astype(positions, "float32")[:, :, None] * self.frequencies
        if self.interleaved:
            angles = tnp.stack([angles, angles], -1).reshape(*angles.shape[:2], 2 * angles.shape[2])
        else:
            angles = tnp.concatenate([angles, angles], -1)
        angles = angles[:, :, None]
        return Rotation(self.magnitude * tnp.cos(angles), self.magnitude * tnp.sin(angles), self.interleaved)


class RotaryEmbeddingByKind(Module):
    """The rotations of each kind of layer, whose frequencies differ.

    Args:
        config: The configuration of the model.

    Raises:
        CompileError: A kind of scaling is unknown, or one of its settings is missing.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.kinds = sorted({config.layer_type(k) for k in range(config.layers)})
        for kind in self.kinds:
            setattr(self, kind, RotaryEmbedding(config.rope(kind)))

    def forward(self, positions: Tensor) -> dict[str, Rotation]:
        """Return the rotations for `positions` [batch, n] of integers, by the layers' kind."""
        return {kind: getattr(self, kind)(positions) for kind in self.kinds}


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Heads [batch, n, heads, d] with their first elements rotated, in the precision of the cosines and
    sines.

    Args:
        x: Heads [batch, n, heads, d] of any floating-point type.
        rotation: Cosines and sines [batch, n, 1, size], where an even `size` is at most d.

    Returns:
        A tensor of the shape and type of `x`.
    """
    size = rotation.cos.shape[-1]
    first = tnp.astype(F.rotary(x[..., :size], *rotation), x.dtype)
    result: Tensor = first if size == x.shape[-1] else tnp.concatenate([first, x[..., size:]], -1)
    return result


def alibi_slopes(heads: int) -> np.ndarray[Any, Any]:
    """The factor of the distance between a query and a key in each head, float32 [heads] (Press et al. 2022,
    and their program for numbers of heads that are no power of 2).
    """
    whole = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-8.0 * np.arange(1, whole + 1) / whole)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - whole) + 1, 2) / whole)
    return np.concatenate([first, between]).astype(np.float32)


class Attention(Module):
    """Grouped-query self-attention (Ainslie et al. 2023); the cache makes it causal. A subclass may override
    `project`.

    Args:
        config: The configuration of the model, which has the numbers of heads and their size.
        layer: The number of the layer, by which the cache holds its keys and values.
        bias: Whether the projections of queries, keys and values add a bias.
        out_bias: Whether the projection of the output adds a bias; None: as `bias`.
        norm: Makes the normalizations of queries and keys from the size that is normalized; None: none.
        normalized: Whether `norm` is for each head before or after rotation, or for all heads together.
        rotates: Whether queries and keys are rotated.
        scale: The factor of the scores; None is ``1 / sqrt(head_dim)``.
        softcap: If c is given, scores s become ``c * tanh(s / c)``.
        clip: If c is given, projected queries, keys and values are limited to -c .. c.
        sinks: Whether each head has a learned score, `sinks` [heads], that takes part in the softmax.
        slopes: Factors [heads] of the distances of keys, which are added to scores (ALiBi); None: none.
        terms: A function from the distances of keys to what is added to scores; see `ScoreOptions`.
    """

    def __init__(
        self, config: Config, layer: int, *, bias: bool = False, out_bias: bool | None = None,
        norm: Callable[[int], Module] | None = None,
        normalized: Literal["heads", "rotated heads", "all"] = "heads", rotates: bool = True,
        scale: float | None = None, softcap: float | None = None, clip: float | None = None,
        sinks: bool = False, slopes: np.ndarray[Any, Any] | None = None,
        terms: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = (
            layer,
            config.heads,
            config.kv_heads,
            config.head_dim,
        )
        self.kind, self.window, self.softcap = config.layer_type(layer), config.window(layer), softcap
        self.chunk = config.chunk(layer)
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.make_projections(config, bias, bias if out_bias is None else out_bias)
        self.normalized = None if norm is None else normalized
        if norm is not None:
            self.make_norms(norm)
        self.rotates, self.clip, self.slopes, self.terms = rotates, clip, slopes, terms
        self.sinks = uniform((self.heads,), 1) if sinks else None

    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        """Create the linear layers for queries, keys, values and output.

        Args:
            config: The configuration of the model, whose ``hidden_size`` is the size of inputs and results.
            bias: Whether the projections of queries, keys and values add a bias.
            out_bias: Whether the projection of the output adds a bias.
        """
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = Linear(config.hidden, width, bias)
        self.k_proj = Linear(config.hidden, kv_width, bias)
        self.v_proj = Linear(config.hidden, kv_width, bias)
        self.o_proj = Linear(width, config.hidden, out_bias)

    def make_norms(self, norm: Callable[[int], Module]) -> None:
        """Create `q_norm` and `k_norm`.

        Args:
            norm: Makes a normalization from the number of elements.
        """
        heads, kv_heads = (self.heads, self.kv_heads) if self.normalized == "all" else (1, 1)
        self.q_norm, self.k_norm = norm(heads * self.head_dim), norm(kv_heads * self.head_dim)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, n, heads * head_dim], keys and values [batch, n, kv_heads * head_dim] of `x`
        [batch, n, hidden], in the common type of `x` and the weights.
        """
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, n, heads, head_dim], keys and values [batch, n, kv_heads, head_dim] of `x` [batch,
        n, hidden], in the type of `project`.
        """
        q, k, v = self.project(x)
        if self.normalized == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.clip is not None:
            q, k, v = (tnp.clip(t, -self.clip, self.clip) for t in (q, k, v))
        q, k, v = (t.reshape(*x.shape[:2], -1, self.head_dim) for t in (q, k, v))
        return q, k, v

    def placed(self, q: Tensor, k: Tensor, cache: Cache, rotations: Rotations) -> tuple[Tensor, Tensor]:
        """Queries and keys, normalized and rotated for their positions, in their shapes and types.

        Args:
            q: Queries [batch, n, heads, head_dim].
            k: Keys [batch, n, kv_heads, head_dim].
            cache: The cache, which knows the positions.
            rotations: As for `forward`.
        """
        if self.normalized == "heads":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.turned(q, rotations), self.turned(k, rotations)
        if self.normalized == "rotated heads":
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k

    def turned(self, x: Tensor, rotations: Rotations) -> Tensor:
        """Heads [batch, n, any, head_dim] rotated for their positions, in their shape and type.

        Args:
            x: The heads.
            rotations: As for `forward`.
        """
        rotation = rotations[self.kind] if isinstance(rotations, Mapping) else rotations
        return x if rotation is None or not self.rotates else rotated(x, rotation)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        """The input of the projection of the output, [batch, n, heads * head_dim], of the type of `q`.

        Args:
            q: Queries [batch, n, heads, head_dim].
            k: Keys [batch, n, kv_heads, head_dim].
            v: Values [batch, n, kv_heads, head_dim].
            cache: The cache of keys and values, which this call extends.
            rotations: As for `forward`.
        """
        q, k = self.placed(q, k, cache, rotations)
        y = cache.attend(
            self.layer, q, k, v, scale=self.scale, window=self.window, softcap=self.softcap,
            sinks=self.sinks, slopes=self.slopes, chunk=self.chunk, terms=self.terms,
        )  # fmt: skip
        return y.reshape(*q.shape[:2], self.heads * self.head_dim)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations = None) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden].

        Args:
            x: The hidden states.
            cache: The cache of keys and values, which this call extends.
            rotations: The rotation of queries and keys, or one for each kind of layer; None: no rotation.
        """
        result: Tensor = self.o_proj(self.attend(*self.split(x), cache, rotations))
        return result


class JointHeads(Attention):
    """Attention whose joint projection `qkv` has, for each key head, the rows of its queries, then its key,
    then its value.
    """

    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        self.qkv_proj = Linear(config.hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, bias)
        self.o_proj = Linear(self.heads * self.head_dim, config.hidden, out_bias)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries = self.heads // self.kv_heads
        y = self.qkv_proj(x).reshape(*x.shape[:2], self.kv_heads, queries + 2, self.head_dim)
        q = y[:, :, :, :queries].reshape(*x.shape[:2], self.heads, self.head_dim)
        return q, y[:, :, :, queries], y[:, :, :, queries + 1]


class JointAttention(Attention):
    """Attention whose joint projection `qkv` has the rows of all queries, then all keys, then all values."""

    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        width = self.heads * self.head_dim
        self.qkv_proj = Linear(config.hidden, width + 2 * self.kv_heads * self.head_dim, bias)
        self.o_proj = Linear(width, config.hidden, out_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.qkv_proj(x)
        q, k = self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim
        return y[..., :q], y[..., q:k], y[..., k:]


class GatedMLP(Module):
    """``down(activation(gate(x)) * up(x))``. Shazeer, 2020.

    Args:
        config: The configuration of the model.
        width: The elements between the projections; None is the configuration's ``intermediate_size``.
        bias: Whether the projections add a bias.

    Raises:
        CompileError: The configuration's activation is unknown.
    """

    def __init__(self, config: Config, width: int | None = None, bias: bool = False) -> None:
        super().__init__()
        width = config.intermediate if width is None else width
        self.gate_proj = Linear(config.hidden, width, bias)
        self.up_proj = Linear(config.hidden, width, bias)
        self.down_proj = Linear(width, config.hidden, bias)
        self.activation = activation(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., hidden] for `x` [..., hidden]."""
        result: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return result


class MLP(Module):
    """``down(activation(up(x)))``.

    Args:
        config: The configuration of the model.
        bias: Whether the projections add a bias.

    Raises:
        CompileError: The configuration's activation is unknown.
    """

    def __init__(self, config: Config, bias: bool = True) -> None:
        super().__init__()
        self.up_proj = Linear(config.hidden, config.intermediate, bias)
        self.down_proj = Linear(config.intermediate, config.hidden, bias)
        self.activation = activation(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., hidden] for `x` [..., hidden]."""
        result: Tensor = self.down_proj(self.activation(self.up_proj(x)))
        return result


class JointMLP(Module):
    """A gated feed-forward block with one projection for the gate and the values that it multiplies.

    Args:
        config: The configuration of the model.
        gate_first: Whether the gate's rows come before the other half.
        out_bias: Whether the projection of the output adds a bias.

    Raises:
        CompileError: The configuration's activation is unknown.
    """

    def __init__(self, config: Config, *, gate_first: bool = True, out_bias: bool = False) -> None:
        super().__init__()
        self.width, self.activation, self.gate_first = config.intermediate, activation(config), gate_first
        self.gate_up_proj = Linear(config.hidden, 2 * self.width, bias=False)
        self.down_proj = Linear(self.width, config.hidden, out_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., hidden] for `x` [..., hidden]."""
        y = self.gate_up_proj(x)
        gate, up = y[..., : self.width], y[..., self.width :]
        gate, up = (gate, up) if self.gate_first else (up, gate)
        result: Tensor = self.down_proj(self.activation(gate) * up)
        return result


class Block(Module):
    """A decoder layer: attention and a feed-forward block, whose results are added to their input.

    Args:
        attention: The attention layer, called with hidden states, cache and rotations.
        mlp: The feed-forward block, called with hidden states.
        norm: Makes a normalization of hidden states.
        place: Which are normalized, the inputs of the two, their results, or both.
        scale: The factor of the results of the two.
    """

    def __init__(
        self, attention: Module, mlp: Module, norm: Callable[[], Module], *,
        place: Literal["before", "after", "both"] = "before", scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attn, self.mlp, self.place, self.scale = attention, mlp, place, scale
        if place != "after":
            self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        if place == "both":
            self.pre_feedforward_layernorm = norm()
        if place != "before":
            self.post_feedforward_layernorm = norm()

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden].

        Args:
            x: The hidden states.
            cache: The cache of keys and values, which attention extends.
            rotations: The rotation of queries and keys, or one for each kind of layer; None: no rotation.
        """
        y = self.self_attn(x if self.place == "after" else self.input_layernorm(x), cache, rotations)
        x = self.added(x, y if self.place == "before" else self.post_attention_layernorm(y))
        if self.place == "before":
            return self.added(x, self.mlp(self.post_attention_layernorm(x)))
        y = self.mlp(x if self.place == "after" else self.pre_feedforward_layernorm(x))
        return self.added(x, self.post_feedforward_layernorm(y))

    def added(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum [batch, n, hidden], of their common type, of `x` and the scaled `y`.

        Args:
            x: The input [batch, n, hidden] of attention or of the feed-forward block.
            y: The result [batch, n, hidden].
        """
        result: Tensor = x + (y if self.scale == 1.0 else y * self.scale)
        return result


class ParallelBlock(Module):
    """A decoder layer that adds the results of attention and feed-forward block, both of its input.

    Args:
        attention: The attention layer, called with hidden states, cache and rotations.
        mlp: The feed-forward block, called with hidden states.
        norm: Makes a normalization of hidden states.
        norms: How many normalizations there are: one for both, or one for each.
    """

    def __init__(self, attention: Module, mlp: Module, norm: Callable[[], Module], norms: int) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.norms = attention, mlp, norms
        self.input_layernorm = norm()
        if norms == 2:
            self.post_attention_layernorm = norm()

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden].

        Args:
            x: The hidden states.
            cache: The cache of keys and values, which attention extends.
            rotations: As for `Block`.
        """
        y = self.input_layernorm(x)
        attended = self.self_attn(y, cache, rotations)
        y = self.post_attention_layernorm(x) if self.norms == 2 else y
        result: Tensor = x + attended + self.mlp(y)
        return result


def pooled(hidden: Tensor, mask: TensorLike | None = None, kind: str = "mean") -> Tensor:
    """One vector [batch, hidden] for each sequence, of the type of `hidden`.

    Args:
        hidden: The vectors of all tokens [batch, n, hidden].
        mask: Which tokens count [batch, n], numbers or bools; None: all. They begin at the first one.
        kind: One of `POOLINGS`, by the names of sentence-transformers: the first token's vector (``cls``),
            the last one's (``lasttoken``, or ``last``), the largest of each element (``max``), the ``mean``;
            ``mean_sqrt_len_tokens``, the sum divided by the root of the number of tokens; ``weightedmean``,
            the mean with weights 1, 2, 3, ...

    Raises:
        ValueError: `kind` is unknown.
    """
    if kind not in POOLINGS:
        raise ValueError(f"unknown pooling {kind!r}; known: {', '.join(POOLINGS)}")
    there = tnp.ones(hidden.shape[:2]) if mask is None else tnp.astype(mask, "float32")
    places = tnp.arange(1, hidden.shape[1] + 1)
    result: Tensor
    if kind == "cls":
        result = hidden[:, 0]
    elif kind in ("last", "lasttoken"):
        place = tnp.argmax(there * places, 1)
        result = tnp.take_along_axis(hidden, place[:, None, None], 1)[:, 0]
    elif kind == "max":
        result = tnp.where(there[:, :, None] != 0, hidden, float("-inf")).max(1)
    else:
        weights = there * tnp.astype(places, "float32") if kind == "weightedmean" else there
        count = weights.sum(1)[:, None]
        divisor = tnp.sqrt(count) if kind == "mean_sqrt_len_tokens" else count
        result = (hidden * weights[:, :, None]).sum(1) / divisor
    return result


POOLINGS = ("cls", "last", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean")
"""The kinds of `pooled`."""


def of_length_1(x: Tensor) -> Tensor:
    """The vectors `x` (..., n), of any floating-point type, each divided by its length; zeros stay zeros."""
    result: Tensor = x / tnp.maximum(tnp.vector_norm(x, axis=-1, keepdims=True), 1e-12)
    return result


__all__ = [
    "ACTIVATIONS",
    "MLP",
    "POOLINGS",
    "Attention",
    "Block",
    "GatedMLP",
    "JointAttention",
    "JointHeads",
    "JointMLP",
    "ParallelBlock",
    "RotaryEmbedding",
    "RotaryEmbeddingByKind",
    "Rotation",
    "Rotations",
    "activation",
    "alibi_slopes",
    "of_length_1",
    "pooled",
    "rotated",
]
