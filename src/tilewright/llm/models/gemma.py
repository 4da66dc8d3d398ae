"""Gemma 1, 2 and 3 (text). Gemma Team, 2024 and 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ...frontends.trace import Tensor
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import Attention, Block, RotaryEmbeddingByKind
from ..norms import OffsetRMSNorm
from .base import CausalLM, alternating, register


class Scaled(CausalLM):
    """A model with scaled embeddings, and normalizations that scale by their weight plus 1."""

    norm_class = OffsetRMSNorm

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        return super().embed(tokens, cache) * self.config.hidden**0.5


@register("gemma")
class Gemma(Scaled):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "rms_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256,
            "max_position_embeddings": 8192,
        }  # fmt: skip


class NormalizedTwice(Scaled):
    """Normalizes inputs and results of blocks; logits and scores may be capped."""

    heads_normalized = False

    def attention(self, layer: int) -> Module:
        return Attention(
            self.config, layer, bias=bool(self.config.get("attention_bias", False)),
            norm=self.norm if self.heads_normalized else None,
            scale=float(self.config["query_pre_attn_scalar"]) ** -0.5,
            softcap=self.config.get("attn_logit_softcapping"),
        )  # fmt: skip

    def block(self, config: Config, layer: int) -> Module:
        norm = lambda: self.norm(config.hidden)  # noqa: E731
        return Block(self.attention(layer), self.mlp(layer), norm, place="both")

    def make_rotary(self) -> Module:
        return RotaryEmbeddingByKind(self.config)


_COMMON = {
    "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip


@register("gemma2")
class Gemma2(NormalizedTwice):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        caps = {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
        return {
            **_COMMON,
            **caps,
            "max_position_embeddings": 8192,
            "layer_types": alternating(2, config.layers),
        }


@register("gemma3_text", "gemma3")
class Gemma3(NormalizedTwice):
    """Gemma 3, also as the language model of checkpoints with a vision model, and EmbeddingGemma."""

    heads_normalized = True
    renamed: ClassVar[Mapping[str, str]] = {
        r"^(model\.)?language_model\.(model\.)?(?!lm_head)": "model.",
        r"^language_model\.lm_head": "lm_head",
    }
    ignored: ClassVar[tuple[str, ...]] = (r"rotary_emb\.",)
    left_out: ClassVar[Mapping[str, str]] = {r"(^|\.)(vision_tower|multi_modal_projector)\.": "images"}

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        slow = {
            "rope_type": "default",
            "rope_theta": config.get("rope_theta", 1e6),
            **config.get("rope_scaling", {}),
        }
        fast = {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 1e4)}
        types = alternating(int(config.get("sliding_window_pattern", 6)), config.layers)
        ropes = {"full_attention": slow, "sliding_attention": fast}
        return {
            **_COMMON,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "layer_types": types,
            "rope_parameters": ropes,
        }

    @classmethod
    def complete(cls, config: Config) -> Config:
        result = super().complete(config)
        if not result.get("use_bidirectional_attention", False):
            return result
        # The file has the size of the whole window, half of which lies before a token.
        return result.with_values(sliding_window=int(result["sliding_window"]) // 2 + 1)

    @property
    def bidirectional(self) -> bool:
        return bool(self.config.get("use_bidirectional_attention", False))
