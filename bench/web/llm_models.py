"""The language models of the comparison with wllama: as GGUF files with int4 weights, which both engines
get, and as folders compiled from these files.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..llm.model import Size, Source, write

ROOT = Path(__file__).parents[2]
SMALL_MODEL = ROOT / "examples" / "small-model"
SIZES = {
    "small-model": Size(
        256, 6, 4, 2, 768, 4096, prompt=512, context=(64, 512), users=4, epsilon=1e-6, tied=True
    ),
    "llama-100m": Size(768, 12, 12, 4, 2048, 16384, prompt=512, context=(64, 512), users=4),
}
"""``small-model`` has the weights of the repository's example, ``llama-100m`` random ones."""
TARGETS = ("wasm32:relaxed", "wasm32:relaxed+threads")
"""Targets with one thread and with several."""


def file_of(target: str) -> str:
    """A target as a part of a folder's name."""
    return target.replace(":", "-").replace("+", "-")


def prepare(name: str, folder: Path) -> None:
    """Write ``model.gguf`` and a folder for each of `TARGETS` into `folder`, unless they are there."""
    from tilewright.llm.library import LibraryOptions, compile_library
    from tilewright.llm.web_folder import save_web_folder
    from tilewright.llm.weights import open_checkpoint

    folder.mkdir(parents=True, exist_ok=True)
    path, size = folder / "model.gguf", SIZES[name]
    if not path.exists():
        partial = path.with_suffix(".partial")
        write(size, "int4", partial, small_model() if name == "small-model" else None)
        partial.rename(path)
    checkpoint = open_checkpoint(path)
    options = LibraryOptions(context=1024, chunk=size.prompt, max_batch=size.users)
    for target in TARGETS:
        if not (folder / file_of(target) / "web-model.json").exists():
            library = compile_library(checkpoint, options, target=target)
            save_web_folder(library, checkpoint, folder / file_of(target), name)


def small_model() -> Source:
    """The weights and the tokenizer of the repository's example."""
    from safetensors.torch import load_file

    size, file = SIZES["small-model"], SMALL_MODEL / "model.safetensors"
    tensors = cache(lambda: load_file(file))
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        **{f"attn_{kind}": f"self_attn.{kind}_proj" for kind in "qkv"},
        "attn_output": "self_attn.o_proj",
        **{f"ffn_{kind}": f"mlp.{kind}_proj" for kind in ("gate", "up", "down")},
    }

    def tensor(name: str) -> np.ndarray[Any, Any]:
        block, _, kind = name.rpartition(".")
        prefix = block.replace("blk.", "model.layers.") + "." if block else ""
        values: np.ndarray[Any, Any] = tensors()[f"{prefix}{names[kind]}.weight"].float().numpy()
        heads = {"attn_q": size.heads, "attn_k": size.kv_heads}.get(kind)
        if heads is None:
            return values
        # llama.cpp rotates neighbouring pairs of a Llama's query and key, Hugging Face's form both halves.
        halves = values.reshape(heads, 2, -1, values.shape[1])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)

    return Source(tensor, _add_tokenizer)


def _add_tokenizer(writer: Any) -> None:
    from gguf import TokenType

    tokenizer = json.loads((SMALL_MODEL / "tokenizer.json").read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    settings = json.loads((SMALL_MODEL / "tokenizer_config.json").read_text())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token in vocabulary]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(vocabulary.index(settings["bos_token"]))
    writer.add_eos_token_id(vocabulary.index(settings["eos_token"]))
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])
