"""Phi 3 and 4: joint projections, longrope, partial rotary embedding. Abdin et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Module
from ..config import Config
from ..layers import JointAttention, JointMLP
from .base import CausalLM, register


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
