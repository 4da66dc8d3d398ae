"""Command R (Cohere 1) and Command R7B and A (Cohere 2): parallel blocks, scaled logits. Cohere, 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Module
from ..config import Config
from ..layers import Attention, ParallelBlock
from ..norms import LayerNormOfHeads, UnbiasedLayerNorm
from .base import CausalLM, alternating, register


class CohereAttention(Attention):
    """Attention whose normalizations have weights for each head."""

    def make_norms(self, norm: Any) -> None:
        eps = norm(1).eps
        self.q_norm = LayerNormOfHeads(self.heads, self.head_dim, eps)
        self.k_norm = LayerNormOfHeads(self.kv_heads, self.head_dim, eps)


@register("cohere")
class Cohere(CausalLM):
    norm_class = UnbiasedLayerNorm
    interleaved = True

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "max_position_embeddings": 8192, "rope_theta": 5e5,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        return CohereAttention(
            self.config, layer, bias=bool(self.config.get("attention_bias", False)),
            norm=self.norm if self.config.get("use_qk_norm", False) else None,
        )  # fmt: skip

    def block(self, config: Config, layer: int) -> Module:
        return ParallelBlock(self.attention(layer), self.mlp(layer), lambda: self.norm(config.hidden), 1)


@register("cohere2")
class Cohere2(Cohere):
    """Only layers with a sliding window rotate queries and keys."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        types = alternating(int(config.get("sliding_window_pattern", 4)), config.layers)
        return {**super().defaults(config), "sliding_window": 4096, "layer_types": types}

    def attention(self, layer: int) -> Module:
        bias, sliding = bool(self.config.get("attention_bias", False)), self.config.window(layer) is not None
        return Attention(self.config, layer, bias=bias, rotates=sliding)
