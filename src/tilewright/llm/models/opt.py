"""OPT: learned positions, layer normalization, biases. Zhang et al., 2022."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import CompileError
from ...frontends.nn import Embedding, LayerNorm, Module
from ...frontends.trace import Tensor
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import MLP, Attention
from .base import CausalLM, register

FIRST = 2
"""The row of the first position in the table of positions."""


@register("opt")
class OPT(CausalLM):
    norm_class = LayerNorm
    grouped = False
    renamed: ClassVar[Mapping[str, str]] = {
        # Some checkpoints omit the prefix.
        r"^(model\.)?decoder\.": "model.",
        r"^model\.embed_positions\.": "model.positions.",
        r"^model\.final_layer_norm\.": "model.norm.",
        r"\.self_attn_layer_norm\.": ".input_layernorm.",
        r"\.final_layer_norm\.": ".post_attention_layernorm.",
        r"\.out_proj\.": ".o_proj.",
        r"\.fc1\.": ".mlp.up_proj.",
        r"\.fc2\.": ".mlp.down_proj.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "layer_norm_eps": 1e-5, "hidden_act": "relu", "max_position_embeddings": 2048,
            "intermediate_size": config["ffn_dim"],
        }  # fmt: skip

    def __init__(self, config: Config) -> None:
        for key, right in {
            "do_layer_norm_before": True, "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False, "word_embed_proj_dim": config.hidden,
        }.items():  # fmt: skip
            if (value := config.get(key, right)) != right:
                raise CompileError(f"config.json of an opt: {key!r} is {value!r}; {right!r} is supported")
        super().__init__(config)
        self.model.positions = Embedding(int(config["max_position_embeddings"]) + FIRST, config.hidden)

    def attention(self, layer: int) -> Module:
        return Attention(self.config, layer, bias=bool(self.config.get("enable_bias", True)))

    def mlp(self, layer: int) -> Module:
        return MLP(self.config, bool(self.config.get("enable_bias", True)))

    def make_rotary(self) -> None:
        return None

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        return super().embed(tokens, cache) + self.model.positions(cache.positions + FIRST)
