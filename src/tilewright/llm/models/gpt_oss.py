"""GPT-OSS: attention sinks, experts with biases and clipped gates. OpenAI, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ...frontends.nn import functional as F
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..config import Config
from ..experts import Experts, RoutedMLP, Routing
from ..layers import Attention
from .base import CausalLM, alternating, register


class ClippedExperts(Experts):
    """Experts with biases, whose joint projection has the columns of gate and the other in turn.

    They compute ``(up + 1) gate sigmoid(alpha gate)`` of limited values.
    """

    def __init__(self, config: Config, width: int) -> None:
        super().__init__(config, width, joint=True)
        count = int(config["num_experts"])
        self.gate_up_proj_bias = uniform((count, 2 * width), config.hidden**-0.5)
        self.down_proj_bias = uniform((count, config.hidden), width**-0.5)
        self.alpha = float(config.get("swiglu_alpha", 1.702))
        self.limit = float(config.get("swiglu_limit", 7.0))

    def transformed(self, x: Tensor, index: Tensor) -> Tensor:
        y = (self.gate_up_proj(x, index) + self.gate_up_proj_bias[index]).reshape(x.shape[0], self.width, 2)
        gate, up = tnp.minimum(y[:, :, 0], self.limit), tnp.clip(y[:, :, 1], -self.limit, self.limit)
        y = (up + 1.0) * (gate * F.sigmoid(gate * self.alpha))
        result: Tensor = self.down_proj(y, index) + self.down_proj_bias[index]
        return result


@register("gpt_oss")
class GptOss(CausalLM):
    renamed: ClassVar[Mapping[str, str]] = {
        r"\.experts\.(gate_up_proj|down_proj)$": r".experts.\1.weight.T",
        r"\.mlp\.router\.": ".mlp.gate.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        scaling = {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        }  # fmt: skip
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
            "sliding_window": 128, "layer_types": alternating(2, config.layers), "rope_theta": 150000.0,
            "rope_scaling": scaling, "attention_bias": True, "head_dim": 64,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        return Attention(self.config, layer, bias=bool(self.config["attention_bias"]), sinks=True)

    def mlp(self, layer: int) -> Module:
        experts = ClippedExperts(self.config, self.config.intermediate)
        return RoutedMLP(self.config, experts, Routing(int(self.config["num_experts_per_tok"])), bias=True)
