"""LFM 2: gated convolutions over few tokens, attention in some layers. Liquid AI, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Linear, Module
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..cache import Cache
from ..config import Config
from ..layers import Attention, GatedMLP, Rotations
from ..state_space import CausalConv
from .base import CausalLM, register


class ShortConv(Module):
    """``o(c * conv(b * x))``, where b, c and x are projections of the input."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.layer, bias = layer, bool(config.get("conv_bias", False))
        self.in_proj = Linear(config.hidden, 3 * config.hidden, bias)
        self.conv = CausalConv(config.hidden, int(config.get("conv_L_cache", 3)), bias)
        self.o_proj = Linear(config.hidden, config.hidden, bias)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations = None) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]; `rotations` have no effect."""
        hidden = x.shape[-1]
        b, c, x = tnp.split(self.in_proj(x), [hidden, 2 * hidden], -1)
        result: Tensor = self.o_proj(c * self.conv(b * x, cache, self.layer))
        return result


def adjusted(config: Config) -> int:
    """The width of feed-forward blocks, which files give before an adjustment."""
    width = config.intermediate
    if config.get("block_auto_adjust_ff_dim", True):
        every = int(config.get("block_multiple_of", 256))
        width = int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = every * ((width + every - 1) // every)
    return width


@register("lfm2")
class Lfm2(CausalLM):
    has_state = True
    layer_kinds = ("full_attention", "conv")
    state_kinds = ("conv",)
    renamed: ClassVar[Mapping[str, str]] = {
        r"\.layers\.(\d+)\.conv\.": r".layers.\1.self_attn.",
        r"\.out_proj\.": ".o_proj.",
        r"\.(q|k)_layernorm\.": r".\1_norm.",
        r"\.operator_norm\.": ".input_layernorm.",
        r"\.ffn_norm\.": ".post_attention_layernorm.",
        r"\.feed_forward\.w1\.": ".mlp.gate_proj.",
        r"\.feed_forward\.w2\.": ".mlp.down_proj.",
        r"\.feed_forward\.w3\.": ".mlp.up_proj.",
        r"^model\.embedding_norm\.": "model.norm.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        attends = config.get("full_attn_idxs", range(config.layers))
        types = ["full_attention" if k in attends else "conv" for k in range(config.layers)]
        return {
            "norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 128000, "rope_theta": 1e6,
            "tie_word_embeddings": config.get("tie_embedding", True), "layer_types": types,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        if self.config.layer_type(layer) == "conv":
            return ShortConv(self.config, layer)
        return Attention(self.config, layer, norm=self.norm)

    def mlp(self, layer: int) -> Module:
        return GatedMLP(self.config, adjusted(self.config))
