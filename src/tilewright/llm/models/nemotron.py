"""Nemotron 3 and 4, and Minitron: squared ReLU, layer normalization by weights plus 1. NVIDIA, 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Module
from ..config import Config
from ..layers import MLP
from ..norms import OffsetLayerNorm
from .base import CausalLM, register


@register("nemotron")
class Nemotron(CausalLM):
    norm_class = OffsetLayerNorm

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "norm_eps": 1e-5, "partial_rotary_factor": 0.5,
            "hidden_act": "relu2", "max_position_embeddings": 4096,
        }  # fmt: skip

    def mlp(self, layer: int) -> Module:
        return MLP(self.config, bool(self.config.get("mlp_bias", False)))
