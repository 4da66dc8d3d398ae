"""EuroBERT: Llama whose tokens see each other in both directions. Boizard et al., 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import CompileError
from ..config import Config
from .base import CausalLM, register


@register("eurobert")
class EuroBert(CausalLM):
    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, r"^lm_head\.")

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"rms_norm_eps": 1e-5, "max_position_embeddings": 8192}

    def __init__(self, config: Config) -> None:
        if config.classifies:
            raise CompileError("classifiers of EuroBERT are not supported; its embeddings are")
        super().__init__(config)

    @property
    def bidirectional(self) -> bool:
        return True
