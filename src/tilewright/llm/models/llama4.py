"""Llama 4 (text): attention in chunks, layers without rotation, mixtures of experts. Meta AI, 2025."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..cache import Cache
from ..config import Config
from ..experts import Experts, RoutedMLP, Routing
from ..layers import Attention, GatedMLP, Rotations
from ..norms import FixedRMSNorm
from .base import CausalLM, register, rotates


class Llama4Attention(Attention):
    """Layers that rotate may normalize queries and keys after it; the others scale queries by their position
    (Nakanishi, "Scalable-Softmax", 2025).
    """

    def __init__(self, config: Config, layer: int) -> None:
        turns = rotates(config, layer)
        unit = turns and config.get("use_qk_norm", True)
        super().__init__(
            config, layer, bias=bool(config.get("attention_bias", False)), rotates=turns,
            norm=(lambda size: FixedRMSNorm(size, config.eps)) if unit else None, normalized="rotated heads",
        )  # fmt: skip
        self.tempered = not turns and bool(config.get("attn_temperature_tuning", True))
        self.floor, self.slope = float(config.get("floor_scale", 8192)), float(config.get("attn_scale", 0.1))

    def placed(self, q: Tensor, k: Tensor, cache: Cache, rotations: Rotations) -> tuple[Tensor, Tensor]:
        q, k = super().placed(q, k, cache, rotations)
        if self.tempered:
            steps = tnp.floor((tnp.astype(cache.positions, "float32") + 1.0) / self.floor)
            factor = tnp.log(steps + 1.0) * self.slope + 1.0
            q = tnp.astype(q * factor[:, :, None, None], q.dtype)
        return q, k


@register("llama4_text", "llama4")
class Llama4(CausalLM):
    """Llama 4, also as the language model of checkpoints with a vision model."""

    interleaved = True
    layer_kinds = ("full_attention", "chunked_attention")
    renamed: ClassVar[Mapping[str, str]] = {
        r"^language_model\.": "",
        r"\.feed_forward\.": ".mlp.",
        r"\.mlp\.router\.": ".mlp.gate.",
        r"\.shared_expert\.": ".shared_experts.",
        r"\.experts\.(gate_up_proj|down_proj)$": r".experts.\1.weight.T",
    }
    left_out: ClassVar[Mapping[str, str]] = {r"^(vision_model|multi_modal_projector)\.": "images"}

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        every = int(config.get("interleave_moe_layer_step", 1))
        types = [
            "chunked_attention" if rotates(config, k) else "full_attention" for k in range(config.layers)
        ]
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
            "rope_theta": 5e5, "head_dim": 128, "attention_chunk_size": 8192, "layer_types": types,
            "moe_layers": list(range(every - 1, config.layers, every)), "num_experts_per_tok": 1,
        }  # fmt: skip

    def attention(self, layer: int) -> Module:
        return Llama4Attention(self.config, layer)

    def mlp(self, layer: int) -> Module:
        config = self.config
        if layer not in config["moe_layers"]:
            return GatedMLP(config, int(config.get("intermediate_size_mlp", 16384)))
        routing = Routing(int(config["num_experts_per_tok"]), normalized=False, scores="sigmoid")
        experts = Experts(config, config.intermediate, joint=True)
        return RoutedMLP(config, experts, routing, shared=GatedMLP(config), scales_inputs=True)
