"""Tensor names and other properties of each architecture in GGUF files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
_GEMMA2 = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
}
_MOE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
}


@dataclass(frozen=True)
class Family:
    """An architecture: Hugging Face's `model_type` and class, and its tensor names.

    ``blk.N.`` becomes `layers` + ``N.``. `rotary_pairs` matches tensors whose rows are ordered in pairs for
    rotary embedding; group 1 is q or k. `joined_heads`: Hugging Face orders the rows of attn_qkv by head.
    `norm_offset`: what GGUF files add to the weights of norms. `transposed`: matrices that are [in, out] in
    Hugging Face's form. `experts`: the class of a model with experts.
    """

    model_type: str
    model_class: str
    names: Mapping[str, str]
    layers: str = "model.layers."
    rotary_pairs: re.Pattern[str] | None = None
    joined_heads: bool = False
    norm_offset: float = 0
    transposed: re.Pattern[str] | None = None
    experts: bool = False
    tied: bool = False
    norm: str = "rms_norm_eps"
    activation: str = "silu"


FAMILIES = {
    "llama": Family(
        "llama",
        "LlamaForCausalLM",
        _LLAMA | _MIXTRAL,
        rotary_pairs=re.compile(r"\.attn_(q|k)\.(weight|bias)$"),
        experts=True,
    ),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _LLAMA),
    "qwen2moe": Family("qwen2_moe", "Qwen2MoeForCausalLM", _LLAMA | _MOE | _SHARED_EXPERT, experts=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _LLAMA),
    "qwen3moe": Family("qwen3_moe", "Qwen3MoeForCausalLM", _LLAMA | _MOE, experts=True),
    "gemma": Family(
        "gemma", "GemmaForCausalLM", _LLAMA, norm_offset=1, tied=True, activation="gelu_pytorch_tanh"
    ),
    "gemma2": Family(
        "gemma2", "Gemma2ForCausalLM", _GEMMA2, norm_offset=1, tied=True, activation="gelu_pytorch_tanh"
    ),
    "gemma3": Family(
        "gemma3_text", "Gemma3ForCausalLM", _GEMMA2, norm_offset=1, tied=True, activation="gelu_pytorch_tanh"
    ),
    "phi3": Family(
        "phi3",
        "Phi3ForCausalLM",
        _LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "starcoder2": Family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        _LLAMA | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        norm="norm_epsilon",
        activation="gelu_pytorch_tanh",
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
        transposed=re.compile(r"\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$"),
        norm="layer_norm_epsilon",
        activation="gelu_new",
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
        joined_heads=True,
        norm="layer_norm_eps",
        activation="gelu",
    ),
    "olmo2": Family(
        "olmo2",
        "Olmo2ForCausalLM",
        _LLAMA
        | {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
    ),
}
"""Architectures by GGUF's name."""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_WHOLE = re.compile(r"([^.]+)\.(weight|bias)")


def hugging_face_name(family: Family, name: str) -> str | None:
    """Translate ``blk.0.attn_q.weight`` to ``model.layers.0.self_attn.q_proj.weight``.

    Experts' numbers are ``{expert}``. Return None for a name that the family does not have.
    """
    if match := _BLOCK.fullmatch(name):
        inner = family.names.get(match[2])
        return inner and f"{family.layers}{match[1]}.{inner}.{match[3]}"
    match = _WHOLE.fullmatch(name)
    outer = match and family.names.get(match[1])
    return outer and f"{outer}.{match[2]}" if match else None
