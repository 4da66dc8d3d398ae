"""DeepSeek V2 and V3 (also R1): latent attention, grouped experts. DeepSeek-AI, 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import CompileError
from ...frontends.nn import Linear, Module, RMSNorm
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..cache import Cache
from ..config import Config
from ..experts import SEPARATE_EXPERTS, Experts, RoutedMLP, Routing
from ..layers import GatedMLP, RotaryEmbedding, Rotation, rotated
from .base import CausalLM, register

CORRECTED = {**SEPARATE_EXPERTS, r"\.gate\.e_score_correction_bias$": ".correction"}
"""Renames the arrays of experts whose router has a correction."""


def routed_block(config: Config) -> RoutedMLP:
    """The mixture of experts of DeepSeek V3: sigmoid scores with a correction, groups, shared experts."""
    groups = int(config.get("n_group", 1))
    routing = Routing(
        int(config["num_experts_per_tok"]), bool(config.get("norm_topk_prob", True)), "sigmoid", groups,
        int(config.get("topk_group", groups)), 2, float(config.get("routed_scaling_factor", 1.0)),
    )  # fmt: skip
    return with_shared_experts(config, routing, corrected=True)


def with_shared_experts(config: Config, routing: Routing, corrected: bool = False) -> RoutedMLP:
    """A mixture of experts whose shared experts are one block, as wide as all of them."""
    width, shared = int(config["moe_intermediate_size"]), int(config.get("n_shared_experts", 1))
    return RoutedMLP(
        config, Experts(config, width), routing, corrected=corrected,
        shared=GatedMLP(config, width * shared) if shared else None,
    )  # fmt: skip


class HeadMatrices(Module):
    """Matrices [heads, outputs, inputs] that a checkpoint stores as one, [heads * outputs, inputs]."""

    def __init__(self, heads: int, outputs: int, inputs: int) -> None:
        super().__init__()
        self.heads, self.weight = heads, uniform((heads * outputs, inputs), inputs**-0.5)

    @property
    def matrices(self) -> Tensor:
        """The matrices [heads, outputs, inputs]."""
        rows, inputs = self.weight.shape
        result: Tensor = self.weight.reshape(self.heads, rows // self.heads, inputs)
        return result


class LatentAttention(Module):
    """Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).

    The cache has one key of ``kv_lora_rank + qk_rope_head_dim`` elements for each token: a latent vector, and
    a rotated part. Keys and values of the heads are products of the latent vector; since these are linear,
    queries are multiplied by the matrices of the keys, and results by those of the values, and the latent
    vector serves as key and value of all heads.
    """

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.heads
        self.rank, self.turned = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
        self.plain, self.values = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
        bias, size = bool(config.get("attention_bias", False)), self.plain + self.turned
        rank = config.get("q_lora_rank")
        if rank is None:
            self.q_proj = Linear(config.hidden, self.heads * size, bias=False)
        else:
            self.q_a_proj = Linear(config.hidden, int(rank), bias)
            self.q_a_layernorm = RMSNorm(int(rank), 1e-6)
            self.q_b_proj = Linear(int(rank), self.heads * size, bias=False)
        self.compressed = rank is not None
        self.kv_a_proj_with_mqa = Linear(config.hidden, self.rank + self.turned, bias)
        self.kv_a_layernorm = RMSNorm(self.rank, 1e-6)
        self.kv_b_proj = HeadMatrices(self.heads, self.plain + self.values, self.rank)
        self.o_proj = Linear(self.heads * self.values, config.hidden, bias)
        self.scale = size**-0.5 * config.rope().gain ** 2

    def forward(self, x: Tensor, cache: Cache, rotation: Rotation) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]."""
        batch, n, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self.compressed else self.q_proj(x)
        q = q.reshape(batch, n, self.heads, self.plain + self.turned)
        latent = self.kv_a_proj_with_mqa(x)
        turned = rotated(latent[:, :, None, self.rank :], rotation)
        latent = self.kv_a_layernorm(latent[..., : self.rank])[:, :, None]
        of_heads = self.kv_b_proj.matrices
        of_keys, of_values = of_heads[:, : self.plain], of_heads[:, self.plain :]
        # [heads, batch * n, elements], the form of one product for each head.
        plain = tnp.moveaxis(q[..., : self.plain], 2, 0).reshape(self.heads, batch * n, self.plain)
        plain = tnp.moveaxis((plain @ of_keys).reshape(self.heads, batch, n, self.rank), 0, 2)
        q = tnp.concatenate([plain, rotated(q[..., self.plain :], rotation)], -1)
        k = tnp.concatenate([latent, turned], -1)
        y = cache.attend(self.layer, q, k, self.rank, scale=self.scale)
        y = tnp.moveaxis(y, 2, 0).reshape(self.heads, batch * n, self.rank) @ of_values.mT
        y = tnp.moveaxis(y.reshape(self.heads, batch, n, self.values), 0, 2)
        result: Tensor = self.o_proj(y.reshape(batch, n, self.heads * self.values))
        return result


class DeepSeek(CausalLM):
    """A model with latent attention, whose first layers have no experts."""

    interleaved = True

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "head_dim": config["qk_rope_head_dim"],
        }  # fmt: skip

    @classmethod
    def kept(cls, config: Config, layer: int) -> tuple[int, int]:
        return 1, int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"])

    def attention(self, layer: int) -> Module:
        return LatentAttention(self.config, layer)

    def experts(self) -> Module:
        """Make a mixture of experts."""
        return routed_block(self.config)

    def mlp(self, layer: int) -> Module:
        dense = layer < int(self.config["first_k_dense_replace"])
        return GatedMLP(self.config) if dense else self.experts()


@register("deepseek_v2")
class DeepSeekV2(DeepSeek):
    renamed: ClassVar[Mapping[str, str]] = SEPARATE_EXPERTS

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            **super().defaults(config), "max_position_embeddings": 2048, "first_k_dense_replace": 0,
            "n_shared_experts": 2, "topk_method": "greedy",
        }  # fmt: skip

    def experts(self) -> Module:
        config, method = self.config, self.config["topk_method"]
        if method not in ("greedy", "group_limited_greedy") or config.get("norm_topk_prob", False):
            raise CompileError(
                f"config.json of a deepseek_v2: topk_method {method!r} and norm_topk_prob "
                f"{config.get('norm_topk_prob')!r}; greedy and group_limited_greedy without normalization "
                "are supported"
            )
        groups = int(config.get("n_group", 1)) if method == "group_limited_greedy" else 1
        routing = Routing(
            int(config["num_experts_per_tok"]), normalized=False, groups=groups,
            chosen_groups=int(config.get("topk_group", groups)),
            scale=float(config.get("routed_scaling_factor", 1.0)),
        )  # fmt: skip
        return with_shared_experts(config, routing)


@register("deepseek_v3")
class DeepSeekV3(DeepSeek):
    renamed: ClassVar[Mapping[str, str]] = CORRECTED

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            **super().defaults(config), "max_position_embeddings": 4096, "first_k_dense_replace": 3,
            "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
        }  # fmt: skip

    def make_rotary(self) -> Module | None:
        return RotaryEmbedding(self.config.rope(), bool(self.config.get("rope_interleave", True)))
