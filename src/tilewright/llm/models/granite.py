"""Granite and its mixtures of experts: Llama with constant multipliers. IBM Research, 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ..config import Config
from ..experts import Experts, RoutedMLP, Routing
from ..layers import Attention
from .base import CausalLM, register


@register("granite")
class Granite(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}

    def attention(self, layer: int) -> Module:
        bias, scale = bool(self.config.get("attention_bias", False)), self.config.get("attention_multiplier")
        return Attention(self.config, layer, bias=bias, scale=1.0 if scale is None else float(scale))


@register("granitemoe")
class GraniteMoe(Granite):
    renamed: ClassVar[Mapping[str, str]] = {
        r"\.block_sparse_moe\.input_linear\.": ".mlp.experts.gate_up_proj.",
        r"\.block_sparse_moe\.output_linear\.": ".mlp.experts.down_proj.",
        r"\.block_sparse_moe\.router\.layer\.": ".mlp.gate.",
    }

    def mlp(self, layer: int) -> Module:
        experts = Experts(self.config, self.config.intermediate, joint=True)
        return RoutedMLP(self.config, experts, Routing(int(self.config["num_experts_per_tok"])))
