"""GPT-NeoX and Pythia: partial rotary embedding, attention parallel to the feed-forward block. Black et al.,
2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Module
from ..config import Config
from ..layers import MLP, Block, JointHeads, ParallelBlock
from .base import CausalLM, register


@register("gpt_neox")
class GPTNeoX(CausalLM):
    norm_class = LayerNorm
    grouped = False
    renamed: ClassVar[Mapping[str, str]] = {
        r"^gpt_neox\.": "model.",
        r"\.embed_in\.": ".embed_tokens.",
        r"^embed_out\.": "lm_head.",
        r"\.final_layer_norm\.": ".norm.",
        r"\.attention\.dense\.": ".attention.o_proj.",
        r"\.attention\.query_key_value\.": ".attention.qkv_proj.",
        r"\.attention\.": ".self_attn.",
        r"\.dense_h_to_4h\.": ".up_proj.",
        r"\.dense_4h_to_h\.": ".down_proj.",
    }
    ignored = (r"\.attention\.(masked_)?bias$", r"rotary_emb\.")

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "hidden_act": "gelu",
            "max_position_embeddings": 2048,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        return JointHeads(self.config, layer, bias=bool(self.config.get("attention_bias", True)))

    def block(self, config: Config, layer: int) -> Module:
        attention, mlp, norm = self.attention(layer), MLP(config), lambda: self.norm(config.hidden)
        if config.get("use_parallel_residual", True):
            return ParallelBlock(attention, mlp, norm, 2)
        return Block(attention, mlp, norm)
