"""Phi 3 and 4: joint projections, longrope, partial rotary embedding. Abdin et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Linear, Module
from ...frontends.trace import Tensor
from ..config import Config
from ..layers import Attention, Block, activation
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


class JointMLP(Module):
    """A gated feed-forward block with one projection: the gate's half first, then the other."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width, self.activation = config.intermediate, activation(config)
        self.gate_up_proj = Linear(config.hidden, 2 * self.width, bias=False)
        self.down_proj = Linear(self.width, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.gate_up_proj(x)
        result: Tensor = self.down_proj(self.activation(y[..., : self.width]) * y[..., self.width :])
        return result


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

    def block(self, config: Config, layer: int) -> Module:
        return Block(JointAttention(config, layer), JointMLP(config), lambda: self.norm(config.hidden))
