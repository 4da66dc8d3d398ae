"""Gemma 2 and 3 (text). Gemma Team, 2024 and 2025."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...errors import CompileError
from ...frontends.nn import Module, RMSNorm
from ...frontends.nn import functional as F
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import Attention, GatedMLP, RotaryEmbedding, Rotation
from .base import CausalLM, register


class GemmaNorm(RMSNorm):
    """RMS normalization that scales by its weight plus 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight + 1.0, eps=self.eps)


class GemmaBlock(Module):
    """A layer that normalizes before and after attention and before and after the feed-forward block.

    `kind` selects the layer's rotations.
    """

    def __init__(self, attention: Module, mlp: Module, norm: Callable[[], Module], kind: str) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.kind = attention, mlp, kind
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm()

    def forward(self, x: Tensor, cache: Cache, rotation: Mapping[str, Rotation]) -> Tensor:
        x = x + self.post_attention_layernorm(
            self.self_attn(self.input_layernorm(x), cache, rotation[self.kind])
        )
        result: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return result


class RotaryEmbeddingByKind(Module):
    """Computes rotations for each kind of layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.kinds = sorted({config.layer_type(k) for k in range(config.layers)})
        for kind in self.kinds:
            setattr(self, kind, RotaryEmbedding(config.rope(kind)))

    def forward(self, positions: Tensor) -> dict[str, Rotation]:
        return {kind: getattr(self, kind)(positions) for kind in self.kinds}


class Gemma(CausalLM):
    """A model with scaled embeddings, and optionally soft-capped logits."""

    heads_normalized = False

    def __init__(self, config: Config) -> None:
        if config.get("use_bidirectional_attention"):
            raise CompileError(
                f"{config.model_type} with use_bidirectional_attention is not supported: attention is causal "
                "here"
            )
        super().__init__(config)
        self.scale, self.softcap = config.hidden**0.5, config.get("final_logit_softcapping")

    def norm(self, size: int) -> Module:
        return GemmaNorm(size, self.config.eps)

    def block(self, config: Config, layer: int) -> Module:
        attention = Attention(
            config, layer, bias=bool(config.get("attention_bias", False)),
            norm=self.norm if self.heads_normalized else None,
            scale=float(config["query_pre_attn_scalar"]) ** -0.5,
            softcap=config.get("attn_logit_softcapping"),
        )  # fmt: skip
        return GemmaBlock(
            attention, GatedMLP(config), lambda: self.norm(config.hidden), config.layer_type(layer)
        )

    def make_rotary(self) -> Module:
        return RotaryEmbeddingByKind(self.config)

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        return super().embed(tokens, cache) * self.scale

    def head(self, x: Tensor) -> Tensor:
        y = super().head(x)
        result: Tensor = y if self.softcap is None else self.softcap * tnp.tanh(y / self.softcap)
        return result


_COMMON = {
    "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip


def _every(period: int, layers: int) -> list[str]:
    """Return layer types: sliding attention, except for the last layer of each `period`."""
    return ["sliding_attention" if (k + 1) % period else "full_attention" for k in range(layers)]


@register("gemma2")
class Gemma2(Gemma):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        caps = {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
        return {**_COMMON, **caps, "max_position_embeddings": 8192, "layer_types": _every(2, config.layers)}


@register("gemma3_text", "gemma3")
class Gemma3(Gemma):
    """Gemma 3, also as the language model of checkpoints with a vision model."""

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
        types = _every(int(config.get("sliding_window_pattern", 6)), config.layers)
        ropes = {"full_attention": slow, "sliding_attention": fast}
        return {
            **_COMMON,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "layer_types": types,
            "rope_parameters": ropes,
        }
