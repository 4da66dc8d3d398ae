"""`read_gguf`: reads a GGUF file as a Hugging Face checkpoint, with its names, orders of rows, configuration
and tokenizer.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ...errors import WeightsError
from .checkpoint import Checkpoint, LazyTensor
from .gguf_config import config_of
from .gguf_file import GGUFFile, read_gguf_file
from .gguf_names import Family, family_of, hugging_face_name
from .gguf_rope import TENSORS
from .gguf_steps import undone
from .gguf_tokenizer import tokenizer_files

_LAYER = re.compile(r"blk\.(\d+)\.")


def read_gguf(path: Path) -> Checkpoint:
    """Return the checkpoint in a file, with the tensors that `save_pretrained` would write.

    Raises:
        WeightsError: the file is damaged, its architecture is not supported, or its metadata have a key that
            is not.
    """
    file = read_gguf_file(path)
    family = family_of(file)
    config = config_of(file, family)
    layers = config["num_hidden_layers"]
    # Further layers, which predict more than one token, are left out, as in Hugging Face's models.
    wanted = {
        name: tensor
        for name, tensor in file.tensors.items()
        if name not in TENSORS and not ((match := _LAYER.match(name)) and int(match[1]) >= layers)
    }
    tensors: dict[str, LazyTensor] = {}
    for name, tensor in undone(family.steps, wanted, config).items():
        for converted in _renamed(file, family, name, tensor):
            if converted.name in tensors:
                raise WeightsError(f"{tensor.where}: another tensor is {converted.name} too")
            tensors[converted.name] = converted
    config["dtype"] = _common_dtype(tensors)
    # Families have their own defaults, also where null means that there is no token, window or compression.
    nullable = {"sliding_window", "q_lora_rank", *(key for key in config if key.endswith("_token_id"))}
    config = {
        theirs: value
        for key, value in config.items()
        if (theirs := family.renamed.get(key, key)) and (value is not None or key in nullable)
    }
    return Checkpoint(path, tensors, config, tokenizer_files(file, config), file.sources)


def _renamed(file: GGUFFile, family: Family, name: str, tensor: LazyTensor) -> list[LazyTensor]:
    """Return a tensor by Hugging Face's name, or its slices by theirs."""
    target = hugging_face_name(family, name)
    if target is None:
        raise WeightsError(f"{tensor.where}: {family.model_type} has no tensor of this name")
    if "{index}" in target:
        return [one.renamed(target.replace("{index}", str(i))) for i, one in enumerate(file.slices(name))]
    return [tensor.renamed(target)]


def _common_dtype(tensors: dict[str, LazyTensor]) -> str:
    """Return the type of most elements.

    For quantized tensors it is unknown whether they were float16 or bfloat16; float32 loses nothing.
    """
    counts: dict[str, int] = {}
    for tensor in tensors.values():
        counts[tensor.dtype.name] = counts.get(tensor.dtype.name, 0) + int(np.prod(tensor.shape))
    return max(counts, key=lambda name: counts[name], default="float32")
