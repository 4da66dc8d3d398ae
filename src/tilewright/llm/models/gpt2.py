"""GPT-2: learned positions, layer normalization, matrices stored transposed. Radford et al., 2019."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Embedding, LayerNorm, Module
from ...frontends.trace import Tensor
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import MLP, JointAttention
from .base import CausalLM, register


@register("gpt2")
class GPT2(CausalLM):
    norm_class = LayerNorm
    grouped = False
    renamed: ClassVar[Mapping[str, str]] = {
        # Some checkpoints omit the prefix.
        r"^(transformer\.)?(h|wte|wpe|ln_f)\.": r"model.\2.",
        r"\.(c_attn|c_proj|c_fc)\.weight$": r".\1.weight.T",
        r"\.c_attn\.": ".qkv_proj.",
        r"\.attn\.c_proj\.": ".attn.o_proj.",
        r"\.c_fc\.": ".up_proj.",
        r"\.c_proj\.": ".down_proj.",
        r"\.attn\.": ".self_attn.",
        r"\.h\.": ".layers.",
        r"\.ln_1\.": ".input_layernorm.",
        r"\.ln_2\.": ".post_attention_layernorm.",
        r"\.wte\.": ".embed_tokens.",
        r"\.wpe\.": ".positions.",
        r"\.ln_f\.": ".norm.",
    }
    ignored = (r"\.attn\.(masked_)?bias$",)

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "intermediate_size": 4 * config.hidden,
            "hidden_act": "gelu_new",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 1024,
        }

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model.positions = Embedding(int(config["max_position_embeddings"]), config.hidden)

    def attention(self, layer: int) -> Module:
        scale = self.config.head_dim**-0.5 if self.config.get("scale_attn_weights", True) else 1.0
        scale /= layer + 1 if self.config.get("scale_attn_by_inverse_layer_idx", False) else 1
        return JointAttention(self.config, layer, bias=True, scale=scale)

    def mlp(self, layer: int) -> Module:
        return MLP(self.config)

    def make_rotary(self) -> None:
        return None

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        return super().embed(tokens, cache) + self.model.positions(cache.positions)
