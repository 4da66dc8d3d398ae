"""Mixtral: Mistral with mixtures of experts. Jiang et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ..config import Config
from ..experts import Experts, RoutedMLP, Routing
from .base import CausalLM, register

_EXPERTS = r"\.block_sparse_moe\.experts\.(\d+)\.{}\.weight$"


@register("mixtral")
class Mixtral(CausalLM):
    renamed: ClassVar[Mapping[str, str]] = {
        _EXPERTS.format("w1"): r".mlp.experts.gate_proj.weight[\1]",
        _EXPERTS.format("w2"): r".mlp.experts.down_proj.weight[\1]",
        _EXPERTS.format("w3"): r".mlp.experts.up_proj.weight[\1]",
        r"\.block_sparse_moe\.gate\.": ".mlp.gate.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
            "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
        }  # fmt: skip

    def mlp(self, layer: int) -> Module:
        experts = Experts(self.config, self.config.intermediate)
        return RoutedMLP(self.config, experts, Routing(int(self.config["num_experts_per_tok"])))
