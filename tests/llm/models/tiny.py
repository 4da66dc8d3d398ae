"""Small models of every family with random weights, made by `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **settings}}


LLAMA3 = rope(
    "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
LONGROPE = {
    **rope(
        "longrope",
        long_factor=[1.0 + k for k in range(6)],
        short_factor=[1.0 + k / 4 for k in range(6)],
        partial_rotary_factor=0.75,
    ),
    "original_max_position_embeddings": 16,
}
MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
GEMMA = {**GROUPED, "head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 6}
MULTIPLIERS = {
    "attention_multiplier": 0.3, "residual_multiplier": 0.7, "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
}  # fmt: skip
NARROW = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
LATENT = {
    **SMALL, "num_key_value_heads": 4, "max_position_embeddings": 64, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 48,
    "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "qk_nope_head_dim": 16,
}  # fmt: skip
SSM = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2}
FALCON = {
    **GROUPED,
    "max_position_embeddings": 128,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "lm_head_multiplier": 0.7,
    "embedding_multiplier": 1.3,
    "mlp_multipliers": [0.8, 1.2],
    "key_multiplier": 0.6,
    "attention_out_multiplier": 0.9,
    "attention_in_multiplier": 1.1,
    "ssm_multipliers": [0.5, 1.5, 0.7, 1.4, 0.9],
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.8,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**GROUPED, "attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama 3, tied": ("LlamaForCausalLM", {**GROUPED, **LLAMA3, "tie_word_embeddings": True}),
    "llama, linear": ("LlamaForCausalLM", {**GROUPED, **rope("linear", factor=3.0)}),
    "llama, dynamic": ("LlamaForCausalLM", {**GROUPED, **rope("dynamic", factor=3.0)}),
    "llama, yarn": (
        "LlamaForCausalLM",
        {**GROUPED, **rope("yarn", factor=4.0, original_max_position_embeddings=16)},
    ),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 6}),
    "qwen 2": (
        "Qwen2ForCausalLM",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen 3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 24}),
    "qwen 2 experts": ("Qwen2MoeForCausalLM", {**GROUPED, **MIXTURE, "shared_expert_intermediate_size": 48}),
    "qwen 3 experts": (
        "Qwen3MoeForCausalLM",
        {**GROUPED, **MIXTURE, "norm_topk_prob": True, "num_hidden_layers": 3, "decoder_sparse_step": 2},
    ),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 3}),
    "gemma 2": (
        "Gemma2ForCausalLM",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma 3": (
        "Gemma3ForCausalLM",
        {
            **GEMMA,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma 3n": (
        "Gemma3nForCausalLM",
        {
            **GROUPED,
            "num_hidden_layers": 5,
            "intermediate_size": [80, 96, 80, 80, 96],
            "head_dim": 16,
            "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
            "sliding_window": 6,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 88,
            "hidden_size_per_layer_input": 12,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.6, 0.0, 0.9, 0.0, 0.3],
            "final_logit_softcapping": 3.0,
        },
    ),
    "phi 3": ("Phi3ForCausalLM", {**GROUPED, "pad_token_id": 0}),
    "phi 4 mini": ("Phi3ForCausalLM", {**GROUPED, **LONGROPE, "pad_token_id": 0, "sliding_window": 9}),
    "gpt 2": (
        "GPT2LMHeadModel",
        {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "gpt neox": ("GPTNeoXForCausalLM", {**SMALL, "max_position_embeddings": 64}),
    "gpt neox, one after the other": (
        "GPTNeoXForCausalLM",
        {**SMALL, "max_position_embeddings": 64, "use_parallel_residual": False},
    ),
    "olmo 2": ("Olmo2ForCausalLM", GROUPED),
    "olmo 1": ("OlmoForCausalLM", {**GROUPED, "clip_qkv": 1.0}),
    "olmo 3": (
        "Olmo3ForCausalLM",
        {
            **GROUPED,
            "num_hidden_layers": 4,
            "sliding_window": 6,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": rope("yarn", factor=4.0, original_max_position_embeddings=16)[
                    "rope_parameters"
                ],
            },
        },
    ),
    "olmo experts": (
        "OlmoeForCausalLM",
        {**GROUPED, "num_experts": 5, "num_experts_per_tok": 2, "clip_qkv": 1.0},
    ),
    "granite": ("GraniteForCausalLM", {**GROUPED, **MULTIPLIERS}),
    "granite experts": (
        "GraniteMoeForCausalLM",
        {**GROUPED, **MULTIPLIERS, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "cohere": ("CohereForCausalLM", {**GROUPED, "use_qk_norm": True, "logit_scale": 0.6}),
    "cohere 2": (
        "Cohere2ForCausalLM",
        {
            **GROUPED,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "logit_scale": 0.6,
            "head_dim": 16,
        },
    ),
    "smollm 3": (
        "SmolLM3ForCausalLM",
        {**GROUPED, "no_rope_layers": [1, 0], "pad_token_id": 0, "eos_token_id": 1},
    ),
    "phi": ("PhiForCausalLM", {**GROUPED, "qk_layernorm": True}),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 24}),
    "stablelm": ("StableLmForCausalLM", {**GROUPED, "qk_layernorm": True, "use_qkv_bias": True}),
    "stablelm, parallel": ("StableLmForCausalLM", {**GROUPED, "use_parallel_residual": True}),
    "falcon": ("FalconForCausalLM", {**NARROW, "bias": True}),
    "falcon 40b": (
        "FalconForCausalLM",
        {**NARROW, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon rw": (
        "FalconForCausalLM",
        {**NARROW, "alibi": True, "parallel_attn": False, "multi_query": False, "bias": True},
    ),
    "bloom": ("BloomForCausalLM", {"vocab_size": 96, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "opt": ("OPTForCausalLM", {**NARROW, "ffn_dim": 96}),
    "exaone 4": (
        "Exaone4ForCausalLM",
        {**GROUPED, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "ernie": ("Ernie4_5ForCausalLM", {**GROUPED, "use_bias": True}),
    "ernie experts": (
        "Ernie4_5_MoeForCausalLM",
        {
            **GROUPED,
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_intermediate_size": 48,
            "moe_layer_start_index": 1,
            "moe_num_shared_experts": 2,
        },
    ),
    "hunyuan": (
        "HunYuanDenseV1ForCausalLM",
        {**GROUPED, "head_dim": 16, **rope("dynamic", alpha=20.0, factor=1.0)},
    ),
    "hunyuan experts": (
        "HunYuanMoEV1ForCausalLM",
        {**GROUPED, "head_dim": 16, "num_experts": 5, "moe_topk": 2},
    ),
    "seed oss": ("SeedOssForCausalLM", {**GROUPED, "head_dim": 24}),
    "nemotron": ("NemotronForCausalLM", GROUPED),
    "glm": ("GlmForCausalLM", {**GROUPED, "head_dim": 16, "pad_token_id": 0}),
    "glm 4": ("Glm4ForCausalLM", {**GROUPED, "head_dim": 16, "pad_token_id": 0}),
    "glm 4 experts": (
        "Glm4MoeForCausalLM",
        {
            **GROUPED,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "use_qk_norm": True,
            "routed_scaling_factor": 1.5,
            "attention_bias": True,
        },
    ),
    "gpt oss": (
        "GptOssForCausalLM",
        {**GROUPED, "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 6},
    ),
    "llama 4": (
        "Llama4ForCausalLM",
        {
            **GROUPED,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 8,
            "floor_scale": 4,
        },
    ),
    "deepseek 2": (
        "DeepseekV2ForCausalLM",
        {**LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5},
    ),
    "deepseek 3": (
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            **rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.8),
        },
    ),
    "jamba": (
        "JambaForCausalLM",
        {
            **GROUPED,
            "num_hidden_layers": 3,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
        },
    ),
    "lfm 2": ("Lfm2ForCausalLM", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    "qwen 3 next": (
        "Qwen3NextForCausalLM",
        {
            **GROUPED,
            **MIXTURE,
            "shared_expert_intermediate_size": 48,
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "rwkv": ("RwkvForCausalLM", {**SSM, "context_length": 64}),
    "starcoder 2": ("Starcoder2ForCausalLM", {**GROUPED, "sliding_window": 7}),
    "mamba": ("MambaForCausalLM", {**SSM, "state_size": 8}),
    "mamba 2": (
        "Mamba2ForCausalLM",
        {**SSM, "state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    ),
    "falcon h1": ("FalconH1ForCausalLM", FALCON),
    "falcon h1, normalized": (
        "FalconH1ForCausalLM",
        {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": True},
    ),
}


def checkpoint(name: str, folder: Path, context: int | None = None, **other: Any) -> Any:
    """Return a model of `transformers`, saved in `folder`, in which every parameter affects the logits; for
    `context` tokens instead of its own number, and with `other` values of its configuration.
    """
    architecture, numbers = MODELS[name]
    limits = {"max_position_embeddings", "n_positions", "context_length"}
    numbers = {k: context if context and k in limits else v for k, v in numbers.items()} | other
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = cls(cls.config_class(**numbers)).float().eval()
    with torch.no_grad():
        corrections = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
        for p in (*model.parameters(), *corrections):
            # Matrices keep the magnitude of their inputs; other parameters are drawn around 1.
            if p.ndim > 1:
                p.normal_(0, 1.5 * p.shape[-1] ** -0.5)
            else:
                p.normal_(1, 0.3)
    model.save_pretrained(folder)
    return model


def logits(model: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


def tokens(batch: int, n: int) -> Any:
    return np.random.default_rng(n).integers(3, 96, (batch, n))
