"""`read_gguf`: reads a GGUF file as a Hugging Face checkpoint, with its names, orders of rows, configuration
and tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import WeightsError
from .checkpoint import Checkpoint, LazyTensor
from .gguf_config import config_of, rope_parameters
from .gguf_file import GGUFFile, read_gguf_file
from .gguf_names import FAMILIES, Family, hugging_face_name
from .gguf_tokenizer import tokenizer_files


def read_gguf(path: Path) -> Checkpoint:
    """Return the checkpoint in a file, with the tensors that `save_pretrained` would write.

    Raises:
        WeightsError: the file is damaged, or its architecture is not supported.
    """
    file = read_gguf_file(path)
    architecture = file.need("general.architecture", str)
    if architecture not in FAMILIES:
        raise WeightsError(f"{path}: has architecture {architecture}; supported: {', '.join(FAMILIES)}")
    family = FAMILIES[architecture]
    config = config_of(file, family)
    if file.get(f"{architecture}.expert_count", 0, int):
        if not family.experts:
            raise WeightsError(f"{path}: experts of architecture {architecture} are not supported")
    tensors: dict[str, LazyTensor] = {}
    for name, tensor in file.tensors.items():
        if name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"):
            continue  # config.json contains it
        for converted in _as_hugging_face(file, family, name, tensor, config):
            if converted.name in tensors:
                raise WeightsError(f"{tensor.where}: another tensor is {converted.name} too")
            tensors[converted.name] = converted
    config |= rope_parameters(file, config)
    config["dtype"] = _common_dtype(tensors)
    # Ids of missing tokens stay null, since families have their own default ids.
    config = {key: value for key, value in config.items() if value is not None or key.endswith("_token_id")}
    return Checkpoint(path, tensors, config, tokenizer_files(file, config), file.sources)


def _as_hugging_face(
    file: GGUFFile, family: Family, name: str, tensor: LazyTensor, config: dict[str, Any]
) -> list[LazyTensor]:
    """Convert a tensor to Hugging Face's form: one tensor, or one for each expert."""
    target = hugging_face_name(family, name)
    if target is None:
        raise WeightsError(f"{tensor.where}: {family.model_type} has no tensor of this name")
    if "{expert}" in target:
        return [one.renamed(target.replace("{expert}", str(e))) for e, one in enumerate(file.slices(name))]
    tensor = tensor.renamed(target)
    if family.rotary_pairs and (match := family.rotary_pairs.search(name)):
        heads = config["num_attention_heads"] if match[1] == "q" else config["num_key_value_heads"]
        return [_reorder_rows(tensor, _halves_from_pairs(tensor, heads))]
    if family.joined_heads and ".attn_qkv." in name:
        return [_reorder_rows(tensor, _heads_joined(tensor, config["num_attention_heads"]))]
    if family.norm_offset and name.endswith("norm.weight"):
        offset = np.float32(family.norm_offset)
        return [tensor.map(lambda a: (a.astype(np.float32) - offset).astype(a.dtype))]
    if family.transposed and family.transposed.search(name):
        return [tensor.transpose()]
    return [tensor]


def _reorder_rows(tensor: LazyTensor, order: np.ndarray[Any, Any]) -> LazyTensor:
    return tensor.map(lambda a: a[order], parts=lambda a: a[order])


def _halves_from_pairs(tensor: LazyTensor, heads: int) -> np.ndarray[Any, Any]:
    """Restore the row order of rotary halves.

    Files by llama.cpp have the rows of a head in the order 0, d/2, 1, d/2 + 1, ..., because its rotary
    embedding rotates neighboring elements.
    """
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise WeightsError(f"{tensor.where}: has {rows} rows, which are not {heads} heads")
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _heads_joined(tensor: LazyTensor, heads: int) -> np.ndarray[Any, Any]:
    """Restore GPT-NeoX's row order: q, k, v of the first head, then of the second, ...

    GGUF files have all q, then all k, then all v.
    """
    rows = tensor.shape[0]
    if rows % (3 * heads):
        raise WeightsError(f"{tensor.where}: has {rows} rows, which are not three times {heads} heads")
    return np.arange(rows).reshape(3, heads, rows // heads // 3).swapaxes(0, 1).reshape(-1)


def _common_dtype(tensors: dict[str, LazyTensor]) -> str:
    """Return the type of most elements.

    For quantized tensors it is unknown whether they were float16 or bfloat16; float32 loses nothing.
    """
    counts: dict[str, int] = {}
    for tensor in tensors.values():
        counts[tensor.dtype.name] = counts.get(tensor.dtype.name, 0) + int(np.prod(tensor.shape))
    return max(counts, key=lambda name: counts[name], default="float32")
