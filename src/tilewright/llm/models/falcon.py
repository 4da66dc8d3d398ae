"""Falcon: joint projections, parallel blocks, rotary embedding or ALiBi. Almazrouei et al., 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Module
from ..config import Config
from ..layers import MLP, Block, JointHeads, ParallelBlock, alibi_slopes
from .base import CausalLM, register

MEGATRON = {
    r"^(transformer\.)?(h|word_embeddings|word_embeddings_layernorm|ln_f)\.": r"model.\2.",
    r"^model\.h\.": "model.layers.",
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"^model\.ln_f\.": "model.norm.",
    r"\.self_attention\.query_key_value\.": ".self_attn.qkv_proj.",
    r"\.self_attention\.dense\.": ".self_attn.o_proj.",
    r"\.dense_h_to_4h\.": ".up_proj.",
    r"\.dense_4h_to_h\.": ".down_proj.",
}
"""Renames what checkpoints of Falcon and BLOOM have in common."""


def joined_norms(config: Config) -> int:
    """The number of normalizations of a layer whose blocks are parallel; 0: they are not parallel."""
    if config.get("new_decoder_architecture", False):
        return int(config.get("num_ln_in_parallel_attn", 2))
    return 1 if config.get("parallel_attn", True) else 0


@register("falcon")
class Falcon(CausalLM):
    norm_class = LayerNorm
    renamed: ClassVar[Mapping[str, str]] = {
        **MEGATRON,
        r"\.ln_attn\.": ".input_layernorm.",
        r"\.ln_mlp\.": ".post_attention_layernorm.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "layer_norm_epsilon": 1e-5, "intermediate_size": 4 * config.hidden, "hidden_act": "gelu",
            "max_position_embeddings": 2048,
        }  # fmt: skip

    @classmethod
    def complete(cls, config: Config) -> Config:
        heads = config.get("num_kv_heads", config.heads)
        if not config.get("new_decoder_architecture", False):
            heads = 1 if config.get("multi_query", True) else config.heads
        return super().complete(config).with_values(num_key_value_heads=heads)

    def attention(self, layer: int) -> Module:
        slopes = None
        if self.config.get("alibi", False):
            slopes = alibi_slopes(self.config.heads) * self.config.head_dim**-0.5
        return JointHeads(self.config, layer, bias=bool(self.config.get("bias", False)), slopes=slopes)

    def block(self, config: Config, layer: int) -> Module:
        attention, mlp = self.attention(layer), MLP(config, bool(config.get("bias", False)))
        norm, norms = lambda: self.norm(config.hidden), joined_norms(config)
        return ParallelBlock(attention, mlp, norm, norms) if norms else Block(attention, mlp, norm)

    def make_rotary(self) -> Module | None:
        return None if self.config.get("alibi", False) else super().make_rotary()
