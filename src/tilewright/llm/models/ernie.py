"""ERNIE 4.5 and its mixtures of experts. Baidu, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ...frontends.nn.layers import uniform
from ..config import Config
from ..experts import SEPARATE_EXPERTS, Experts, RoutedMLP, Routing
from ..layers import Attention, GatedMLP
from .base import CausalLM, register


@register("ernie4_5")
class Ernie(CausalLM):
    interleaved = True

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 5e5}

    @property
    def bias(self) -> bool:
        return bool(self.config.get("use_bias", False))

    def attention(self, layer: int) -> Module:
        return Attention(self.config, layer, bias=self.bias)

    def mlp(self, layer: int) -> Module:
        return GatedMLP(self.config, bias=self.bias)


@register("ernie4_5_moe")
class ErnieMoe(Ernie):
    renamed: ClassVar[Mapping[str, str]] = {
        **SEPARATE_EXPERTS,
        r"\.moe_statics\.e_score_correction_bias$": ".correction",
    }
    ignored = (r"rotary_emb\.inv_freq$", r"(^|\.)mtp_")

    def head_bias(self) -> bool:
        return self.bias

    def mlp(self, layer: int) -> Module:
        config, every = self.config, int(self.config.get("moe_layer_interval", 1))
        first = int(config.get("moe_layer_start_index", 1))
        last = int(config.get("moe_layer_end_index", -1)) % config.layers
        if not (first <= layer <= last and (layer + 1) % every == 0):
            return super().mlp(layer)
        width = int(config["moe_intermediate_size"])
        shared = int(config.get("moe_num_shared_experts", 0))
        result = RoutedMLP(
            config, Experts(config, width), Routing(int(config["num_experts_per_tok"])), corrected=True,
            shared=GatedMLP(config, width * shared, self.bias) if shared else None,
        )  # fmt: skip
        result.correction = uniform((1, int(config["num_experts"])), 1)  # the shape in checkpoints
        return result
