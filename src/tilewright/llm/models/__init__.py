"""Model definitions, one file a family, found by the `model_type` of config.json: see docs/llm/adding-a-model.md."""

from __future__ import annotations

from .base import CausalLM, LanguageModel, Target, build, families, register

__all__ = ["CausalLM", "LanguageModel", "Target", "build", "families", "register"]
