"""Mamba (Gu & Dao, 2023) and Mamba 2 (Dao & Gu, 2024): a state space in each layer, no attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ...frontends.trace import Tensor
from ..cache import Cache
from ..config import Config
from ..layers import Rotations
from ..state_space import GatedNorm, Mamba, Mamba2, rank_of
from .base import CausalLM, register

UNLIMITED = 1 << 20
"""Context in tokens; these models have no length limit of their own."""


class MambaBlock(Module):
    def __init__(self, norm: Module, mixer: Module) -> None:
        super().__init__()
        self.norm, self.mixer = norm, mixer

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        result: Tensor = x + self.mixer(self.norm(x), cache)
        return result


@register("mamba")
class MambaLM(CausalLM):
    has_state: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, str]] = {
        r"^backbone\.": "model.",
        r"\.embeddings?\.": ".embed_tokens.",
        r"\.norm_f\.": ".norm.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": UNLIMITED,
            "num_attention_heads": 0,
            "num_key_value_heads": 0,
            "head_dim": 0,
        }

    def make_rotary(self) -> None:
        return None

    def mixer(self, config: Config, layer: int) -> Module:
        channels = int(config.get("expand", 2) * config.hidden)
        return Mamba(
            config.hidden, channels, int(config.get("state_size", 16)),
            rank_of(config.get("time_step_rank", "auto"), config.hidden), int(config.get("conv_kernel", 4)),
            bool(config.get("use_bias", False)), bool(config.get("use_conv_bias", True)), layer,
        )  # fmt: skip

    def block(self, config: Config, layer: int) -> Module:
        return MambaBlock(self.norm(config.hidden), self.mixer(config, layer))


@register("mamba2")
class Mamba2LM(MambaLM):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {**super().defaults(config), "tie_word_embeddings": False}

    def mixer(self, config: Config, layer: int) -> Module:
        # The heads are those of the state space, not of attention.
        heads, size, groups = (
            int(config["num_heads"]),
            int(config["head_dim"]),
            int(config.get("n_groups", 8)),
        )
        return Mamba2(
            config.hidden, heads, size, groups, int(config.get("state_size", 128)),
            int(config.get("conv_kernel", 4)), layer, norm=GatedNorm(heads * size, groups, config.eps),
            bias=bool(config.get("use_bias", False)), conv_bias=bool(config.get("use_conv_bias", True)),
            out_bias=bool(config.get("use_bias", False)),
            limit=config.get("time_step_limit", (0.0, float("inf"))),
        )  # fmt: skip
