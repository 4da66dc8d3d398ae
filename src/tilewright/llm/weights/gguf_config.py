"""Builds config.json from a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import WeightsError
from .gguf_file import GGUFFile
from .gguf_names import Family
from .gguf_rope import rope_parameters

_NUMBER = (int, float)


def config_of(file: GGUFFile, family: Family) -> dict[str, Any]:
    """Return the configuration by Hugging Face's keys.

    Raises:
        WeightsError: metadata are missing, contradict each other or the tensors, or tell something that the
            family does not have.
    """
    a = file.need("general.architecture", str)
    hidden, blocks = file.need(f"{a}.embedding_length", int), file.need(f"{a}.block_count", int)
    layers = blocks - file.get(f"{a}.nextn_predict_layers", 0, int)
    if min(hidden, layers) < 1 or blocks > len(file.tensors) or "token_embd.weight" not in file.tensors:
        raise WeightsError(
            f"{file.path}: the metadata are inconsistent: {hidden} channels, {layers} layers, "
            f"{len(file.tensors)} tensors, and the shape of the embedding"
        )
    config: dict[str, Any] = {
        "architectures": [family.model_class],
        "model_type": family.model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": file.get(f"{a}.feed_forward_length", None, int) or None,
        "num_hidden_layers": layers,
        "max_position_embeddings": file.need(f"{a}.context_length", int),
        "hidden_act": family.activation,
        family.norm: _epsilon(file, a),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id", None, int),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id", None, int),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id", None, int),
        **family.fixed,
    }
    config |= _heads(file, a, family, hidden)
    if family.window:
        config |= _windows(file, a, family, layers)
    for key, name in family.keys.items():
        config[name] = _plain(file, f"{a}.{key}", family.absent.get(name), name not in family.absent)
    config |= _FURTHER.get(family.model_type, _none)(file, a, config)
    config |= _rotated_share(file, a, family, config) | rope_parameters(file, family, config)
    _refuse_unread(file, a)
    return config


def _epsilon(file: GGUFFile, a: str) -> float | None:
    keys = [f"{a}.attention.layer_norm_{kind}epsilon" for kind in ("rms_", "")]
    found = [_plain(file, key) for key in keys]
    return next((value for value in found if value is not None), None)


def _plain(file: GGUFFile, key: str, default: Any = None, required: bool = False) -> Any:
    """Return a number or switch of the metadata, a float with the digits that it was written with: 1e-05, not
    9.99999974e-06.
    """
    value = file.need(key, (*_NUMBER, bool)) if required else file.get(key, default, (*_NUMBER, bool))
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _heads(file: GGUFFile, a: str, family: Family, hidden: int) -> dict[str, Any]:
    """Return the numbers of heads and their size. Layers without attention have 0 heads of keys."""
    if family.attends:
        heads = file.need(f"{a}.attention.head_count", int)
        groups = min(_per_layer(file, a, heads))
    else:
        heads = file.get(f"{a}.attention.head_count", 0, int)
        groups = max(_per_layer(file, a, 0))
    if not heads and not groups and family.theta is None:
        return {}
    if min(heads, groups) < 1:
        raise WeightsError(f"{file.path}: the metadata are inconsistent: {heads} heads, {groups} of keys")
    size = file.get(f"{a}.attention.key_length", hidden // heads, int)
    values = file.get(f"{a}.attention.value_length", size, int)
    if values != size and not family.model_type.startswith("deepseek"):
        raise WeightsError(
            f"{file.path}: {a}.attention.value_length is {values}, and keys have {size}, which is not "
            "supported"
        )
    return {"num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": size}


def _per_layer(file: GGUFFile, a: str, default: int) -> list[int]:
    """Return the numbers of heads of keys of all layers."""
    counts = file.get(f"{a}.attention.head_count_kv", default, (int, np.ndarray))
    layers = file.need(f"{a}.block_count", int)
    result = [int(n) for n in counts] if isinstance(counts, np.ndarray) else [counts] * layers
    if len(result) != layers or len({*result} - {0}) > 1:
        raise WeightsError(
            f"{file.path}: {a}.attention.head_count_kv is {result}; one number, or 0, for each of {layers} "
            "layers is supported"
        )
    return result


def _windows(file: GGUFFile, a: str, family: Family, layers: int) -> dict[str, Any]:
    """Return the window, and which layers have it: all but each last one of a period, or what a file tells
    layer by layer. There is no window if the file and the family have none.
    """
    window = file.get(f"{a}.attention.sliding_window", family.fixed.get("sliding_window"), int) or None
    pattern = file.get(f"{a}.attention.sliding_window_pattern", family.window, (int, np.ndarray))
    if isinstance(pattern, np.ndarray):
        slides = [bool(slides) for slides in pattern]
        if len(slides) < layers:
            raise WeightsError(f"{file.path}: {a}.attention.sliding_window_pattern has {len(slides)} layers")
    else:
        slides = [(i + 1) % max(pattern, 1) != 0 for i in range(layers)]
    kinds = ["sliding_attention" if slides[i] and window else "full_attention" for i in range(layers)]
    return {"sliding_window": window, "layer_types": kinds}


def _rotated_share(file: GGUFFile, a: str, family: Family, config: dict[str, Any]) -> dict[str, Any]:
    """Return the share of a head's elements that are rotated."""
    if family.theta is None:
        return {}
    size = config["head_dim"]
    rotated = file.get(f"{a}.rope.dimension_count", size, int)
    if family.share:
        return {family.share: float(rotated / size)}
    if rotated != size:
        raise WeightsError(
            f"{file.path}: {a}.rope.dimension_count is {rotated}, of {size} elements of a head, which is not "
            f"supported with {family.model_type}"
        )
    return {}


_NEUTRAL = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"}
"""Keys that tell nothing that config.json needs."""


def _refuse_unread(file: GGUFFile, a: str) -> None:
    """Refuse keys that nothing read, and that may change the meaning of a model."""
    # Converters of models with optional parts, such as Granite 4's, describe those that a file does not have.
    parts = {"ssm.": ".ssm_", "expert_": "_exps."}
    absent = [prefix for prefix, part in parts.items() if not any(part in name for name in file.tensors)]
    for key, value in file.metadata.items():
        name = key.removeprefix(f"{a}.")
        if name == key or key in file.read or name in _NEUTRAL or name.startswith(tuple(absent)):
            continue
        if name == "attention.causal" and value is True:
            continue
        raise WeightsError(f"{file.path}: {key} is {str(value)[:60]}, which is not supported with {a}")


# Keys of single families


def _none(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {}


def _has_bias(file: GGUFFile, tensor: str) -> bool:
    return f"blk.0.{tensor}.bias" in file.tensors


def _biases(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": _has_bias(file, "attn_q"), "mlp_bias": _has_bias(file, "ffn_up")}


def _attention_bias(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": _has_bias(file, "attn_q")}


def _attention(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    norms = "blk.0.attn_q_norm.weight" in file.tensors
    return {"attention_bias": _has_bias(file, "attn_q"), "use_qk_norm": norms}


def _require(file: GGUFFile, key: str, value: int, meaning: str = "") -> None:
    """Refuse a number in the metadata that is not the only one that a family has."""
    found = file.get(key, value, int)
    if found != value:
        raise WeightsError(f"{file.path}: {key} is {found}; only {value}{meaning} is supported")


def _granite(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    key = f"{a}.rope.scaling.finetuned"
    if not file.get(key, True, bool):  # llama.cpp takes it for the switch of rotary embedding here
        raise WeightsError(f"{file.path}: {key} is false: Granite without rotary embedding is not supported")
    return _biases(file, a, config)


def _gemma(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"hidden_activation": config["hidden_act"]}


def _gemma2(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    """Add Gemma 2's scale of attention logits, which the file lacks.

    It is one over the square root of the head size, except for the largest model, which is recognized by its
    number of layers.
    """
    largest = config["num_hidden_layers"] == 46
    return _gemma(file, a, config) | {
        "attn_logit_softcapping": file.get(f"{a}.attn_logit_softcapping", 50.0, float),
        "final_logit_softcapping": file.get(f"{a}.final_logit_softcapping", 30.0, float),
        "query_pre_attn_scalar": _scalar(config, largest),
    }


def _gemma3(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    largest = config["num_hidden_layers"] == 62
    return _gemma(file, a, config) | {
        "query_pre_attn_scalar": _scalar(config, largest),
        "rope_local_base_freq": file.get(f"{a}.rope.freq_base_swa", 10000.0, float),
    }


def _scalar(config: dict[str, Any], largest: bool) -> int:
    return int(config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"])


def _phi3(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    window = file.get(f"{a}.attention.sliding_window", 0, int)
    return {"sliding_window": window if 0 < window < config["max_position_embeddings"] else None}


def _starcoder2(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "use_bias": _has_bias(file, "attn_q"),
        "norm_type": "layer_norm",
        "sliding_window": file.get(f"{a}.attention.sliding_window", None, int),
    }


def _gpt_neox(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": _has_bias(file, "attn_qkv")}


def _deepseek(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    """Add the sizes of latent attention, which llama.cpp sees as attention with one head of keys, and the
    groups of experts.
    """
    rotated = file.need(f"{a}.rope.dimension_count", int)
    keys = file.get(f"{a}.attention.key_length_mla", config["head_dim"], int)
    values = file.get(f"{a}.attention.value_length", 0, int)
    kind = file.get(f"{a}.expert_gating_func", 1, int)
    if kind not in (1, 2):
        raise WeightsError(f"{file.path}: {a}.expert_gating_func is {kind}; 1 and 2 are supported")
    groups = config["n_group"]
    if groups is None and config["q_lora_rank"] is not None:
        raise WeightsError(
            f"{file.path}: its metadata lack {a}.expert_group_count, which files of older converters lack; "
            "convert the Hugging Face folder again, or give that folder"
        )
    groups = groups or 1  # small models, whose queries are not compressed, have no groups
    result = {
        "num_key_value_heads": config["num_attention_heads"],
        "head_dim": rotated,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": file.get(f"{a}.attention.value_length_mla", values, int),
        "n_group": groups,
        "topk_group": _chosen_groups(file, a, groups),
    }
    if config["model_type"] == "deepseek_v2":
        result["topk_method"] = "group_limited_greedy" if groups > 1 else "greedy"
    return result


def _chosen_groups(file: GGUFFile, a: str, groups: int) -> int:
    key = f"{a}.expert_group_used_count"
    return int(file.need(key, int) if groups > 1 else file.get(key, 1, int))


def _glm4_moe(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    _require(file, f"{a}.expert_gating_func", 2, " (sigmoid)")
    chosen = _chosen_groups(file, a, config["n_group"])
    return _attention(file, a, config) | {"topk_group": chosen}


def _smollm3(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return _biases(file, a, config) | _without_rotation(config)


def _without_rotation(config: dict[str, Any]) -> dict[str, Any]:
    """Each fourth layer has no rotary embedding."""
    return {"no_rope_layers": [int((i + 1) % 4 != 0) for i in range(config["num_hidden_layers"])]}


def _falcon(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    if config["head_dim"] * heads != config["hidden_size"]:
        raise WeightsError(f"{file.path}: {a}.attention.key_length is not what {heads} heads have")
    norms = 1 + ("blk.0.attn_norm_2.weight" in file.tensors)
    if groups > 1 and norms == 1 and f"{a}.rope.freq_base" not in file.metadata:
        raise WeightsError(
            f"{file.path}: Falcon with {groups} heads of keys and one normalization (Falcon 2) has a base of "
            f"rotary embedding that this file lacks ({a}.rope.freq_base)"
        )
    grouped = {"new_decoder_architecture": True, "num_kv_heads": groups, "num_ln_in_parallel_attn": norms}
    return {
        "multi_query": True,
        "parallel_attn": True,
        "alibi": False,
        "bias": _has_bias(file, "attn_qkv"),
        **(grouped if groups > 1 else {"new_decoder_architecture": False}),
    }


def _stablelm(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    """Add what tensors tell. Files have a switch of parallel blocks too, but it may be wrong, since llama.cpp
    ignores it, and sees parallel blocks where a normalization is missing.
    """
    file.get(f"{a}.use_parallel_residual")
    return {
        "use_qkv_bias": _has_bias(file, "attn_q"),
        "qk_layernorm": "blk.0.attn_q_norm.weight" in file.tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors,
    }


def _ernie(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    # Files have another width of shared experts than the model, where it is that of all experts.
    file.get(f"{a}.expert_shared_feed_forward_length")
    _require(file, f"{a}.expert_gating_func", 1, " (softmax)")
    return {"use_bias": _has_bias(file, "attn_q")}


def _hunyuan(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        _require(file, f"{a}.{key}", config["intermediate_size"], " (feed_forward_length)")
    _require(file, f"{a}.expert_shared_count", 1)
    return _attention(file, a, config)


def _seed_oss(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention_bias": _has_bias(file, "attn_q"),
        "attention_out_bias": _has_bias(file, "attn_output"),
    }


def _llama4(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    """Add what llama.cpp knows of the models by itself: chunks of 8,192 tokens, no rotation in each fourth
    layer, and queries and keys that are normalized except in the model of 128 experts.
    """
    return {
        "attention_chunk_size": 8192,
        "use_qk_norm": config["num_local_experts"] != 128,
        "attention_bias": _has_bias(file, "attn_q"),
    } | _without_rotation(config)


def _lfm2(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    kinds = ["full_attention" if heads else "conv" for heads in _per_layer(file, a, 0)]
    return {"layer_types": kinds, "conv_bias": _has_bias(file, "shortconv.conv")}


def _jamba(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    routed = [i for i in range(layers) if f"blk.{i}.ffn_gate_inp.weight" in file.tensors]
    attending = [i for i, heads in enumerate(_per_layer(file, a, 0)) if heads]
    result: dict[str, Any] = {"mamba_expand": _expansion(file, a, config), "mamba_proj_bias": False}
    for name, places in (("attn", attending), ("expert", routed)):
        period = places[1] - places[0] if len(places) > 1 else layers
        offset = places[0] if places else layers
        if places != list(range(offset, layers, period)):
            raise WeightsError(f"{file.path}: layers {places} have no constant distance")
        result |= {f"{name}_layer_period": period, f"{name}_layer_offset": offset}
    return result


def _expansion(file: GGUFFile, a: str, config: dict[str, Any]) -> int:
    inner, hidden = file.need(f"{a}.ssm.inner_size", int), config["hidden_size"]
    if inner % hidden:
        raise WeightsError(f"{file.path}: {a}.ssm.inner_size is {inner}, which is no multiple of {hidden}")
    return int(inner // hidden)


def _qwen3_next(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    inner, heads = file.need(f"{a}.ssm.inner_size", int), config["linear_num_value_heads"]
    every = file.get(f"{a}.full_attention_interval", 4, int)
    if min(heads, every) < 1 or inner % heads:
        raise WeightsError(
            f"{file.path}: the metadata are inconsistent: {inner} values in {heads} heads, attention in one "
            f"of {every} layers"
        )
    layers = range(1, config["num_hidden_layers"] + 1)
    kinds = ["linear_attention" if layer % every else "full_attention" for layer in layers]
    return {
        "linear_value_head_dim": inner // heads,
        "layer_types": kinds,
        "attention_bias": any(name.endswith("attn_q.bias") for name in file.tensors),
    }


def _mamba(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    if file.get(f"{a}.ssm.dt_b_c_rms", False, bool):
        raise WeightsError(f"{file.path}: {a}.ssm.dt_b_c_rms is true (Falcon Mamba), which is not supported")
    return {
        "expand": _expansion(file, a, config),
        "use_bias": _has_bias(file, "ssm_in"),
        "use_conv_bias": _has_bias(file, "ssm_conv1d"),
    }


def _mamba2(file: GGUFFile, a: str, config: dict[str, Any]) -> dict[str, Any]:
    inner = file.need(f"{a}.ssm.inner_size", int)
    return _mamba(file, a, config) | {"head_dim": inner // max(config["num_heads"], 1)}


_FURTHER = {
    "llama": _biases,
    "qwen3": _attention_bias,
    "qwen3_moe": _attention_bias,
    "qwen3_next": _qwen3_next,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "starcoder2": _starcoder2,
    "gpt_neox": _gpt_neox,
    "olmo": _attention_bias,
    "olmo2": _attention_bias,
    "olmo3": _attention_bias,
    "olmoe": _attention_bias,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "glm4": _attention_bias,
    "glm4_moe": _glm4_moe,
    "granite": _granite,
    "granitemoe": _granite,
    "cohere": _attention,
    "cohere2": _attention_bias,
    "smollm3": _smollm3,
    "falcon": _falcon,
    "stablelm": _stablelm,
    "ernie4_5": _ernie,
    "ernie4_5_moe": _ernie,
    "hunyuan_v1_dense": _hunyuan,
    "hunyuan_v1_moe": _hunyuan,
    "seed_oss": _seed_oss,
    "nemotron": _biases,
    "llama4_text": _llama4,
    "lfm2": _lfm2,
    "jamba": _jamba,
    "mamba": _mamba,
    "mamba2": _mamba2,
}
