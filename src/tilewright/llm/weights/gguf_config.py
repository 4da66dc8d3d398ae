"""Builds config.json from a GGUF file's metadata."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import WeightsError
from .gguf_file import GGUFFile
from .gguf_names import Family

_GPT2 = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}


def config_of(file: GGUFFile, family: Family) -> dict[str, Any]:
    """Return the configuration by Hugging Face's keys, without those of rotary embedding
    (`rope_parameters`).
    """
    a = file.need("general.architecture", str)
    number = (int, float)
    hidden, heads = file.need(f"{a}.embedding_length", int), file.need(f"{a}.attention.head_count", int)
    layers = file.need(f"{a}.block_count", int)
    if min(hidden, heads, layers) < 1 or "token_embd.weight" not in file.tensors:
        raise WeightsError(
            f"{file.path}: the metadata are inconsistent: {hidden} channels, {heads} heads, {layers} "
            "layers, and the shape of the embedding"
        )
    tied = "output.weight" not in file.tensors
    epsilon = file.get(
        f"{a}.attention.layer_norm_rms_epsilon",
        file.get(f"{a}.attention.layer_norm_epsilon", None, number),
        number,
    )
    config: dict[str, Any] = {
        "architectures": [family.model_class],
        "model_type": family.model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": file.get(f"{a}.feed_forward_length", None, int),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": file.get(f"{a}.attention.head_count_kv", heads, int),
        "head_dim": file.get(f"{a}.attention.key_length", hidden // heads, int),
        "max_position_embeddings": file.need(f"{a}.context_length", int),
        "hidden_act": family.activation,
        family.norm: epsilon and float(str(np.float32(epsilon))),  # 1e-05, not 9.99999974e-06
        "tie_word_embeddings": tied,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id", None, int),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id", None, int),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id", None, int),
    }
    config |= _FURTHER.get(family.model_type, _none)(file, a, config)
    if family.experts:
        config |= _experts(file, a, family)
    if family.model_type == "gpt2":
        config = {_GPT2.get(key, key): value for key, value in config.items()}
        for key in ("num_key_value_heads", "head_dim"):
            del config[key]
    return config


def _none(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {}


def _biases(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    attention, mlp = ("blk.0.attn_q.bias" in file.tensors, "blk.0.ffn_up.bias" in file.tensors)
    return {"attention_bias": attention, "mlp_bias": mlp}


def _qwen3(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _gemma(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"hidden_activation": config["hidden_act"]}


def _gemma2(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    """Add Gemma 2's scale of attention logits, which the file lacks.

    It is one over the square root of the head size, except for the largest model, which is recognized by its
    number of layers.
    """
    largest = config["num_hidden_layers"] == 46
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(config["num_hidden_layers"])]
    return _gemma(file, a, config) | {
        "attn_logit_softcapping": file.get(f"{a}.attn_logit_softcapping", 50.0, float),
        "final_logit_softcapping": file.get(f"{a}.final_logit_softcapping", 30.0, float),
        "sliding_window": file.get(f"{a}.attention.sliding_window", 4096, int),
        "query_pre_attn_scalar": _scalar(config, largest),
        "layer_types": kinds,
    }


def _gemma3(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    largest = config["num_hidden_layers"] == 62
    kinds = [
        "sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(config["num_hidden_layers"])
    ]
    return _gemma(file, a, config) | {
        "sliding_window": file.get(f"{a}.attention.sliding_window", 1024, int),
        "query_pre_attn_scalar": _scalar(config, largest),
        "layer_types": kinds,
        "rope_local_base_freq": file.get(f"{a}.rope.freq_base_swa", 10000.0, float),
    }


def _scalar(config: dict[str, Any], largest: bool) -> int:
    return int(config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"])


def _phi3(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    window = file.get(f"{a}.attention.sliding_window", 0, int)
    return {
        "sliding_window": window if 0 < window < config["max_position_embeddings"] else None,
        "partial_rotary_factor": _rotary_share(file, a, config),
    }


def _starcoder2(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "norm_type": "layer_norm",
        "sliding_window": file.get(f"{a}.attention.sliding_window", None, int),
    }


def _gpt_neox(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "rotary_pct": _rotary_share(file, a, config),
        "use_parallel_residual": file.get(f"{a}.use_parallel_residual", True, bool),
        "attention_bias": "blk.0.attn_qkv.bias" in file.tensors,
    }


def _rotary_share(file: GGUFFile, a: str, config: dict[str, Any]) -> float:
    return float(file.get(f"{a}.rope.dimension_count", config["head_dim"], int) / config["head_dim"])


_FURTHER = {
    "llama": _biases,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "starcoder2": _starcoder2,
    "gpt_neox": _gpt_neox,
}


def _experts(file: GGUFFile, a: str, family: Family) -> dict[str, Any]:
    count = file.get(f"{a}.expert_count", 0, int)
    if not count:
        return {}
    used = file.need(f"{a}.expert_used_count", int)
    if family.model_type == "llama":
        return {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": count,
            "num_experts_per_tok": used,
        }
    result = {
        "num_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": file.get(f"{a}.expert_feed_forward_length", None, int),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": family.model_type == "qwen3_moe",
    }
    if family.model_type == "qwen2_moe":
        result["shared_expert_intermediate_size"] = file.need(f"{a}.expert_shared_feed_forward_length", int)
    return result


def rope_parameters(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    """Return rope_theta and rope_scaling.

    Raises:
        WeightsError: config.json cannot express the scaling.
    """
    a = file.need("general.architecture", str)
    if a == "gpt2":
        return {}
    theta = float(file.get(f"{a}.rope.freq_base", 10000.0, (int, float)))
    result: dict[str, Any] = {"rotary_emb_base" if a == "gptneox" else "rope_theta": theta}
    original = file.get(f"{a}.rope.scaling.original_context_length", None, int)
    if "rope_factors_long.weight" in file.tensors:
        long, short = (file.tensors[f"rope_factors_{k}.weight"].read().tolist() for k in ("long", "short"))
        return result | {
            "rope_scaling": {"type": "longrope", "long_factor": long, "short_factor": short},
            "original_max_position_embeddings": original or config["max_position_embeddings"],
        }
    if "rope_freqs.weight" in file.tensors:
        factors = file.tensors["rope_freqs.weight"].read().astype(np.float64)
        return result | {"rope_scaling": _llama3(file, factors, theta, original)}
    kind = file.get(f"{a}.rope.scaling.type", "none", str)
    factor = file.get(f"{a}.rope.scaling.factor", None, (int, float))
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return result
    if kind not in ("linear", "yarn") or factor is None:
        raise WeightsError(
            f"{file.path}: {a}.rope.scaling.type {kind!r} with factor {factor} is not supported"
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn" and original:
        scaling["original_max_position_embeddings"] = original
    return result | {"rope_scaling": scaling}


def _llama3(
    file: GGUFFile, factors: np.ndarray[Any, Any], theta: float, original: int | None
) -> dict[str, Any]:
    """Find the parameters of Llama 3's scaling that give the file's factors.

    The file has only the factor of each frequency.
    """
    factor = float(factors.max())
    for context in dict.fromkeys((original or 8192, 8192)):
        low, high = 1.0, 4.0  # as in all of Meta's models
        waves = 2 * math.pi * theta ** (np.arange(len(factors)) / len(factors))
        smooth = np.clip((context / waves - low) / (high - low), 0, 1)
        expected = 1 / ((1 - smooth) / factor + smooth)
        if np.allclose(expected, factors, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
    raise WeightsError(
        f"{file.path}: rope_freqs.weight scales frequencies in a way that is not Llama 3's, which is not "
        "supported"
    )
