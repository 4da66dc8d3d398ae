"""Phi 1 and 2: parallel blocks, partial rotary embedding, biases. Gunasekar et al., 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Module
from ..config import Config
from ..layers import MLP, Attention, ParallelBlock
from .base import CausalLM, register


@register("phi")
class Phi(CausalLM):
    norm_class = LayerNorm
    renamed: ClassVar[Mapping[str, str]] = {
        r"\.self_attn\.dense\.": ".self_attn.o_proj.",
        r"\.(q|k)_layernorm\.": r".\1_norm.",
        r"\.fc1\.": ".up_proj.",
        r"\.fc2\.": ".down_proj.",
        r"^model\.final_layernorm\.": "model.norm.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
            "hidden_act": "gelu_new", "max_position_embeddings": 2048,
        }  # fmt: skip

    def head_bias(self) -> bool:
        return True

    def attention(self, layer: int) -> Module:
        norm = self.norm if self.config.get("use_qk_norm", False) else None
        return Attention(self.config, layer, bias=True, norm=norm)

    def block(self, config: Config, layer: int) -> Module:
        return ParallelBlock(self.attention(layer), MLP(config), lambda: self.norm(config.hidden), 1)
