"""Small models with random weights, as `transformers` makes them, in Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 96}
MOE = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
}
LATENT = ROUTED | {
    "num_key_value_heads": 4,
    "n_group": 4,
    "topk_group": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "qk_nope_head_dim": 16,
}
MULTIPLIERS = {
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
}
PARALLEL = {
    "intermediate_size": 256,
    "alibi": False,
    "parallel_attn": True,
    "new_decoder_architecture": False,
}


def yarn(**settings: Any) -> dict[str, Any]:
    """Parameters of rotary embedding with YaRN."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, **settings}
    return {"rope_parameters": {"rope_theta": 500.0, **scaling}}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen2_moe": MOE | {"shared_expert_intermediate_size": 64, "mlp_only_layers": []},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": MOE | {"head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": []},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 32},
    "gemma3_text": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 32,
        "num_hidden_layers": 7,
    },
    "phi3": {},
    "mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "starcoder2": {},
    "gpt2": GPT2,
    "gpt_neox": {"rotary_pct": 0.5, "num_key_value_heads": 4},
    "olmo2": {},
    "deepseek_v2": LATENT
    | {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "n_shared_experts": 2},
    "deepseek_v2: groups": LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5},
    "deepseek_v3": LATENT
    | yarn(mscale=1.0, mscale_all_dim=1.0)
    | {"routed_scaling_factor": 2.5, "norm_topk_prob": True},
    "gpt_oss": yarn(truncate=False, beta_fast=32.0, beta_slow=1.0)
    | {"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 32},
    "glm4": {"head_dim": 16, "partial_rotary_factor": 0.5},
    "glm4_moe": ROUTED
    | {"use_qk_norm": True, "attention_bias": True, "head_dim": 16, "routed_scaling_factor": 1.5},
    "granite": MULTIPLIERS,
    "granitemoe": MULTIPLIERS | {"num_local_experts": 3, "num_experts_per_tok": 2},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.5},
    "cohere2": {"logit_scale": 0.5, "sliding_window": 32, "num_hidden_layers": 5, "head_dim": 16},
    "smollm3": {"num_hidden_layers": 5},
    "falcon": PARALLEL | {"bias": True},
    "falcon: two norms": PARALLEL
    | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2},
    "stablelm": {"qk_layernorm": True, "use_qkv_bias": True, "partial_rotary_factor": 0.25},
    "stablelm: parallel": {"use_parallel_residual": True, "partial_rotary_factor": 0.25},
    "phi": {"partial_rotary_factor": 0.5, "intermediate_size": 256, "num_key_value_heads": 4},
    "olmo": {"clip_qkv": 0.5},
    "olmo3": {"sliding_window": 32, "num_hidden_layers": 5},
    "olmoe": {"num_experts": 3, "num_experts_per_tok": 2},
    "ernie4_5": {"use_bias": True, "head_dim": 16},
    "ernie4_5_moe": {
        "moe_num_experts": 3,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
        "moe_num_shared_experts": 2,
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 3, "moe_topk": 2},
    "exaone4": {"sliding_window": 32, "num_hidden_layers": 5, "sliding_window_pattern": 4},
    "exaone4: no windows": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    "seed_oss": {"head_dim": 16},
    "nemotron": {"partial_rotary_factor": 0.5},
    "bloom": {"num_key_value_heads": 4, "intermediate_size": 256},
    "lfm2": {
        "layer_types": ["conv", "full_attention", "conv"],
        "num_hidden_layers": 3,
        "block_auto_adjust_ff_dim": False,
    },
    "llama4_text": {
        "num_hidden_layers": 4,
        "num_local_experts": 3,
        "num_experts_per_tok": 1,
        "head_dim": 16,
        "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
        "attn_temperature_tuning": True,
    },
    "jamba": {
        "num_hidden_layers": 4,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "qwen3_next": MOE
    | {
        "num_hidden_layers": 4,
        "shared_expert_intermediate_size": 64,
        "head_dim": 16,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "partial_rotary_factor": 0.5,
    },
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
}
"""The parameters that differ from `SMALL`, by Hugging Face's model_type; a name may follow a colon."""

WITHOUT_ATTENTION = ("mamba", "mamba2")


def small_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """Return a model in float32 whose weights, biases and norms are all random."""
    kind = family.split(":")[0]
    base = {} if kind == "gpt2" else SMALL
    if kind in WITHOUT_ATTENTION:
        base = {key: value for key, value in SMALL.items() if "head" not in key and "inter" not in key}
    config = transformers.AutoConfig.for_model(kind, **base | FAMILIES[family] | changes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        corrections = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
        for parameter in (*model.parameters(), *corrections):
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def folder_of(model: Any, path: Path, shard_size: str = "50GB", dtype: torch.dtype | None = None) -> Path:
    """Save a model to a folder, and return the folder."""
    (model.to(dtype) if dtype else model).save_pretrained(path, max_shard_size=shard_size)
    return path
