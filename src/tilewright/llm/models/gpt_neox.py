"""GPT-NeoX and Pythia: partial rotary embedding, attention parallel to the feed-forward block. Black et al.,
2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Linear, Module
from ...frontends.trace import Tensor
from ..cache import Cache
from ..config import Config
from ..layers import MLP, Attention, Block, Rotation
from .base import CausalLM, register


class NeoXAttention(Attention):
    """Attention whose joint projection holds query, key and value of one head after the other."""

    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        self.query_key_value = Linear(config.hidden, 3 * config.hidden, bias)
        self.o_proj = Linear(config.hidden, config.hidden, out_bias)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.query_key_value(x).reshape(*x.shape[:2], self.heads, 3 * self.head_dim)
        d = self.head_dim
        return y[..., :d], y[..., d : 2 * d], y[..., 2 * d :]


class ParallelBlock(Block):
    def forward(self, x: Tensor, cache: Cache, rotation: Rotation | None) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cache, rotation)
        result: Tensor = x + attended + self.mlp(self.post_attention_layernorm(x))
        return result


@register("gpt_neox")
class GPTNeoX(CausalLM):
    renamed: ClassVar[Mapping[str, str]] = {
        r"^gpt_neox\.": "model.",
        r"\.embed_in\.": ".embed_tokens.",
        r"^embed_out\.": "lm_head.",
        r"\.final_layer_norm\.": ".norm.",
        r"\.attention\.dense\.": ".attention.o_proj.",
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

    def norm(self, size: int) -> Module:
        return LayerNorm(size, self.config.eps)

    def block(self, config: Config, layer: int) -> Module:
        kind = ParallelBlock if config.get("use_parallel_residual", True) else Block
        attention = NeoXAttention(config, layer, bias=bool(config.get("attention_bias", True)))
        return kind(attention, MLP(config), lambda: self.norm(config.hidden))
