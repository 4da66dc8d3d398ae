"""Gemma 3n (text). Gemma Team, 2025: several streams of hidden states, of which each layer computes one, keys
and values that the last layers share, embeddings for each layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, ClassVar

from ...errors import CompileError
from ...frontends.nn import Embedding, Linear, Module, ModuleList
from ...frontends.nn import functional as F
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import Attention, GatedMLP, RotaryEmbeddingByKind, Rotations, activation
from ..norms import FixedRMSNorm
from .base import CausalLM, Destination, alternating, register
from .gemma import ropes_by_kind
from .vision import Vision


class NormalizedAttention(Attention):
    """Attention that normalizes values as well, and does not scale scores.

    Args:
        config: The configuration of the model.
        layer: The number of the layer.
        norm: Makes a normalization of heads from their size.
    """

    def __init__(self, config: Config, layer: int, norm: Callable[[int], Module]) -> None:
        super().__init__(config, layer, bias=bool(config.get("attention_bias", False)), norm=norm, scale=1.0)
        self.v_norm = FixedRMSNorm(self.head_dim, config.eps)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        return q, k, self.v_norm(v)


class ReadingAttention(Attention):
    """Attention to the keys and values of an earlier layer; the layer has only queries.

    Args:
        config: The configuration of the model.
        layer: The number of the layer.
        norm: Makes a normalization of heads from their size.
        holder: The number of the layer that has the keys and values.
    """

    def __init__(self, config: Config, layer: int, norm: Callable[[int], Module], holder: int) -> None:
        super().__init__(config, layer, bias=bool(config.get("attention_bias", False)), norm=norm, scale=1.0)
        self.holder = holder

    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        width = self.heads * self.head_dim
        self.q_proj, self.o_proj = Linear(config.hidden, width, bias), Linear(width, config.hidden, out_bias)

    def make_norms(self, norm: Callable[[int], Module]) -> None:
        self.q_norm = norm(self.head_dim)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations = None) -> Tensor:
        q = self.q_proj(x).reshape(*x.shape[:2], self.heads, self.head_dim)
        q = self.turned(self.q_norm(q), rotations)
        y = cache.attend_again(self.holder, q, scale=self.scale, window=self.window)
        result: Tensor = self.o_proj(y.reshape(*x.shape[:2], self.heads * self.head_dim))
        return result


class SparseMLP(GatedMLP):
    """A gated feed-forward block that lets only the largest gates of a token pass. How many they are follows
    from their mean and standard deviation, as if they had a normal distribution.

    Args:
        config: The configuration of the model.
        width: The elements between the projections.
        sparsity: The share of the gates that become 0, above 0 and below 1.
    """

    def __init__(self, config: Config, width: int, sparsity: float) -> None:
        super().__init__(config, width)
        self.deviations = NormalDist().inv_cdf(sparsity)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        wide = tnp.astype(gate, "float32")
        least = wide.mean(-1, keepdims=True) + self.deviations * wide.std(-1, keepdims=True)
        passed = tnp.astype(F.relu(wide - least), gate.dtype)
        result: Tensor = self.down_proj(self.activation(passed) * self.up_proj(x))
        return result


class AltUp(Module):
    """Alternating updates (Baykal et al. 2023): a token has several streams of hidden states [batch, n,
    streams, hidden]. A layer computes the result of one, and this module those of the others.

    Args:
        config: The configuration of the model.
        norm: Makes a normalization of hidden states.

    Raises:
        CompileError: The stream that layers compute does not exist.
    """

    def __init__(self, config: Config, norm: Callable[[], Module]) -> None:
        super().__init__()
        self.streams, self.active = int(config["altup_num_inputs"]), int(config["altup_active_idx"])
        if self.active >= self.streams:
            raise CompileError(
                f"config.json: 'altup_active_idx' is {self.active}, but 'altup_num_inputs' is {self.streams}"
            )
        self.scales, self.hidden = bool(config["altup_correct_scale"]), config.hidden
        self.correct_output_scale = uniform((config.hidden,), 1)
        self.prediction_coefs = Linear(self.streams, self.streams**2, bias=False)
        self.correction_coefs = Linear(self.streams, self.streams, bias=False)
        self.modality_router, self.router_norm = Linear(config.hidden, self.streams, bias=False), norm()

    def _routed(self, x: Tensor) -> Tensor:
        """The weight of each stream, [batch, n, streams], for one stream `x` [batch, n, hidden]."""
        result: Tensor = F.tanh(self.modality_router(self.router_norm(x) * (1.0 / self.hidden)))
        return result

    def predict(self, x: Tensor) -> Tensor:
        """Return what the layer's result is expected to be for each stream: `x` [batch, n, streams, hidden]
        plus mixtures of its streams, of its shape and type.
        """
        mixtures = self.prediction_coefs(self._routed(x[:, :, self.active]))
        result: Tensor = x + mixtures.reshape(*x.shape[:2], self.streams, self.streams) @ x
        return result

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """Return `predicted` [batch, n, streams, hidden] with a multiple of the error of the active stream
        added to each stream.

        Args:
            predicted: The result of `predict`.
            computed: The active stream as the layer computed it, [batch, n, hidden].
        """
        error = computed - predicted[:, :, self.active]
        shares = self.correction_coefs(self._routed(computed)) + 1.0
        result: Tensor = predicted + error[:, :, None] * shares[..., None]
        return result

    def output(self, x: Tensor) -> Tensor:
        """Return the active stream [batch, n, hidden] of corrected streams `x`, scaled where the model does
        so.
        """
        y = x[:, :, self.active]
        return y * self.correct_output_scale if self.scales else y


class Laurel(Module):
    """A learned residual connection of low rank (Menghani et al. 2024).

    Args:
        config: The configuration of the model.
        norm: Makes a normalization of hidden states.
    """

    def __init__(self, config: Config, norm: Callable[[], Module]) -> None:
        super().__init__()
        rank = int(config["laurel_rank"])
        self.linear_left = Linear(config.hidden, rank, bias=False)
        self.linear_right = Linear(rank, config.hidden, bias=False)
        self.post_laurel_norm = norm()

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]."""
        result: Tensor = x + self.post_laurel_norm(self.linear_right(self.linear_left(x)))
        return result


class Layer(Module):
    """A decoder layer, which computes one stream and corrects the others.

    Args:
        config: The configuration of the model.
        attention: The attention layer, called with hidden states, cache and rotations.
        mlp: The feed-forward block, called with hidden states.
        norm: Makes a normalization of hidden states.
    """

    def __init__(self, config: Config, attention: Module, mlp: Module, norm: Callable[[], Module]) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.altup, self.laurel = (
            attention,
            mlp,
            AltUp(config, norm),
            Laurel(config, norm),
        )
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm()
        size = int(config["hidden_size_per_layer_input"])
        self.per_layer_input_gate = Linear(config.hidden, size, bias=False)
        self.per_layer_projection = Linear(size, config.hidden, bias=False)
        self.post_per_layer_input_norm = norm()
        self.activation = activation(config)

    def forward(self, x: Tensor, given: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        """Return [batch, n, streams, hidden] for `x` [batch, n, streams, hidden].

        Args:
            x: The streams of hidden states.
            given: The embeddings of the tokens for this layer, [batch, n, size].
            cache: The cache of keys and values, which attention extends or reads.
            rotations: The rotation of queries and keys for each kind of layer.
        """
        predicted = self.altup.predict(x)
        active = predicted[:, :, self.altup.active]
        y = self.input_layernorm(active)
        attended = active + self.post_attention_layernorm(self.self_attn(y, cache, rotations))
        y = (attended + self.laurel(y)) * 0.5**0.5
        y = y + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(y)))
        x = self.altup.correct(predicted, y)
        gate = self.activation(self.per_layer_input_gate(self.altup.output(x)))
        more = self.post_per_layer_input_norm(self.per_layer_projection(gate * given))
        # The first stream gets none of it, whichever is the active one.
        result: Tensor = tnp.concatenate([x[:, :, :1], x[:, :, 1:] + more[:, :, None]], 2)
        return result


def streams_like(first: Tensor, others: list[Tensor]) -> Tensor:
    """The first stream and the others, which are scaled to its root mean square, [batch, n, streams, hidden].

    Args:
        first: The first stream [batch, n, hidden].
        others: The other streams, each of this shape.
    """

    def mean_square(x: Tensor) -> Tensor:
        result: Tensor = (x * x).mean(-1, keepdims=True)
        return result

    size = tnp.sqrt(mean_square(first))
    scaled = [x * (size / tnp.sqrt(tnp.maximum(mean_square(x), 1e-5))) for x in others]
    result: Tensor = tnp.stack([first, *scaled], 2)
    return result


@register("gemma3n_text", "gemma3n")
class Gemma3n(CausalLM):
    """Gemma 3n, also as the language model of checkpoints with image and audio encoders."""

    renamed: ClassVar[Mapping[str, str]] = {
        **Vision.renamed,
        r"^(?=altup_|per_layer_|embed_tokens_per_layer)": "model.",
    }
    left_out: ClassVar[Mapping[str, str]] = {
        r"^(model\.)?(vision_tower|embed_vision)\.": "images",
        r"^(model\.)?(audio_tower|embed_audio)\.": "audio",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        sparse = 10 if config.layers > 10 else 0
        return {
            "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
            "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 262400,
            "max_position_embeddings": 32768, "sliding_window": 512, "final_logit_softcapping": 30.0,
            "layer_types": alternating(5, config.layers), "rope_parameters": ropes_by_kind(config),
            "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
            "altup_active_idx": 0, "altup_correct_scale": True, "altup_num_inputs": 4, "laurel_rank": 64,
            "num_kv_shared_layers": 15,
            "activation_sparsity_pattern": [0.95] * sparse + [0.0] * (config.layers - sparse),
        }  # fmt: skip

    @classmethod
    def holder(cls, config: Config, layer: int) -> int:
        own = config.layers - int(config["num_kv_shared_layers"])
        if layer < own:
            return layer
        kind = config.layer_type(layer)
        found = [k for k in range(max(own, 0)) if config.layer_type(k) == kind]
        if not found:
            raise CompileError(
                f"config.json: layer {layer} has no keys and values, as 'num_kv_shared_layers' is "
                f"{config['num_kv_shared_layers']}, and no earlier one of kind {kind!r} has any"
            )
        return found[-1]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.size, self.streams = int(config["hidden_size_per_layer_input"]), int(config["altup_num_inputs"])
        self.known = int(config["vocab_size_per_layer_input"])
        model, hidden, width = self.model, config.hidden, config.layers * self.size
        model.embed_tokens_per_layer = Embedding(self.known, width)
        model.per_layer_model_projection = Linear(hidden, width, bias=False)
        model.per_layer_projection_norm = self.norm(self.size)
        for name in ("altup_projections", "altup_unembed_projections"):
            setattr(model, name, ModuleList(Linear(hidden, hidden, False) for _ in range(self.streams - 1)))

    def attention(self, layer: int) -> Module:
        holder = self.holder(self.config, layer)
        if holder == layer:
            return NormalizedAttention(self.config, layer, self.norm)
        return ReadingAttention(self.config, layer, self.norm, holder)

    def mlp(self, layer: int) -> Module:
        width = int(self.config.of_layer("intermediate_size", layer))
        sparsity = float(self.config.of_layer("activation_sparsity_pattern", layer))
        if not 0 <= sparsity < 1:
            raise CompileError(
                f"config.json: 'activation_sparsity_pattern' of layer {layer} is {sparsity}, not a number "
                "from 0 to below 1"
            )
        return SparseMLP(self.config, width, sparsity) if sparsity else GatedMLP(self.config, width)

    def block(self, config: Config, layer: int) -> Module:
        return Layer(config, self.attention(layer), self.mlp(layer), lambda: self.norm(config.hidden))

    def make_rotary(self) -> Module:
        return RotaryEmbeddingByKind(self.config)

    def own_destination(self, name: str) -> Destination | None:
        # Checkpoints may have projections of keys and values that no layer uses.
        found = re.search(r"\blayers\.(\d+)\.self_attn\.[kv]_(proj|norm)\.", name)
        layer = int(found[1]) if found else 0
        if layer < self.config.layers and self.holder(self.config, layer) != layer:
            return None
        return super().own_destination(name)

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        return super().embed(tokens, cache) * self.config.hidden**0.5

    def given_to_layers(self, tokens: TensorLike, x: Tensor) -> Tensor:
        """Return what tokens give each layer, [batch, n, layers, size], of the type of `x`.

        Args:
            tokens: Integers [batch, n].
            x: Their embeddings [batch, n, hidden].
        """
        shape = (*x.shape[:2], self.config.layers, self.size)
        of_state = self.model.per_layer_model_projection(x) * self.config.hidden**-0.5
        of_state = self.model.per_layer_projection_norm(of_state.reshape(*shape))
        ids = tnp.asarray(tokens)
        of_token = self.model.embed_tokens_per_layer(tnp.where(ids < self.known, ids, 0))
        result: Tensor = (of_state + of_token.reshape(*shape) * self.size**0.5) * 0.5**0.5
        return result

    def hidden(self, tokens: TensorLike, cache: Cache) -> Tensor:
        first = self.embed(tokens, cache)
        given = self.given_to_layers(tokens, first)
        x = streams_like(first, [project(first) for project in self.model.altup_projections])
        rotations = None if self.rotary is None else self.rotary(cache.places)
        for k, layer in enumerate(self.model.layers):
            x = layer(x, given[:, :, k], cache, rotations)
        others = [p(x[:, :, k + 1]) for k, p in enumerate(self.model.altup_unembed_projections)]
        result: Tensor = self.model.norm(streams_like(x[:, :, 0], others).mean(2))
        return result
