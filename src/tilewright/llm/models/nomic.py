"""Nomic's BERT (Nussbaum et al., 2024) and GTE (Zhang et al., 2024): encoders with rotary embedding and gated
feed-forward blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ..config import Config
from ..layers import GatedMLP, JointAttention, JointMLP, RotaryEmbedding
from .base import register
from .encoder import Embeddings, Encoder


@register("nomic_bert")
class NomicBert(Encoder):
    renamed: ClassVar[Mapping[str, str]] = {
        r"^(bert|nomic_bert)\.": "",
        r"^encoder\.layers\.": "layers.",
        r"^emb_ln\.": "embeddings.LayerNorm.",
        r"\.attn\.Wqkv\.": ".self_attn.qkv_proj.",
        r"\.attn\.out_proj\.": ".self_attn.o_proj.",
        r"\.fc11\.": ".up_proj.",
        r"\.fc12\.": ".gate_proj.",
        r"\.fc2\.": ".down_proj.",
        r"\.norm1\.": ".attention_norm.",
        r"\.norm2\.": ".mlp_norm.",
        r"^pooler\.dense\.": "classifier.dense.",
        r"^classifier\.(weight|bias)$": r"classifier.output.\1",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "hidden_act": "silu", "layer_norm_eps": 1e-12, "max_position_embeddings": 2048,
            "type_vocab_size": 2, "rope_theta": 1000.0,
        }  # fmt: skip

    @classmethod
    def complete(cls, config: Config) -> Config:
        # The first files name the gated block by its kind, as an activation.
        if config.get("hidden_act") == "swiglu":
            config = config.with_values(hidden_act="silu")
        return super().complete(config)

    def make_embeddings(self) -> Module:
        return Embeddings(self.config, 0, self.segments)

    def make_rotary(self) -> Module:
        return RotaryEmbedding(self.config.rope())

    def attention(self, layer: int) -> Module:
        return JointAttention(self.config, layer, bias=bool(self.config.get("qkv_proj_bias", False)))

    def mlp(self, layer: int) -> Module:
        return GatedMLP(self.config)


@register("gte", "new")
class Gte(NomicBert):
    """GTE 1.5 and its multilingual model, whose first files call themselves ``new``."""

    renamed: ClassVar[Mapping[str, str]] = {
        r"^(new|gte)\.": "",
        r"^encoder\.layer\.": "layers.",
        r"\.attention\.": ".self_attn.",
        r"\.up_gate_proj\.": ".gate_up_proj.",
        r"\.attn_ln\.": ".attention_norm.",
        r"\.mlp_ln\.": ".mlp_norm.",
        r"^pooler\.dense\.": "classifier.dense.",
        r"^classifier\.(weight|bias)$": r"classifier.output.\1",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            **super().defaults(config), "hidden_act": "gelu", "max_position_embeddings": 8192,
            "type_vocab_size": 1, "rope_theta": 160000.0,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        return JointAttention(self.config, layer, bias=True)

    def mlp(self, layer: int) -> Module:
        return JointMLP(self.config, gate_first=False, out_bias=True)
