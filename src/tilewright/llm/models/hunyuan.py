"""Hunyuan, dense and with mixtures of experts: normalizes rotated queries and keys. Tencent, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ..config import Config
from ..experts import SEPARATE_EXPERTS, Experts, RoutedMLP, Routing
from ..layers import Attention
from .base import CausalLM, register


@register("hunyuan_v1_dense")
class Hunyuan(CausalLM):
    renamed: ClassVar[Mapping[str, str]] = {
        r"\.query_layernorm\.": ".q_norm.",
        r"\.key_layernorm\.": ".k_norm.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
            "use_qk_norm": True,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        bias, norm = bool(self.config.get("attention_bias", False)), self.config["use_qk_norm"]
        return Attention(
            self.config, layer, bias=bias, norm=self.norm if norm else None, normalized="rotated heads"
        )


@register("hunyuan_v1_moe", "hunyuan")
class HunyuanMoe(Hunyuan):
    renamed: ClassVar[Mapping[str, str]] = {
        **SEPARATE_EXPERTS,
        **Hunyuan.renamed,
        r"\.gate\.wg\.": ".gate.",
        r"\.shared_mlp\.": ".shared_experts.",
    }

    def mlp(self, layer: int) -> Module:
        experts = Experts(self.config, self.config.intermediate)
        return RoutedMLP(
            self.config, experts, Routing(int(self.config["num_experts_per_tok"])), shared=super().mlp(layer)
        )
