"""Seed-OSS: Llama with biases of queries, keys and values. ByteDance, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Module
from ..config import Config
from ..layers import Attention
from .base import CausalLM, register


@register("seed_oss")
class SeedOss(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 524288,
            "attention_bias": True, "head_dim": 128,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        bias, out = self.config["attention_bias"], self.config.get("attention_out_bias", False)
        return Attention(self.config, layer, bias=bool(bias), out_bias=bool(out))
