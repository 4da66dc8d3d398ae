"""OLMo 1 (Groeneveld et al., 2024), 2 (OLMo Team, 2025) and 3, and OLMoE (Muennighoff et al., 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ..config import Config
from ..experts import SEPARATE_EXPERTS, Experts, RoutedMLP, Routing
from ..layers import Attention, Block
from ..norms import FixedLayerNorm
from .base import CausalLM, alternating, register


@register("olmo")
class Olmo(CausalLM):
    """Normalizes without parameters; queries, keys and values may be clipped."""

    norm_class = FixedLayerNorm

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"tie_word_embeddings": False, "layer_norm_eps": 1e-5, "max_position_embeddings": 2048}

    def attention(self, layer: int) -> Module:
        bias, clip = bool(self.config.get("attention_bias", False)), self.config.get("clip_qkv")
        return Attention(self.config, layer, bias=bias, clip=clip)


@register("olmo2")
class Olmo2(CausalLM):
    """Normalizes whole queries and keys, and outputs instead of inputs of blocks."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048}

    def attention(self, layer: int) -> Module:
        return Attention(
            self.config, layer, bias=bool(self.config.get("attention_bias", False)), norm=self.norm,
            normalized="all", clip=self.config.get("clip_qkv"),
        )  # fmt: skip

    def block(self, config: Config, layer: int) -> Module:
        norm = lambda: self.norm(config.hidden)  # noqa: E731
        return Block(self.attention(layer), self.mlp(layer), norm, place="after")


@register("olmo3")
class Olmo3(Olmo2):
    """Three of four layers have a sliding window, and frequencies that are not scaled."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        fast = {"rope_type": "default", "rope_theta": config.get("rope_theta", 5e5)}
        ropes = {
            "sliding_attention": fast,
            "full_attention": {**fast, **config.get("rope_scaling", {})},
        }
        types = alternating(4, config.layers)
        return {
            **super().defaults(config), "sliding_window": 4096, "layer_types": types,
            "rope_parameters": ropes,
        }  # fmt: skip


@register("olmoe")
class Olmoe(Olmo2):
    renamed: ClassVar[Mapping[str, str]] = SEPARATE_EXPERTS

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {**super().defaults(config), "max_position_embeddings": 4096}

    def mlp(self, layer: int) -> Module:
        routing = Routing(
            int(self.config["num_experts_per_tok"]), bool(self.config.get("norm_topk_prob", False))
        )
        return RoutedMLP(self.config, Experts(self.config, self.config.intermediate), routing)

    def block(self, config: Config, layer: int) -> Module:
        return Block(self.attention(layer), self.mlp(layer), lambda: self.norm(config.hidden))
