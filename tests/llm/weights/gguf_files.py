"""Writes GGUF files as llama.cpp's converter does, with the package `gguf`."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers

Tensors = dict[str, np.ndarray]

_ARCHITECTURES = {
    "mixtral": "llama",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gpt_oss": "gpt-oss",
    "glm4_moe": "glm4moe",
    "cohere": "command-r",
    "phi": "phi2",
    "olmo3": "olmo2",
    "ernie4_5_moe": "ernie4_5-moe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "llama4_text": "llama4",
}


def gguf_of(
    folder: Path,
    path: Path,
    kinds: Any = "F32",
    tokenizer: dict[str, Any] | None = None,
    keys: dict[str, Any] | None = None,
    extra: Tensors | None = None,
) -> Path:
    """Write the model of a folder as llama.cpp's converter does. `kinds` is the format of matrices, or a
    function that returns it for a name in GGUF. `tokenizer` is further metadata. `keys` of the architecture
    replace the converter's; None removes one. `extra` tensors are added under GGUF's names.
    """
    from safetensors.torch import load_file

    config = transformers.AutoConfig.from_pretrained(folder)
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    layers = config.num_hidden_layers
    tensors: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {name: t.float().numpy() for name, t in load_file(file).items()}
    writer = gguf.GGUFWriter(path, architecture)
    _metadata(writer, architecture, config, keys or {})
    for key, value in (tokenizer or {}).items():
        add_value(writer, key, value)
    kind_of = kinds if callable(kinds) else lambda _: kinds
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[architecture], layers)
    for name, array in _as_llama_cpp(architecture, _stacked(tensors), config).items():
        found = name if name.startswith("blk.") else names.get_name(name, (".weight", ".bias"))
        assert found, name
        kind = kind_of(found) if array.ndim > 1 and "norm" not in name else "F32"
        form = gguf.GGMLQuantizationType[kind]
        if kind == "F32":
            writer.add_tensor(found, np.ascontiguousarray(array))
        elif kind == "F16":
            writer.add_tensor(found, array.astype(np.float16))
        elif kind in _BLOCKS:
            blocks = _random_blocks(kind, array.size // gguf.GGML_QUANT_SIZES[form][0], array.tobytes())
            writer.add_tensor(found, blocks.reshape(*array.shape[:-1], -1), raw_dtype=form)
        else:
            array = np.ascontiguousarray(array)
            writer.add_tensor(found, gguf.quants.quantize(array, form), raw_dtype=form)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_BLOCKS = {
    "Q2_K": {80: 3e-3, 82: 4e-3},
    "Q3_K": {108: 1.2e-3},
    "Q4_K": {0: 2e-4, 2: 1.5e-3},
    "Q5_K": {0: 1e-4, 2: 1.5e-3},
    "Q6_K": {208: 4e-5},
    "IQ4_NL": {0: 1e-3},
    "IQ4_XS": {0: 4e-5},
}
"""Formats that the package `gguf` only reads: bytes of float16 scales in a block, and about their size."""


def _random_blocks(kind: str, count: int, seed: bytes) -> np.ndarray:
    """Blocks of random bytes with scales that make numbers of about 0.05."""
    rng = np.random.default_rng(zlib.crc32(seed))
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at, scale in _BLOCKS[kind].items():
        scales = (scale * rng.uniform(0.7, 1.3, count)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


# Metadata

_COMMON = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "moe_topk", "moe_k"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "leading_dense_block_count": ("first_k_dense_replace", "moe_layer_start_index"),
    "interleave_moe_layer_step": ("interleave_moe_layer_step", "moe_layer_interval"),
    "use_parallel_residual": ("use_parallel_residual",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "shortconv.l_cache": ("conv_L_cache",),
    "ssm.conv_kernel": ("conv_kernel", "mamba_d_conv"),
    "ssm.state_size": ("state_size", "mamba_d_state"),
    "ssm.time_step_rank": ("time_step_rank", "mamba_dt_rank"),
    "ssm.group_count": ("n_groups",),
}
"""Keys that the converter writes for the keys of config.json."""
_UNWRITTEN = {
    "falcon": ("rope",),
    "bloom": ("rope",),
    "gpt2": ("rope",),
    "jamba": ("rope", "layer_norm_epsilon"),
    "mamba": ("rope", "expert"),
    "mamba2": ("rope", "expert"),
    "phi2": ("rope.freq_base",),
    "olmoe": ("attention.clamp_kqv",),
    "smollm3": ("attention.sliding_window",),
    "qwen2": ("attention.sliding_window",),
    "qwen2moe": ("attention.sliding_window",),
    "qwen3": ("attention.sliding_window",),
    "qwen3moe": ("attention.sliding_window",),
    "llama": ("attention.sliding_window",),
    "stablelm": ("rope.freq_base",),
}
"""Parts of names of keys that the converter of an architecture does not write."""


def _metadata(writer: gguf.GGUFWriter, architecture: str, config: Any, keys: dict[str, Any]) -> None:
    values: dict[str, Any] = {"block_count": config.num_hidden_layers}
    for key, names in _COMMON.items():
        found = [v for name in names if (v := getattr(config, name, None)) is not None]
        if found:
            values[key] = found[0]
    heads = getattr(config, "num_attention_heads", 0)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1)
    values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    values |= _rope(config, head_dim)
    if hasattr(config, "norm_topk_prob"):
        values["expert_weights_norm"] = config.norm_topk_prob
    further = _FURTHER.get(architecture)
    values |= further(config) if further else {}
    unwritten = _UNWRITTEN.get(architecture, ())
    written = {key: v for key, v in values.items() if not any(part in key for part in unwritten)}
    for key, value in (written | keys).items():
        if value is not None:
            add_value(writer, f"{architecture}.{key}", value)


def _rope(config: Any, head_dim: int) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if not rope:
        return {}
    values: dict[str, Any] = {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1)),
    }
    if rope.get("rope_type") == "yarn":
        values |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
        for key in ("attention_factor", "beta_fast", "beta_slow"):
            if rope.get(key) is not None:
                values[f"rope.scaling.yarn_{key.replace('attention', 'attn')}"] = float(rope[key])
    return values


def _latent(config: Any) -> dict[str, Any]:
    """Latent attention is attention with one head of keys for llama.cpp."""
    rope = config.rope_parameters
    values = {
        "attention.head_count_kv": 1,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "expert_gating_func": 2 if config.model_type == "deepseek_v3" else 1,
        "expert_weights_norm": True if getattr(config, "norm_topk_prob", False) else None,
    }
    if rope.get("mscale_all_dim"):
        values["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return values


def _slides(config: Any) -> dict[str, Any]:
    if not config.sliding_window:
        return {}
    return {"attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types]}


def _kv_of_layers(config: Any, kinds: list[str]) -> list[int]:
    return [config.num_key_value_heads if "attention" in kind else 0 for kind in kinds]


def _states(config: Any, inner: int) -> dict[str, Any]:
    """State spaces without attention, for which the converter writes numbers that have no meaning."""
    return {
        "context_length": 1 << 20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "ssm.inner_size": inner,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "attention.layer_norm_epsilon": None,
        "attention.key_length": None,
        "attention.value_length": None,
    }


_FURTHER: dict[str, Callable[[Any], dict[str, Any]]] = {
    "deepseek2": _latent,
    "gpt-oss": lambda c: {"expert_feed_forward_length": c.intermediate_size},
    "glm4moe": lambda c: {"expert_gating_func": 2, "nextn_predict_layers": 0},
    "falcon": lambda c: {
        "context_length": 2048,
        "tensor_data_layout": "jploski",
        "feed_forward_length": 4 * c.hidden_size,
        "attention.head_count_kv": c.num_kv_heads if c.new_decoder_architecture else 1,
    },
    "bloom": lambda c: {"feed_forward_length": 4 * c.hidden_size, "context_length": 128},
    "olmo": lambda c: {"attention.layer_norm_epsilon": 1e-5},
    "olmo2": lambda c: _slides(c) if c.model_type == "olmo3" else {},
    "exaone4": _slides,
    "ernie4_5-moe": lambda c: {"expert_shared_feed_forward_length": 48},
    "hunyuan-moe": lambda c: {
        "expert_shared_count": 1,
        "expert_feed_forward_length": c.intermediate_size,
        "expert_shared_feed_forward_length": c.intermediate_size,
    },
    "nemotron": lambda c: {
        "attention.layer_norm_epsilon": c.norm_eps,
        "rope.scaling.type": "none",
        "attention.layer_norm_rms_epsilon": None,
    },
    "llama4": lambda c: {
        "feed_forward_length": c.intermediate_size_mlp,
        "expert_feed_forward_length": c.intermediate_size,
    },
    "qwen3next": lambda c: {
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "ssm.state_size": c.linear_key_head_dim,
        "ssm.group_count": c.linear_num_key_heads,
        "ssm.time_step_rank": c.linear_num_value_heads,
        "ssm.inner_size": c.linear_value_head_dim * c.linear_num_value_heads,
        "full_attention_interval": 4,
    },
    "lfm2": lambda c: {"attention.head_count_kv": _kv_of_layers(c, c.layer_types)},
    "jamba": lambda c: {
        "attention.head_count_kv": _kv_of_layers(c, c.layers_block_type),
        "ssm.inner_size": c.mamba_expand * c.hidden_size,
    },
    "mamba": lambda c: _states(c, c.intermediate_size) | {"ssm.dt_b_c_rms": False},
    "mamba2": lambda c: (
        _states(c, 2 * c.hidden_size) | {"ssm.time_step_rank": 2 * c.hidden_size // c.head_dim}
    ),
}


# Tensors

_SLICE = re.compile(r"(.*\.(?:experts|norms))\.(\d+)\.(?:(\w+)\.)?weight")


def _stacked(tensors: Tensors) -> Tensors:
    """Return the tensors with each layer's experts, or normalizations of heads, stacked in one array, under
    the name that the package `gguf` has for them.
    """
    groups: dict[str, dict[int, np.ndarray]] = {}
    result: dict[str, Any] = {}
    for name, array in tensors.items():
        match = _SLICE.fullmatch(name)
        if not match:
            result[name] = array
            continue
        stem = match[1].removesuffix(".norms").replace("feed_forward.experts", "mlp.experts")
        stacked = f"{stem}.{match[3]}.weight" if match[3] else f"{stem}.weight"
        result[stacked] = groups.setdefault(stacked, {})
        groups[stacked][int(match[2])] = array
    for name, parts in groups.items():
        result[name] = np.stack([parts[i] for i in range(len(parts))])
    return result


def _as_llama_cpp(architecture: str, tensors: Tensors, config: Any) -> Tensors:
    """Return the tensors in llama.cpp's order of rows, shapes and values, by names that `gguf` translates."""
    heads = getattr(config, "num_attention_heads", 0)
    groups = getattr(config, "num_key_value_heads", None) or heads
    if architecture == "falcon":
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
    result: Tensors = {}
    for name, array in tensors.items():
        match = re.search(r"\.(q|k)_proj\.", name)
        if architecture in ("llama", "olmo", "granite", "granitemoe", "smollm3") and match:
            array = _pairs(array, heads if match[1] == "q" else groups)
        if architecture.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
            array = array + 1
        if architecture == "qwen3next" and re.search(r"norm\.weight$(?<!linear_attn.norm.weight)", name):
            array = array + 1
        if architecture == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight", name):
            array = array.T
        if architecture in ("gptneox", "bloom", "falcon") and "query_key_value" in name:
            array = _queries_keys_values(array, heads, groups)
        if "conv1d.weight" in name or ".conv.conv." in name:
            array = array.squeeze(1)
        if name.endswith("A_log"):
            array = -np.exp(array)
        if architecture == "mamba2" and name.endswith(("A_log", ".D")):
            array = array[:, None]
        if architecture == "mamba2" and name.endswith("mixer.norm.weight"):
            array = array.reshape(config.n_groups, -1)
        name = name.removeprefix("transformer.") if architecture == "bloom" else name
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace(".dt_bias", ".dt_proj.bias").replace(".sinks", ".sinks.weight")
        result |= _split(architecture, name, array, config)
    return result


def _pairs(array: np.ndarray, heads: int) -> np.ndarray:
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _queries_keys_values(array: np.ndarray, heads: int, groups: int) -> np.ndarray:
    by_group = array.reshape(groups, heads // groups + 2, -1, *array.shape[1:])
    parts = (by_group[:, :-2], by_group[:, -2], by_group[:, -1])
    return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])


def _split(architecture: str, name: str, array: np.ndarray, config: Any) -> Tensors:
    """Return the tensors that the converter makes of one."""
    if name.endswith("kv_b_proj.weight"):
        size = config.qk_nope_head_dim
        by_head = array.reshape(config.num_attention_heads, size + config.v_head_dim, -1)
        stem = name.removesuffix("kv_b_proj.weight")
        keys, values = by_head[:, :size].swapaxes(1, 2), by_head[:, size:]
        return {f"{stem}k_b_proj.weight": keys, f"{stem}v_b_proj.weight": values}
    if name.endswith("in_proj_qkvz.weight"):
        groups, size = config.linear_num_key_heads, config.linear_key_head_dim
        by_group = array.reshape(groups, -1, array.shape[-1])
        edge = size + size + (by_group.shape[1] - 2 * size) // 2
        parts = np.split(by_group, [size, 2 * size, edge], 1)
        q, k, v, z = (part.reshape(-1, array.shape[-1]) for part in parts)
        layer = name.split(".")[2]
        return {f"blk.{layer}.attn_qkv.weight": np.concatenate([q, k, v]), f"blk.{layer}.attn_gate.weight": z}
    if architecture == "granitemoe" and "input_linear" in name:
        gate, up = np.split(array, 2, 1)
        stem = name.split("block_sparse_moe")[0] + "block_sparse_moe.experts."
        return {f"{stem}w1.weight": gate, f"{stem}w3.weight": up}
    if architecture in ("gpt-oss", "llama4") and ".experts." in name:
        kind = "bias" if name.endswith("_bias") else "weight"
        stem = name.removesuffix("_bias")
        array = array.swapaxes(1, 2) if kind == "weight" else array
        if stem.endswith("down_proj"):
            return {f"{stem}.{kind}": array}
        gate, up = (array[:, ::2], array[:, 1::2]) if architecture == "gpt-oss" else np.split(array, 2, 1)
        stem = stem.removesuffix("gate_up_proj")
        return {f"{stem}gate_proj.{kind}": gate, f"{stem}up_proj.{kind}": up}
    return {name: array}
