"""GLM 4 and its mixtures of experts (GLM 4.5 and 4.6). GLM Team, 2024 and 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ..config import Config
from ..layers import Attention, Block, GatedMLP, JointMLP
from .base import CausalLM, register
from .deepseek import CORRECTED, routed_block


@register("glm")
class Glm(CausalLM):
    interleaved = True

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
            "max_position_embeddings": 131072, "attention_bias": True, "head_dim": 128,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        bias, norm = bool(self.config["attention_bias"]), self.config.get("use_qk_norm", False)
        return Attention(self.config, layer, bias=bias, out_bias=False, norm=self.norm if norm else None)

    def mlp(self, layer: int) -> Module:
        return JointMLP(self.config)


@register("glm4")
class Glm4(Glm):
    """Normalizes the results of blocks as well."""

    renamed: ClassVar[Mapping[str, str]] = {
        r"\.post_attention_layernorm\.": ".pre_feedforward_layernorm.",
        r"\.post_self_attn_layernorm\.": ".post_attention_layernorm.",
        r"\.post_mlp_layernorm\.": ".post_feedforward_layernorm.",
    }

    def block(self, config: Config, layer: int) -> Module:
        norm = lambda: self.norm(config.hidden)  # noqa: E731
        return Block(self.attention(layer), self.mlp(layer), norm, place="both")


@register("glm4_moe")
class Glm4Moe(Glm):
    interleaved = False
    renamed: ClassVar[Mapping[str, str]] = CORRECTED

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            **super().defaults(config), "attention_bias": False, "head_dim": config.hidden // config.heads,
            "first_k_dense_replace": 1, "norm_topk_prob": True,
        }  # fmt: skip

    def mlp(self, layer: int) -> Module:
        return (
            GatedMLP(self.config)
            if layer < self.config["first_k_dense_replace"]
            else routed_block(self.config)
        )
