"""Qwen 2 and 3, and their mixtures of experts. Yang et al., 2024 and 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Linear, Module
from ...frontends.nn import functional as F
from ...frontends.trace import Tensor
from ..config import Config
from ..experts import SEPARATE_EXPERTS, Experts, RoutedMLP, Routing
from ..layers import Attention, GatedMLP
from .base import CausalLM, register


@register("qwen2")
class Qwen2(CausalLM):
    """Adds biases to queries, keys and values; later layers may have a sliding window."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        sliding = bool(config.get("use_sliding_window", False))
        first = config.get("max_window_layers", 28)
        types = [
            "sliding_attention" if sliding and k >= first else "full_attention" for k in range(config.layers)
        ]
        return {
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
            "layer_types": types,
        }

    def attention(self, layer: int) -> Module:
        return Attention(self.config, layer, bias=True, out_bias=False)

    def mlp(self, layer: int) -> Module:
        return GatedMLP(self.config)


@register("qwen3")
class Qwen3(Qwen2):
    """Normalizes queries and keys instead of adding biases."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {**super().defaults(config), "head_dim": 128}

    def attention(self, layer: int) -> Module:
        return Attention(
            self.config, layer, bias=bool(self.config.get("attention_bias", False)), norm=self.norm
        )


def routed(config: Config, layer: int) -> bool:
    """Whether a layer's feed-forward block is a mixture of experts."""
    every = int(config.get("decoder_sparse_step", 1))
    return layer not in config.get("mlp_only_layers", ()) and (layer + 1) % every == 0


def experts_of(config: Config) -> tuple[Experts, Routing]:
    """The experts of a layer, and how they are chosen."""
    normalized = bool(config.get("norm_topk_prob", False))
    experts = Experts(config, int(config["moe_intermediate_size"]))
    return experts, Routing(int(config["num_experts_per_tok"]), normalized)


class SharedExpertMLP(RoutedMLP):
    """A mixture of experts plus a gated expert that processes every token."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, *experts_of(config))
        self.shared_expert = GatedMLP(config, int(config["shared_expert_intermediate_size"]))
        self.shared_expert_gate = Linear(config.hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)


@register("qwen2_moe")
class Qwen2Moe(Qwen2):
    renamed: ClassVar[Mapping[str, str]] = SEPARATE_EXPERTS

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        sliding, last = bool(config.get("use_sliding_window", False)), config.get("max_window_layers", 28)
        types = [
            "sliding_attention" if sliding and k < last and k % 2 == 0 else "full_attention"
            for k in range(config.layers)
        ]
        return {**super().defaults(config), "layer_types": types}

    def attention(self, layer: int) -> Module:
        return Attention(self.config, layer, bias=bool(self.config.get("qkv_bias", True)), out_bias=False)

    def mlp(self, layer: int) -> Module:
        return SharedExpertMLP(self.config) if routed(self.config, layer) else GatedMLP(self.config)


@register("qwen3_moe")
class Qwen3Moe(Qwen3):
    renamed: ClassVar[Mapping[str, str]] = SEPARATE_EXPERTS

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        # Either all layers have a sliding window, or none.
        kind = "sliding_attention" if config.get("use_sliding_window", False) else "full_attention"
        head_dim = config.hidden // config.heads
        return {**super().defaults(config), "layer_types": [kind] * config.layers, "head_dim": head_dim}

    def mlp(self, layer: int) -> Module:
        if not routed(self.config, layer):
            return GatedMLP(self.config)
        return RoutedMLP(self.config, *experts_of(self.config))
