"""StarCoder 2: layer normalization, biases, a feed-forward block without a gate. Lozhkov et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Module
from ..config import Config
from ..layers import MLP, Attention
from .base import CausalLM, register


@register("starcoder2")
class Starcoder2(CausalLM):
    norm_class = LayerNorm
    renamed: ClassVar[Mapping[str, str]] = {r"\.c_fc\.": ".up_proj.", r"\.c_proj\.": ".down_proj."}

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096}

    @property
    def bias(self) -> bool:
        return bool(self.config.get("use_bias", True))

    def attention(self, layer: int) -> Module:
        return Attention(self.config, layer, bias=self.bias)

    def mlp(self, layer: int) -> Module:
        return MLP(self.config, self.bias)
