"""Folders in the form of `save_pretrained`: config.json, one or several safetensors files, tokenizer
files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import WeightsError
from .checkpoint import Checkpoint, LazyTensor, read_json
from .quantized_checkpoints import with_quantized_tensors
from .safetensors import read_safetensors

INDEX = "model.safetensors.index.json"
MODULES = "modules.json"
ACCOMPANYING = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "preprocessor_config.json",
    "processor_config.json",
    MODULES,
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
"""Files that a model keeps besides config.json and the weights."""
_OF_MODULES = "config.json", "model.safetensors"
"""Files in the folders of the modules that modules.json of sentence-transformers lists."""


def accompanying(path: Path) -> dict[str, Callable[[], bytes]]:
    """Return the files in a model's folder besides config.json and the weights, by their paths there; calling
    one reads it.

    Raises:
        WeightsError: modules.json is not one that `listed_modules` reads.
    """
    names = [*ACCOMPANYING]
    if (path / MODULES).is_file():
        for _, folder in listed_modules(path, (path / MODULES).read_bytes()):
            names += [f"{folder}/{name}" for name in _OF_MODULES if folder]
    return {name: (path / name).read_bytes for name in names if (path / name).is_file()}


def listed_modules(path: Path, content: bytes) -> list[tuple[str, str]]:
    """Return the class and the folder of each module that modules.json of sentence-transformers lists.

    Args:
        path: the model's folder; the folder of a module is empty for this one, or the name of one in it.
        content: the bytes of modules.json.

    Raises:
        WeightsError: it is not a list of modules, or names a folder outside of the model's.
    """
    try:
        listed = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in json.loads(content)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WeightsError(f"{path / MODULES}: not a list of modules: {error!r}") from None
    for _, folder in listed:
        if folder != Path(folder).name or folder == "..":
            raise WeightsError(f"{path / MODULES}: {folder!r} is not the name of a folder in it")
    return listed


def read_folder(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder.

    Weights quantized by AWQ, GPTQ or in blocks of 8-bit floats have a `scheme`.

    Raises:
        WeightsError: a file is missing or damaged, or the weights are quantized in another way.
    """
    config = read_json(path / "config.json")
    shards = _shards(path)
    tensors: dict[str, LazyTensor] = {}
    for shard, names in shards.items():
        stored, _ = read_safetensors(shard)
        for name in names if names is not None else stored:
            if name not in stored:
                raise WeightsError(
                    f"{path / INDEX}: {name} should be in {shard.name}, which does not have it"
                )
            tensors[name] = stored[name]
    checkpoint = Checkpoint(path, tensors, config, accompanying(path), tuple(shards))
    return with_quantized_tensors(checkpoint)


def _shards(path: Path) -> dict[Path, list[str] | None]:
    """Return the files with tensors, and the names of each file's tensors (None: all)."""
    index = path / INDEX
    if index.is_file():
        weight_map: Any = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise WeightsError(f"{index}: has no weight_map")
        shards: dict[Path, list[str] | None] = {}
        for name, file in weight_map.items():
            if not isinstance(file, str) or file != Path(file).name:
                raise WeightsError(
                    f"{index}: {name} lies in {file!r}, which is not the name of a file in this folder"
                )
            names = shards.setdefault(path / file, [])
            assert names is not None
            names.append(name)
        return shards
    single = path / "model.safetensors"
    if single.is_file():
        return {single: None}
    others = sorted(path.glob("*.safetensors"))
    if len(others) == 1:
        return {others[0]: None}
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise WeightsError(
            f"{path}: has its weights in PyTorch's pickle files, which are not supported because they can "
            "run code; "
            "save the model again with save_pretrained(..., safe_serialization=True)"
        )
    raise WeightsError(f"{path}: neither {INDEX} nor model.safetensors is there")
