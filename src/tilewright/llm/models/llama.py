"""Llama 1 to 3. Touvron et al., 2023; Dubey et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import Config
from .base import CausalLM, register


@register("llama")
class Llama(CausalLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}
