"""StableLM: layer normalization, partial rotary embedding. Bellagente et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Module
from ..config import Config
from ..layers import Block, ParallelBlock
from .base import CausalLM, register
from .cohere import CohereAttention


@register("stablelm")
class StableLM(CausalLM):
    norm_class = LayerNorm
    renamed: ClassVar[Mapping[str, str]] = {
        r"\.(q|k)_layernorm\.norms\.(\d+)\.weight$": r".\1_norm.weight[\2]"
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25,
            "max_position_embeddings": 4096,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        return CohereAttention(
            self.config, layer, bias=bool(self.config.get("use_qkv_bias", False)), out_bias=False,
            norm=self.norm if self.config.get("use_qk_norm", False) else None,
        )  # fmt: skip

    def block(self, config: Config, layer: int) -> Module:
        attention, mlp = self.attention(layer), self.mlp(layer)
        if config.get("use_parallel_residual", False):
            return ParallelBlock(attention, mlp, lambda: self.norm(config.hidden), 1)
        return Block(attention, mlp, lambda: self.norm(config.hidden))
