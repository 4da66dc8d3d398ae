"""ModernBERT: local and global layers with rotary embedding, normalized before each block (Warner et al.,
2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Embedding, LayerNorm, Module
from ...frontends.trace import Tensor
from ..config import Config
from ..layers import ACTIVATIONS, Block, JointAttention, JointMLP, RotaryEmbeddingByKind
from .base import register
from .encoder import Classifier, Encoder


class ModernEmbeddings(Module):
    """The normalized vectors of tokens.

    Args:
        config: The configuration of the model.
        norm: The normalization.
    """

    def __init__(self, config: Config, norm: Module) -> None:
        super().__init__()
        self.tok_embeddings, self.norm = Embedding(config.vocabulary, config.hidden), norm

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        """Return [batch, n, hidden] for `tokens` [batch, n]; the others are not used."""
        result: Tensor = self.norm(self.tok_embeddings(tokens))
        return result


class Unchanged(Module):
    """Gives its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x


@register("modernbert")
class ModernBert(Encoder):
    renamed: ClassVar[Mapping[str, str]] = {
        r"^model\.": "",
        r"\.attn\.Wqkv\.": ".self_attn.qkv_proj.",
        r"\.attn\.Wo\.": ".self_attn.o_proj.",
        r"\.attn_norm\.": ".input_layernorm.",
        r"\.mlp_norm\.": ".post_attention_layernorm.",
        r"\.mlp\.Wi\.": ".mlp.gate_up_proj.",
        r"\.mlp\.Wo\.": ".mlp.down_proj.",
        r"^final_norm\.": "norm.",
        r"^head\.": "classifier.",
        r"^classifier\.(weight|bias)$": r"classifier.output.\1",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        period = int(config.get("global_attn_every_n_layers", 3))
        kinds = ["sliding_attention" if k % period else "full_attention" for k in range(config.layers)]
        common = {"rope_type": "default", **(config.get("rope_scaling") or {})}
        return {
            "hidden_act": "gelu", "norm_eps": 1e-5, "max_position_embeddings": 8192, "layer_types": kinds,
            # half of the window before a token, half of it after
            "sliding_window": int(config.get("local_attention", 128)) // 2 + 1,
            "rope_parameters": {
                "full_attention": {**common, "rope_theta": config.get("global_rope_theta", 160000.0)},
                "sliding_attention": {**common, "rope_theta": config.get("local_rope_theta", 10000.0)},
            },
        }  # fmt: skip

    def make_embeddings(self) -> Module:
        return ModernEmbeddings(self.config, self.make_norm())

    def make_norm(self) -> Module:
        return LayerNorm(self.config.hidden, self.config.eps, bias=bool(self.config.get("norm_bias", False)))

    def attention(self, layer: int) -> Module:
        return JointAttention(self.config, layer, bias=bool(self.config.get("attention_bias", False)))

    def mlp(self, layer: int) -> Module:
        return JointMLP(self.config)

    def block(self, layer: int) -> Module:
        block = Block(self.attention(layer), self.mlp(layer), self.make_norm)
        if not layer:  # the embeddings are normalized already
            block.input_layernorm = Unchanged()
        return block

    def last_norm(self) -> Module:
        return self.make_norm()

    def make_rotary(self) -> Module:
        return RotaryEmbeddingByKind(self.config)

    def make_classifier(self) -> Module:
        return Classifier(
            self.config,
            ACTIVATIONS[self.config.get("classifier_activation", "gelu")],
            pooling=self.config.get("classifier_pooling", "cls"),
            bias=bool(self.config.get("classifier_bias", False)),
            norm=self.make_norm,
        )
