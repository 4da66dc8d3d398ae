"""SmolLM 3: Llama of whose layers some rotate no queries and keys. Hugging Face, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Module
from ..config import Config
from ..layers import Attention
from .base import CausalLM, register, rotates


@register("smollm3")
class SmolLM3(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        window = config.get("use_sliding_window", False) and config.get("sliding_window")
        types = [
            "sliding_attention" if window and not rotates(config, k) else "full_attention"
            for k in range(config.layers)
        ]
        return {
            "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 2e6, "layer_types": types,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        bias = bool(self.config.get("attention_bias", False))
        return Attention(self.config, layer, bias=bias, rotates=rotates(self.config, layer))
