"""Model definitions, one file for each family, selected by the `model_type` of config.json.

See docs/extending/adding-a-language-model.md.
"""

from __future__ import annotations

from .base import CausalLM, Destination, LanguageModel, build, families, register

__all__ = ["CausalLM", "LanguageModel", "Destination", "build", "families", "register"]
