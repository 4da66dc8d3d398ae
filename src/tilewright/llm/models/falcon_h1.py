"""Falcon-H1: attention and Mamba 2 in parallel in each layer, with fixed multipliers. Falcon Team, 2025."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ...frontends.trace import Tensor
from ..cache import Cache
from ..config import Config
from ..layers import Attention, GatedMLP, Rotations
from ..state_space import GatedNorm, Mamba2
from .base import CausalLM, register


class ScaledAttention(Attention):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer, bias=bool(config.get("attention_bias", False)))
        self.key_scale = float(config.get("key_multiplier", 1.0))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x)
        return q, k * self.key_scale, v


class ScaledMLP(GatedMLP):
    def __init__(self, config: Config) -> None:
        super().__init__(config, bias=bool(config.get("mlp_bias", False)))
        self.gate_scale, self.down_scale = config.get("mlp_multipliers", (1.0, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = (
            self.down_proj(self.activation(self.gate_proj(x) * self.gate_scale) * self.up_proj(x))
            * self.down_scale
        )
        return result


def mixer(config: Config, layer: int) -> Mamba2:
    channels = int(config.get("mamba_d_ssm", config.get("mamba_expand", 2) * config.hidden))
    heads, groups = int(config.get("mamba_n_heads", 128)), int(config.get("mamba_n_groups", 1))
    gate_last = bool(config.get("mamba_norm_before_gate", True))
    norm = GatedNorm(channels, groups, config.eps, gate_last) if config.get("mamba_rms_norm", False) else None
    return Mamba2(
        config.hidden, heads, channels // heads, groups, int(config.get("mamba_d_state", 256)),
        int(config.get("mamba_d_conv", 4)), layer,
        norm=norm,
        bias=bool(config.get("mamba_proj_bias", False)), conv_bias=bool(config.get("mamba_conv_bias", True)),
        out_bias=bool(config.get("projectors_bias", False)),
        limit=config.get("time_step_limit", (0.0, float("inf"))),
        scales=config.get("ssm_multipliers", (1.0,) * 5),
    )  # fmt: skip


class HybridBlock(Module):
    def __init__(self, config: Config, layer: int, norm: Callable[[int], Module]) -> None:
        super().__init__()
        self.self_attn, self.mamba, self.feed_forward = (
            ScaledAttention(config, layer),
            mixer(config, layer),
            ScaledMLP(config),
        )
        self.input_layernorm, self.pre_ff_layernorm = norm(config.hidden), norm(config.hidden)
        names = (
            "attention_in_multiplier",
            "attention_out_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        )
        self.scales = [float(config.get(name, 1.0)) for name in names]

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        into_attention, of_attention, into_mamba, of_mamba = self.scales
        y = self.input_layernorm(x)
        x = (
            x
            + of_mamba * self.mamba(y * into_mamba, cache)
            + of_attention * self.self_attn(y * into_attention, cache, rotations)
        )
        result: Tensor = x + self.feed_forward(self.pre_ff_layernorm(x))
        return result


@register("falcon_h1")
class FalconH1(CausalLM):
    has_state: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, str]] = {r"\.final_layernorm\.": ".norm."}

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
        }

    def block(self, config: Config, layer: int) -> Module:
        return HybridBlock(config, layer, self.norm)
