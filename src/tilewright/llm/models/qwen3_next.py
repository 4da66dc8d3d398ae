"""Qwen3-Next: gated delta rule in most layers, gated attention in the others. Qwen Team, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Linear, Module
from ...frontends.nn import functional as F
from ...frontends.trace import Tensor
from ..cache import Cache
from ..config import Config
from ..delta_rule import GatedDeltaNet
from ..experts import SEPARATE_EXPERTS
from ..layers import Attention, GatedMLP, Rotations
from ..norms import OffsetRMSNorm
from .base import CausalLM, alternating, register
from .qwen import SharedExpertMLP, routed


class GatedAttention(Attention):
    """Attention whose projection of queries also gives a gate for each element of the result."""

    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        super().make_projections(config, bias, out_bias)
        self.q_proj = Linear(config.hidden, 2 * self.heads * self.head_dim, bias)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations = None) -> Tensor:
        batch, n, _ = x.shape
        both = self.q_proj(x).reshape(batch, n, self.heads, 2 * self.head_dim)
        q, gate = both[..., : self.head_dim], both[..., self.head_dim :].reshape(batch, n, -1)
        k, v = (p(x).reshape(batch, n, self.kv_heads, self.head_dim) for p in (self.k_proj, self.v_proj))
        result: Tensor = self.o_proj(self.attend(q, k, v, cache, rotations) * F.sigmoid(gate))
        return result


@register("qwen3_next")
class Qwen3Next(CausalLM):
    has_state = True
    norm_class = OffsetRMSNorm
    layer_kinds = ("full_attention", "linear_attention")
    state_kinds = ("linear_attention",)
    renamed: ClassVar[Mapping[str, str]] = {
        **SEPARATE_EXPERTS,
        r"\.linear_attn\.norm\.weight$": ".linear_attn.norm_weight",
        r"\.linear_attn\.": ".self_attn.",
    }
    ignored = (r"rotary_emb\.inv_freq$", r"^mtp\.")

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        types = alternating(int(config.get("full_attention_interval", 4)), config.layers)
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
            "head_dim": 256, "partial_rotary_factor": 0.25, "norm_topk_prob": True,
            "layer_types": [t.replace("sliding", "linear") for t in types],
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        config = self.config
        if config.layer_type(layer) == "full_attention":
            bias = bool(config.get("attention_bias", False))
            return GatedAttention(config, layer, bias=bias, norm=self.norm)
        return GatedDeltaNet(
            config.hidden, int(config.get("linear_num_key_heads", 16)),
            int(config.get("linear_key_head_dim", 128)), int(config.get("linear_num_value_heads", 32)),
            int(config.get("linear_value_head_dim", 128)), int(config.get("linear_conv_kernel_dim", 4)),
            config.eps, layer,
        )  # fmt: skip

    def mlp(self, layer: int) -> Module:
        return SharedExpertMLP(self.config) if routed(self.config, layer) else GatedMLP(self.config)
