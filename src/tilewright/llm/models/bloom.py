"""BLOOM: ALiBi instead of rotary embedding, normalized embeddings. Le Scao et al., 2022."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Module
from ...frontends.trace import Tensor
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import MLP, JointHeads, alibi_slopes
from .base import CausalLM, register
from .falcon import MEGATRON


@register("bloom")
class Bloom(CausalLM):
    norm_class = LayerNorm
    grouped = False
    renamed: ClassVar[Mapping[str, str]] = {
        **MEGATRON,
        r"^model\.word_embeddings_layernorm\.": "model.embed_norm.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "layer_norm_epsilon": 1e-5, "intermediate_size": 4 * config.hidden, "hidden_act": "gelu_new",
            "max_position_embeddings": int(config.get("seq_length", 2048)),
        }  # fmt: skip

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model.embed_norm = self.norm(config.hidden)

    def attention(self, layer: int) -> Module:
        return JointHeads(self.config, layer, bias=True, slopes=alibi_slopes(self.config.heads))

    def mlp(self, layer: int) -> Module:
        return MLP(self.config)

    def make_rotary(self) -> None:
        return None

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        result: Tensor = self.model.embed_norm(super().embed(tokens, cache))
        return result
