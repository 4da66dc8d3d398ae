"""Small models with random weights, as `transformers` makes them, in Hugging Face folders and GGUF files."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
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
    "gpt_neox": {"rotary_pct": 0.5},
    "olmo2": {},
}
"""The parameters that differ from `SMALL`, by Hugging Face's model_type."""

_ARCHITECTURES = {
    "llama": "llama",
    "mixtral": "llama",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


def small_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """Return a model in float32 whose weights, biases and norms are all random."""
    base = {} if family == "gpt2" else SMALL
    config = transformers.AutoConfig.for_model(family, **base | FAMILIES[family] | changes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def folder_of(model: Any, path: Path, shard_size: str = "50GB", dtype: torch.dtype | None = None) -> Path:
    """Save a model to a folder, and return the folder."""
    (model.to(dtype) if dtype else model).save_pretrained(path, max_shard_size=shard_size)
    return path


def gguf_of(folder: Path, path: Path, kinds: Any = "F32", tokenizer: dict[str, Any] | None = None) -> Path:
    """Write the model of a folder as llama.cpp's converter does, with the package `gguf`. `kinds` is the
    format of matrices, or a function that returns it for a name in GGUF. `tokenizer` is further metadata.
    """
    from safetensors.torch import load_file

    config = transformers.AutoConfig.from_pretrained(folder)
    get = lambda *keys: next((v for k in keys if (v := getattr(config, k, None)) is not None), None)  # noqa: E731
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    heads, hidden = config.num_attention_heads, config.hidden_size
    kv_heads = get("num_key_value_heads") or heads
    layers = config.num_hidden_layers
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {name: t.float().numpy() for name, t in load_file(file).items()}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(get("intermediate_size", "n_inner"))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    head_dim = get("head_dim") or hidden // heads
    writer.add_key_length(head_dim)
    if (epsilon := get("rms_norm_eps")) is not None:
        writer.add_layer_norm_rms_eps(epsilon)
    else:
        writer.add_layer_norm_eps(get("norm_epsilon", "layer_norm_eps", "layer_norm_epsilon"))
    rope = get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if rope:
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if get("sliding_window"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if experts := get("num_local_experts", "num_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if length := get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(length)
        if length := get("shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(length)
    for key, value in (tokenizer or {}).items():
        add_value(writer, key, value)
    kind_of = kinds if callable(kinds) else lambda _: kinds
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[architecture], layers)
    for name, array in _stacked(tensors).items():
        found = names.get_name(name, (".weight", ".bias"))
        assert found, name
        array = _as_llama_cpp(architecture, name, array, heads, kv_heads)
        kind = kind_of(found) if array.ndim > 1 else "F32"
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
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors with each layer's experts stacked in one array, under the name that the package
    `gguf` has for them.
    """
    result: dict[str, Any] = {}
    for name in tensors:
        if match := _EXPERT.fullmatch(name):
            stacked = f"{match[1]}.{match[3]}.weight"
            if stacked not in result:
                count = sum(
                    bool((m := _EXPERT.fullmatch(n)) and (m[1], m[3]) == (match[1], match[3]))
                    for n in tensors
                )
                result[stacked] = np.stack(
                    [tensors[f"{match[1]}.{e}.{match[3]}.weight"] for e in range(count)]
                )
        else:
            result[name] = tensors[name]
    return result


def _as_llama_cpp(architecture: str, name: str, array: np.ndarray, heads: int, kv_heads: int) -> np.ndarray:
    if architecture == "llama" and (match := re.search(r"(q|k)_proj", name)):
        n = heads if match[1] == "q" else kv_heads
        return (
            array.reshape(n, 2, array.shape[0] // n // 2, *array.shape[1:])
            .swapaxes(1, 2)
            .reshape(array.shape)
        )
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    if architecture == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight", name):
        return array.T
    if architecture == "gptneox" and "query_key_value" in name:
        by_head = array.reshape(heads, 3, -1, *array.shape[1:])
        return np.concatenate([by_head[:, i].reshape(-1, *array.shape[1:]) for i in range(3)])
    return array
