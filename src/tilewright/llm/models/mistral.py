"""Mistral: Llama with a sliding window in every layer. Jiang et al., 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import Config
from .base import CausalLM, register


@register("mistral")
class Mistral(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        }
