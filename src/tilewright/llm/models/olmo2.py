"""OLMo 2: normalizes whole queries and keys, and outputs instead of inputs of blocks. OLMo Team, 2025."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...frontends.nn import Module
from ...frontends.trace import Tensor
from ..cache import Cache
from ..config import Config
from ..layers import Attention, GatedMLP, Rotation
from .base import CausalLM, register


class Olmo2Attention(Attention):
    def __init__(self, config: Config, layer: int, norm: Callable[[int], Module]) -> None:
        super().__init__(config, layer, bias=bool(config.get("attention_bias", False)))
        self.q_norm, self.k_norm = norm(self.heads * self.head_dim), norm(self.kv_heads * self.head_dim)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x)


class Olmo2Block(Module):
    def __init__(self, config: Config, layer: int, norm: Callable[[int], Module]) -> None:
        super().__init__()
        self.self_attn, self.mlp = Olmo2Attention(config, layer, norm), GatedMLP(config)
        self.post_attention_layernorm, self.post_feedforward_layernorm = (
            norm(config.hidden),
            norm(config.hidden),
        )

    def forward(self, x: Tensor, cache: Cache, rotation: Rotation) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(x, cache, rotation))
        result: Tensor = x + self.post_feedforward_layernorm(self.mlp(x))
        return result


@register("olmo2")
class Olmo2(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048}

    def block(self, config: Config, layer: int) -> Module:
        return Olmo2Block(config, layer, self.norm)
