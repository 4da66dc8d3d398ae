"""Jamba: attention in one of several layers, Mamba in the others; experts. Lieber et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ..config import Config
from ..experts import SEPARATE_EXPERTS, Experts, RoutedMLP, Routing
from ..state_space import Mamba, rank_of
from .base import CausalLM, register


@register("jamba")
class Jamba(CausalLM):
    has_state = True
    layer_kinds = ("full_attention", "mamba")
    state_kinds = ("mamba",)
    renamed: ClassVar[Mapping[str, str]] = {
        **SEPARATE_EXPERTS,
        r"\.mamba\.": ".self_attn.",
        r"\.feed_forward\.": ".mlp.",
        r"\.router\.": ".gate.",
        r"\.pre_ff_layernorm\.": ".post_attention_layernorm.",
        r"^model\.final_layernorm\.": "model.norm.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        period, offset = int(config.get("attn_layer_period", 8)), config.get("attn_layer_offset", 4)
        types = ["full_attention" if k % period == offset else "mamba" for k in range(config.layers)]
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
            "num_key_value_heads": 8, "layer_types": types,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        config = self.config
        if config.layer_type(layer) == "full_attention":
            return super().attention(layer)
        return Mamba(
            config.hidden, int(config.get("mamba_expand", 2)) * config.hidden,
            int(config.get("mamba_d_state", 16)), rank_of(config.get("mamba_dt_rank", "auto"), config.hidden),
            int(config.get("mamba_d_conv", 4)), bool(config.get("mamba_proj_bias", False)),
            bool(config.get("mamba_conv_bias", True)), layer, self.norm,
        )  # fmt: skip

    def mlp(self, layer: int) -> Module:
        config, count = self.config, int(self.config.get("num_experts", 16))
        every, offset = int(config.get("expert_layer_period", 2)), config.get("expert_layer_offset", 1)
        if count < 2 or layer % every != offset:
            return super().mlp(layer)
        routing = Routing(int(config.get("num_experts_per_tok", 2)), normalized=False)
        return RoutedMLP(config, Experts(config, config.intermediate), routing)

    def make_rotary(self) -> None:
        return None
