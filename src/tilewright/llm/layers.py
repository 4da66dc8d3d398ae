"""Layers that model definitions share: attention with rotary embedding, feed-forward blocks, routed experts.

Parameters have the names and layouts of Hugging Face. Projections of one input stay separate, as in the
checkpoint; the pass ``merge-matmuls`` joins them. Activations are [batch, n, hidden].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import CompileError
from ..frontends.nn import Linear, Module
from ..frontends.nn import functional as F
from ..frontends.nn.layers import uniform
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.tensor import TensorLike
from .cache import Cache
from .config import Config, Rope

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines [batch, n, 1, size] of the rotation angles of the first `size` elements of heads."""

_TANH = {"approximate": "tanh"}
ACTIVATIONS: dict[str, Callable[[Any], Tensor]] = {
    "gelu": F.gelu,
    "gelu_fast": lambda x: F.gelu(x, **_TANH),
    "gelu_new": lambda x: F.gelu(x, **_TANH),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, **_TANH),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),
    "relu": F.relu,
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

    Raises:
        CompileError: The kind of scaling is unknown, or one of its settings is missing.
    """

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.frequencies, self.magnitude = rope.scaled

    def forward(self, positions: Tensor) -> Rotation:
        """Return cosines and sines [batch, n, 1, size], float32, for `positions` [batch, n] of integers."""
        angles = tnp.astype(positions, "float32")[:, :, None] * self.frequencies
        angles = tnp.concatenate([angles, angles], -1)[:, :, None]
        return self.magnitude * tnp.cos(angles), self.magnitude * tnp.sin(angles)


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Heads [batch, n, heads, d] with their first elements rotated, in the precision of the cosines and
    sines.

    Args:
        x: Heads [batch, n, heads, d] of any floating-point type.
        rotation: Cosines and sines [batch, n, 1, size], where an even `size` is at most d.

    Returns:
        A tensor of the shape and type of `x`.
    """
    size = rotation[0].shape[-1]
    first = tnp.astype(F.rotary(x[..., :size], *rotation), x.dtype)
    result: Tensor = first if size == x.shape[-1] else tnp.concatenate([first, x[..., size:]], -1)
    return result


class Attention(Module):
    """Grouped-query self-attention (Ainslie et al. 2023); the cache makes it causal. A subclass may override
    `project`.

    Args:
        config: The configuration of the model, which has the numbers of heads and their size.
        layer: The number of the layer, by which the cache holds its keys and values.
        bias: Whether the projections of queries, keys and values add a bias.
        out_bias: Whether the projection of the output adds a bias; None: as `bias`.
        norm: Makes the normalizations of each head of queries and keys from the head's size; None: none.
        scale: The factor of the scores; None is ``1 / sqrt(head_dim)``.
        softcap: If c is given, scores s become ``c * tanh(s / c)``.
    """

    def __init__(
        self, config: Config, layer: int, *, bias: bool = False, out_bias: bool | None = None,
        norm: Callable[[int], Module] | None = None, scale: float | None = None, softcap: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = (
            layer,
            config.heads,
            config.kv_heads,
            config.head_dim,
        )
        self.window, self.softcap = config.window(layer), softcap
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.make_projections(config, bias, bias if out_bias is None else out_bias)
        self.normalized = norm is not None
        if norm is not None:
            self.q_norm, self.k_norm = norm(self.head_dim), norm(self.head_dim)

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

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, n, heads * head_dim], keys and values [batch, n, kv_heads * head_dim] of `x`
        [batch, n, hidden], in the common type of `x` and the weights.
        """
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, n, heads, head_dim], keys and values [batch, n, kv_heads, head_dim] of `x` [batch,
        n, hidden], in the type of `project`.
        """
        q, k, v = (t.reshape(*x.shape[:2], -1, self.head_dim) for t in self.project(x))
        return q, k, v

    def forward(self, x: Tensor, cache: Cache, rotation: Rotation | None = None) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden].

        Args:
            x: The hidden states.
            cache: The cache of keys and values, which this call extends.
            rotation: The rotation of queries and keys; None: no rotation.
        """
        q, k, v = self.split(x)
        if self.normalized:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotated(q, rotation), rotated(k, rotation)
        y = cache.attend(self.layer, q, k, v, scale=self.scale, window=self.window, softcap=self.softcap)
        result: Tensor = self.o_proj(y.reshape(*x.shape[:2], self.heads * self.head_dim))
        return result


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


class GroupedLinear(Module):
    """A linear layer of `count` matrices, `weight` [count, outputs, inputs].

    Each row of x [rows, inputs] is multiplied by the matrix that `index` [rows] selects.
    """

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.count = count
        self.weight = uniform((count, outputs, inputs), inputs**-0.5)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        """Return [rows, outputs] for `x` [rows, inputs] and integers `index` [rows] in 0 .. count - 1.

        Raises:
            ShapeError: A shape does not fit, or `index` has no integers.
        """
        return F.grouped_matmul(x, self.weight.mT, index)


class Experts(Module):
    """Gated feed-forward blocks, each for the tokens routed to it. Only selected experts are computed and
    read.

    Args:
        config: The configuration of the model, whose ``num_experts`` is the number of blocks.
        width: The elements between the projections of one block.

    Raises:
        CompileError: The configuration's activation is unknown.
    """

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        count, self.activation = int(config["num_experts"]), activation(config)
        self.gate_proj = GroupedLinear(count, config.hidden, width)
        self.up_proj = GroupedLinear(count, config.hidden, width)
        self.down_proj = GroupedLinear(count, width, config.hidden)

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """The sum of the results of each token's experts, weighted by their shares, [tokens, hidden].

        Args:
            x: The hidden states [tokens, hidden].
            chosen: The experts of each token [tokens, top], i64.
            shares: The weights of these experts [tokens, top], of the type of `x`.
        """
        tokens, top = chosen.shape
        # Pairs of token and expert are sorted by expert, so that an expert's tokens are a contiguous range of
        # rows that is multiplied at once.
        experts = chosen.reshape(tokens * top)
        order = tnp.argsort(experts)
        rows, index = x[order // top], experts[order]
        y = self.down_proj(self.activation(self.gate_proj(rows, index)) * self.up_proj(rows, index), index)
        y = y[tnp.argsort(order)].reshape(tokens, top, x.shape[1])
        result: Tensor = (y * shares[:, :, None]).sum(1)
        return result


class RoutedMLP(Module):
    """A mixture of `Experts`: each token passes the few experts that a linear router (`gate`) scores highest
    (Shazeer et al. 2017).

    Args:
        config: The configuration of the model, with ``num_experts`` and ``num_experts_per_tok``.
        width: The elements between the projections of one expert.
        normalized: Whether the shares of a token's experts are scaled to the sum 1.
    """

    def __init__(self, config: Config, width: int, normalized: bool = True) -> None:
        super().__init__()
        self.top, self.normalized = int(config["num_experts_per_tok"]), normalized
        self.gate = Linear(config.hidden, int(config["num_experts"]), bias=False)
        self.experts = Experts(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]. The router's shares are computed in
        float32.
        """
        rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
        shares, chosen = tnp.topk(F.softmax(tnp.astype(self.gate(rows), "float32")), self.top)
        if self.normalized:
            shares = shares / shares.sum(-1, keepdims=True)
        result: Tensor = self.experts(rows, chosen, tnp.astype(shares, x.dtype)).reshape(x.shape)
        return result


class Block(Module):
    """A decoder layer that normalizes before attention and before the feed-forward block, and adds each
    result to its input.

    Args:
        attention: The attention layer, called with hidden states, cache and rotations.
        mlp: The feed-forward block, called with hidden states.
        norm: Makes a normalization of hidden states.
    """

    def __init__(self, attention: Module, mlp: Module, norm: Callable[[], Module]) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, mlp
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()

    def forward(self, x: Tensor, cache: Cache, rotation: Rotation | None) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden].

        Args:
            x: The hidden states.
            cache: The cache of keys and values, which attention extends.
            rotation: The rotation of queries and keys; None: no rotation.
        """
        x = x + self.self_attn(self.input_layernorm(x), cache, rotation)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


def pooled(hidden: Tensor, mask: TensorLike | None = None, kind: str = "mean") -> Tensor:
    """One vector [batch, hidden] of length 1 for each sequence.

    Args:
        hidden: The vectors of all tokens [batch, n, hidden].
        mask: Which tokens count [batch, n], numbers or bools; None: all.
        kind: The first token's vector (``cls``), the last one's (``last``) or the ``mean``.

    Raises:
        ValueError: `kind` is unknown.
    """
    if kind not in ("cls", "last", "mean"):
        raise ValueError(f"unknown pooling {kind!r}; known: cls, last, mean")
    there = tnp.ones(hidden.shape[:2]) if mask is None else tnp.astype(mask, "float32")
    if kind == "cls":
        x = hidden[:, 0]
    elif kind == "last":
        # The index of the last token that the mask selects.
        place = tnp.argmax(there * tnp.arange(1, hidden.shape[1] + 1), 1)
        x = tnp.take_along_axis(hidden, place[:, None, None], 1)[:, 0]
    else:
        x = (hidden * there[:, :, None]).sum(1) / there.sum(1)[:, None]
    result: Tensor = x / tnp.maximum(tnp.vector_norm(x, axis=-1, keepdims=True), 1e-12)
    return result


__all__ = [
    "ACTIVATIONS",
    "MLP",
    "Attention",
    "Block",
    "Experts",
    "GatedMLP",
    "GroupedLinear",
    "RotaryEmbedding",
    "RoutedMLP",
    "Rotation",
    "activation",
    "pooled",
    "rotated",
]
