"""EXAONE 4: normalizes results of blocks; layers without a window do not rotate. LG AI Research, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frontends.nn import Module
from ..config import Config
from ..layers import Attention, Block
from .base import CausalLM, alternating, register


@register("exaone4")
class Exaone4(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        # A number of layers, or a letter for each: LLLG.
        pattern = config.values.get("sliding_window_pattern") or 4
        period = len(pattern) if isinstance(pattern, str) else int(pattern)
        window = config.values.get("sliding_window", 4096)
        types = alternating(period, config.layers) if window else ["full_attention"] * config.layers
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
            "sliding_window": 4096, "layer_types": types,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        windows = self.config.get("sliding_window") is not None
        turns = not windows or self.config.window(layer) is not None
        return Attention(self.config, layer, norm=self.norm, rotates=turns)

    def block(self, config: Config, layer: int) -> Module:
        norm = lambda: self.norm(config.hidden)  # noqa: E731
        return Block(self.attention(layer), self.mlp(layer), norm, place="after")
