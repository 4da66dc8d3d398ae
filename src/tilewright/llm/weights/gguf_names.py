"""Architectures of GGUF files: tensor names, keys of the metadata, and what converters change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import WeightsError
from .gguf_file import GGUFFile
from .gguf_steps import (
    Each,
    Joined,
    Step,
    as_row,
    channels_of_convolution,
    flat,
    groups_of_heads,
    groups_of_states,
    halves_from_pairs,
    keys_and_values_of_latent,
    less_one,
    logarithm_of_decay,
    rows_in_turn,
    rows_one_after_another,
    transposed,
)


@dataclass(frozen=True)
class Family:
    """An architecture: Hugging Face's `model_type` and class, and how they differ from GGUF's.

    `names` are those of Hugging Face by GGUF's: of a layer or of the whole model, without
    ``.weight`` and ``.bias``, or with it where both names are complete. ``{index}`` stands for the number of
    a slice that Hugging Face has as a tensor of its own. ``blk.N.`` becomes `layers` + ``N.``.
    """

    model_type: str
    model_class: str
    names: Mapping[str, str]
    layers: str = "model.layers."
    steps: tuple[Step, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of config.json by those of the metadata, without the architecture: numbers and switches."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys of config.json that a file may lack; all other `keys` are required."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of config.json, which are the same for all models."""
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    """Other names of common keys of config.json; None: the family has no such key."""
    norm: str = "rms_norm_eps"
    activation: str = "silu"
    theta: str | None = "rope_theta"
    """The key of the base of rotary embedding; None: there is none."""
    share: str | None = None
    """The key of the share of a head's elements that are rotated; None: all are."""
    window: int | None = None
    """Every so many layers have no window, where the file does not tell; None: layers have no kinds."""
    attends: bool = True
    """Whether all layers have attention; if not, the numbers of heads are per layer, and may be 0."""


_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA2 = _LLAMA | _NORMS_AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
_HUNYUAN = _LLAMA | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
_SEQUENTIAL = _LLAMA | {"post_attention_norm": "post_attention_layernorm"}


def _stacked(
    block: str, gate: str = "gate_proj", down: str = "down_proj", up: str = "up_proj"
) -> dict[str, str]:
    """The names of experts, which Hugging Face has one by one."""
    names = {"gate": gate, "down": down, "up": up}
    return {f"ffn_{ours}_exps": f"{block}.experts.{{index}}.{name}" for ours, name in names.items()}


def _gated(block: str, ending: str = "") -> dict[str, str]:
    """The names of a gated feed-forward block; GGUF's have an ending."""
    return {f"ffn_{part}{ending}": f"{block}.{part}_proj" for part in ("gate", "down", "up")}


def _shared(block: str) -> dict[str, str]:
    """The names of the block that all tokens pass beside experts."""
    return _gated(block, "_shexp")


_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    **_stacked("block_sparse_moe", "w1", "w2", "w3"),
}
_MOE = {"ffn_gate_inp": "mlp.gate", **_stacked("mlp")}
_DEEPSEEK_MOE = {
    **_MOE,
    **_shared("mlp.shared_experts"),
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
_MEGATRON = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}


def _mixer(prefix: str) -> dict[str, str]:
    """The names of a state space."""
    return {
        "ssm_in": f"{prefix}.in_proj",
        "ssm_conv1d": f"{prefix}.conv1d",
        "ssm_x": f"{prefix}.x_proj",
        "ssm_dt": f"{prefix}.dt_proj",
        "ssm_a": f"{prefix}.A_log",
        "ssm_d": f"{prefix}.D",
        "ssm_norm": f"{prefix}.norm",
        "ssm_out": f"{prefix}.out_proj",
        "ssm_dt_norm": f"{prefix}.dt_layernorm",
        "ssm_b_norm": f"{prefix}.b_layernorm",
        "ssm_c_norm": f"{prefix}.c_layernorm",
    }


_MAMBA = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "attn_norm": "norm",
    **_mixer("mixer"),
}

_PAIRS = (
    Each(r"attn_q\.(weight|bias)", halves_from_pairs("num_attention_heads")),
    Each(r"attn_k\.(weight|bias)", halves_from_pairs("num_key_value_heads")),
)
_BY_HEAD = (Each(r"attn_qkv\.(weight|bias)", groups_of_heads),)
_LESS_ONE = (Each(r".*norm\.weight", less_one),)
_STATE_SPACE = (
    Each(r"ssm_conv1d\.weight", channels_of_convolution),
    Each(r"ssm_a", logarithm_of_decay),
)
_GATE_UP = ("ffn_gate_exps", "ffn_up_exps")

_QWEN_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
}
_QWEN_MOE = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_DEEPSEEK_EXPERTS = {
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_ALL_ONE = dict.fromkeys(_GRANITE.values(), 1.0)
_LOCAL_EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
_STATES = {"ssm.conv_kernel": "conv_kernel", "ssm.state_size": "state_size"}
_JAMBA_STATES = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_dt_rank",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
_TANH = "gelu_pytorch_tanh"

_GEMMA = Family("gemma", "GemmaForCausalLM", _LLAMA, steps=_LESS_ONE, activation=_TANH)
_WINDOWED_GEMMA = replace(_GEMMA, names=_GEMMA2)

FAMILIES = {
    "llama": Family("llama", "LlamaForCausalLM", _LLAMA, steps=_PAIRS),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _LLAMA),
    "qwen2moe": Family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        _LLAMA | _MOE | _shared("mlp.shared_expert") | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
        keys=_QWEN_EXPERTS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        absent={"norm_topk_prob": False, "moe_intermediate_size": None},
        fixed=_QWEN_MOE,
    ),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _LLAMA),
    "qwen3moe": Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        _LLAMA | _MOE,
        keys=_QWEN_EXPERTS,
        absent={"norm_topk_prob": True, "moe_intermediate_size": None},
        fixed=_QWEN_MOE,
    ),
    "qwen3next": Family(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        _SEQUENTIAL
        | _MOE
        | _shared("mlp.shared_expert")
        | _mixer("linear_attn")
        | {
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ssm_in": "linear_attn.in_proj_qkvz",
            "ssm_ba": "linear_attn.in_proj_ba",
            "ssm_dt.bias": "linear_attn.dt_bias",
        },
        steps=(
            Joined(("attn_qkv", "attn_gate"), "ssm_in", groups_of_states),
            Each(r"(?!ssm_).*norm\.weight", less_one),
            *_STATE_SPACE,
        ),
        keys=_QWEN_EXPERTS
        | {
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
            "ssm.conv_kernel": "linear_conv_kernel_dim",
            "ssm.state_size": "linear_key_head_dim",
            "ssm.group_count": "linear_num_key_heads",
            "ssm.time_step_rank": "linear_num_value_heads",
        },
        absent={"norm_topk_prob": True},
        fixed=_QWEN_MOE,
        share="partial_rotary_factor",
    ),
    "gemma": _GEMMA,
    "gemma2": replace(
        _WINDOWED_GEMMA,
        model_type="gemma2",
        model_class="Gemma2ForCausalLM",
        window=2,
        fixed={"sliding_window": 4096},
    ),
    "gemma3": replace(
        _WINDOWED_GEMMA,
        model_type="gemma3_text",
        model_class="Gemma3ForCausalLM",
        window=6,
        fixed={"sliding_window": 1024},
    ),
    "phi2": Family(
        "phi",
        "PhiForCausalLM",
        _LLAMA
        | {
            "output_norm": "model.final_layernorm",
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
        norm="layer_norm_eps",
        activation="gelu_new",
        share="partial_rotary_factor",
    ),
    "phi3": Family(
        "phi3",
        "Phi3ForCausalLM",
        _LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        share="partial_rotary_factor",
    ),
    "starcoder2": Family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        _LLAMA | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        norm="norm_epsilon",
        activation=_TANH,
    ),
    "gpt2": Family(
        "gpt2",
        "GPT2LMHeadModel",
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        layers="transformer.h.",
        steps=(Each(r"(attn_qkv|attn_output|ffn_up|ffn_down)\.weight", transposed),),
        renamed={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "num_key_value_heads": None,
            "head_dim": None,
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
            "hidden_act": "activation_function",
        },
        norm="layer_norm_epsilon",
        activation="gelu_new",
        theta=None,
    ),
    "gptneox": Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        layers="gpt_neox.layers.",
        steps=_BY_HEAD,
        keys={"use_parallel_residual": "use_parallel_residual"},
        absent={"use_parallel_residual": True},
        norm="layer_norm_eps",
        activation="gelu",
        theta="rotary_emb_base",
        share="rotary_pct",
    ),
    "olmo": Family(
        "olmo",
        "OlmoForCausalLM",
        _LLAMA,
        steps=_PAIRS,
        keys={"attention.clamp_kqv": "clip_qkv"},
        absent={"clip_qkv": None},
        norm="layer_norm_eps",
    ),
    "olmo2": Family("olmo2", "Olmo2ForCausalLM", _LLAMA | _NORMS_AFTER),
    "olmoe": Family(
        "olmoe",
        "OlmoeForCausalLM",
        _LLAMA | _MOE,
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_weights_norm": "norm_topk_prob",
            "attention.clamp_kqv": "clip_qkv",
        },
        absent={"norm_topk_prob": False, "clip_qkv": None},
    ),
    "deepseek2": Family(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        _LLAMA
        | _DEEPSEEK_MOE
        | {
            "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_kv_b": "self_attn.kv_b_proj",
        },
        steps=(Joined(("attn_k_b", "attn_v_b"), "attn_kv_b", keys_and_values_of_latent),),
        keys=_DEEPSEEK_EXPERTS
        | {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"},
        absent={
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "q_lora_rank": None,
            "n_group": None,
        },
    ),
    "gpt-oss": Family(
        "gpt_oss",
        "GptOssForCausalLM",
        _SEQUENTIAL
        | {
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
            "ffn_gate_up_exps.bias": "mlp.experts.gate_up_proj_bias",
            "ffn_down_exps.weight": "mlp.experts.down_proj",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        steps=(
            Joined(_GATE_UP, "ffn_gate_up_exps", rows_in_turn),
            Each(r"ffn_(gate_up|down)_exps\.weight", transposed),
        ),
        keys=_LOCAL_EXPERTS | {"expert_feed_forward_length": "intermediate_size"},
        fixed={"attention_bias": True},
        window=2,
    ),
    "glm4": Family(
        "glm4",
        "Glm4ForCausalLM",
        _LLAMA
        | {
            "post_attention_norm": "post_self_attn_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        share="partial_rotary_factor",
    ),
    "glm4moe": Family(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        _SEQUENTIAL | _DEEPSEEK_MOE,
        keys=_DEEPSEEK_EXPERTS,
        absent={"norm_topk_prob": True, "routed_scaling_factor": 1.0, "n_group": 1},
        share="partial_rotary_factor",
    ),
    "granite": Family("granite", "GraniteForCausalLM", _LLAMA, steps=_PAIRS, keys=_GRANITE, absent=_ALL_ONE),
    "granitemoe": Family(
        "granitemoe",
        "GraniteMoeForCausalLM",
        _LLAMA
        | {
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_gate_up_exps": "block_sparse_moe.input_linear",
            "ffn_down_exps": "block_sparse_moe.output_linear",
        },
        steps=(*_PAIRS, Joined(_GATE_UP, "ffn_gate_up_exps", rows_one_after_another)),
        keys=_GRANITE | _LOCAL_EXPERTS,
        absent=_ALL_ONE,
    ),
    "command-r": Family(
        "cohere", "CohereForCausalLM", _LLAMA, keys={"logit_scale": "logit_scale"}, norm="layer_norm_eps"
    ),
    "cohere2": Family(
        "cohere2",
        "Cohere2ForCausalLM",
        _LLAMA,
        keys={"logit_scale": "logit_scale"},
        norm="layer_norm_eps",
        window=4,
    ),
    "smollm3": Family("smollm3", "SmolLM3ForCausalLM", _LLAMA, steps=_PAIRS),
    "falcon": Family(
        "falcon",
        "FalconForCausalLM",
        _MEGATRON,
        layers="transformer.h.",
        steps=_BY_HEAD,
        renamed={"num_key_value_heads": None, "head_dim": None},
        norm="layer_norm_epsilon",
        activation="gelu",
    ),
    "bloom": Family(
        "bloom",
        "BloomForCausalLM",
        _MEGATRON,
        layers="transformer.h.",
        steps=_BY_HEAD,
        norm="layer_norm_epsilon",
        activation="gelu_new",
        theta=None,
    ),
    "stablelm": Family(
        "stablelm",
        "StableLmForCausalLM",
        _LLAMA
        | {
            "attn_q_norm": "self_attn.q_layernorm.norms.{index}",
            "attn_k_norm": "self_attn.k_layernorm.norms.{index}",
        },
        norm="layer_norm_eps",
        share="partial_rotary_factor",
    ),
    "exaone4": Family("exaone4", "Exaone4ForCausalLM", _LLAMA | _NORMS_AFTER, window=4),
    "ernie4_5": Family("ernie4_5", "Ernie4_5ForCausalLM", _LLAMA),
    "ernie4_5-moe": Family(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        _LLAMA
        | _MOE
        | _shared("mlp.shared_experts")
        | {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        steps=(Each(r"exp_probs_b\.bias", as_row),),
        keys={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        },
    ),
    "hunyuan-dense": Family(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        _HUNYUAN,
    ),
    "hunyuan-moe": Family(
        "hunyuan_v1_moe",
        "HunYuanMoEV1ForCausalLM",
        _HUNYUAN | _MOE | _shared("mlp.shared_mlp") | {"ffn_gate_inp": "mlp.gate.wg"},
        keys={"expert_count": "num_experts", "expert_used_count": "moe_topk"},
    ),
    "seed_oss": Family("seed_oss", "SeedOssForCausalLM", _SEQUENTIAL),
    "nemotron": Family(
        "nemotron",
        "NemotronForCausalLM",
        _LLAMA,
        steps=_LESS_ONE,
        norm="norm_eps",
        activation="relu2",
        share="partial_rotary_factor",
    ),
    "llama4": Family(
        "llama4_text",
        "Llama4ForCausalLM",
        _LLAMA
        | _gated("feed_forward")
        | _shared("feed_forward.shared_expert")
        | {
            "ffn_gate_inp": "feed_forward.router",
            "ffn_gate_up_exps.weight": "feed_forward.experts.gate_up_proj",
            "ffn_down_exps.weight": "feed_forward.experts.down_proj",
        },
        steps=(
            Joined(_GATE_UP, "ffn_gate_up_exps", rows_one_after_another),
            Each(r"ffn_(gate_up|down)_exps\.weight", transposed),
        ),
        keys=_LOCAL_EXPERTS
        | {
            "feed_forward_length": "intermediate_size_mlp",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
    ),
    "lfm2": Family(
        "lfm2",
        "Lfm2ForCausalLM",
        _LLAMA
        | {
            "token_embd_norm": "model.embedding_norm",
            "output_norm": "model.embedding_norm",
            "attn_norm": "operator_norm",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "attn_output": "self_attn.out_proj",
            "shortconv.conv": "conv.conv",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
            "ffn_norm": "ffn_norm",
            "ffn_gate": "feed_forward.w1",
            "ffn_down": "feed_forward.w2",
            "ffn_up": "feed_forward.w3",
        },
        steps=(Each(r"shortconv\.conv\.weight", channels_of_convolution),),
        keys={"shortconv.l_cache": "conv_L_cache"},
        fixed={"block_auto_adjust_ff_dim": False},
        norm="norm_eps",
        attends=False,
    ),
    "jamba": Family(
        "jamba",
        "JambaForCausalLM",
        _LLAMA
        | _mixer("mamba")
        | _stacked("feed_forward")
        | _gated("feed_forward")
        | {
            "output_norm": "model.final_layernorm",
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate_inp": "feed_forward.router",
        },
        steps=_STATE_SPACE,
        keys=_JAMBA_STATES,
        theta=None,
        attends=False,
    ),
    "mamba": Family(
        "mamba",
        "MambaForCausalLM",
        _MAMBA,
        layers="backbone.layers.",
        steps=_STATE_SPACE,
        keys=_STATES | {"ssm.time_step_rank": "time_step_rank"},
        norm="layer_norm_epsilon",
        theta=None,
        attends=False,
    ),
    "mamba2": Family(
        "mamba2",
        "Mamba2ForCausalLM",
        _MAMBA | {"ssm_dt.bias": "mixer.dt_bias"},
        layers="backbone.layers.",
        steps=(*_STATE_SPACE, Each(r"ssm_(a|d|norm\.weight)", flat)),
        keys=_STATES | {"ssm.time_step_rank": "num_heads", "ssm.group_count": "n_groups"},
        norm="layer_norm_epsilon",
        theta=None,
        attends=False,
    ),
}
"""Architectures by GGUF's name."""


_SIGMOID = 2
"""The number of a router's sigmoid in ``expert_gating_func``."""


@dataclass(frozen=True)
class Variant:
    """Another family of Hugging Face's that an architecture stands for, if a file is so."""

    applies: Callable[[GGUFFile], bool]
    family: Family


VARIANTS = {
    "llama": Variant(
        lambda file: bool(file.get("llama.expert_count", 0, int)),
        replace(
            FAMILIES["llama"],
            model_type="mixtral",
            model_class="MixtralForCausalLM",
            names=_LLAMA | _MIXTRAL,
            keys=_LOCAL_EXPERTS,
        ),
    ),
    "deepseek2": Variant(
        lambda file: file.get("deepseek2.expert_gating_func", 0, int) == _SIGMOID,
        replace(FAMILIES["deepseek2"], model_type="deepseek_v3", model_class="DeepseekV3ForCausalLM"),
    ),
    "olmo2": Variant(
        lambda file: bool(file.get("olmo2.attention.sliding_window", 0, int)),
        replace(FAMILIES["olmo2"], model_type="olmo3", model_class="Olmo3ForCausalLM", window=4),
    ),
    # The normalization before attention is the second one there, and the first is that of the other block.
    "falcon": Variant(
        lambda file: "blk.0.attn_norm_2.weight" in file.tensors,
        replace(FAMILIES["falcon"], names=_MEGATRON | {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}),
    ),
}
"""Variants by GGUF's name of the architecture."""


def family_of(file: GGUFFile) -> Family:
    """Return the family of a file.

    Raises:
        WeightsError: the architecture is not supported.
    """
    name = file.need("general.architecture", str)
    if name not in FAMILIES:
        raise WeightsError(f"{file.path}: has architecture {name}; supported: {', '.join(FAMILIES)}")
    variant = VARIANTS.get(name)
    return variant.family if variant and variant.applies(file) else FAMILIES[name]


def architectures_of(model_type: str) -> list[str]:
    """Return GGUF's names of the architectures whose files have models of a `model_type`."""
    variants = {name: variant.family.model_type for name, variant in VARIANTS.items()}
    return [name for name, f in FAMILIES.items() if model_type in (f.model_type, variants.get(name))]


_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_SUFFIX = re.compile(r"(.+?)((?:\.weight|\.bias)?)")


def hugging_face_name(family: Family, name: str) -> str | None:
    """Translate ``blk.0.attn_q.weight`` to ``model.layers.0.self_attn.q_proj.weight``.

    Numbers of slices are ``{index}``. Return None for a name that the family does not have.
    """
    block = _BLOCK.fullmatch(name)
    inner = block[2] if block else name
    found = family.names.get(inner)
    if found is None:
        match = _SUFFIX.fullmatch(inner)
        stem = match and family.names.get(match[1])
        found = stem and match and stem + match[2]
    return found and (f"{family.layers}{block[1]}.{found}" if block else found)
