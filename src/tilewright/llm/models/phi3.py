"""Phi 3 and 4: joint projections, longrope, partial rotary embedding. Abdin et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Linear, Module
from ...frontends.trace import Tensor
from ..config import Config
from ..layers import Attention, JointMLP
from .base import CausalLM, register


class JointAttention(Attention):
    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        width = self.heads * self.head_dim
        self.qkv_proj = Linear(config.hidden, width + 2 * self.kv_heads * self.head_dim, bias)
        self.o_proj = Linear(width, config.hidden, out_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.qkv_proj(x)
        q, k = self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim
        return y[..., :q], y[..., q:k], y[..., k:]


@register("phi3")
class Phi3(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        }

    def attention(self, layer: int) -> Module:
        return JointAttention(self.config, layer)

    def mlp(self, layer: int) -> Module:
        return JointMLP(self.config)
