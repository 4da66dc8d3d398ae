"""A compiled library of a small Llama with random weights, and the checks that every library must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.llm.small_tokenizer import tokenizer
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library
from tilewright.llm.weights import Conversion, convert


def checkpoint(folder: Path, vocabulary: int | None = None) -> Path:
    """Write a checkpoint as `transformers` does, and return its folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary or tokenizer().vocabulary,
        max_position_embeddings=512,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    model.save_pretrained(folder)
    return folder


def library(folder: Path, scheme: str, options: LibraryOptions, target: str = "cpu") -> Any:
    """Return a checkpoint's library, with weights in a quantization `scheme`."""
    if scheme != "none":
        convert(folder, folder / scheme, Conversion(scheme))
        folder = folder / scheme
    return compile_library(folder, options, target=target)


def check_bits(runner: LibraryRunner) -> None:
    """Check that a token has the same logits to the bit in every chunk of a prompt, next to any other rows,
    and as one of several rows of its sequence.
    """
    tokens = np.random.default_rng(1).integers(5, runner.vocabulary, 150).astype(np.int32)
    pages = np.array([[0, 1, 2], [3, 4, 5], [2, 1, 0]], np.int32)

    def prefill(end: int, step: int, table: Any) -> Any:
        for start in range(0, end, step):
            stop = min(start + step, end)
            found = runner.prefill(tokens[start:stop], start, table[: -(-stop // 64)], 0)
        return found

    lengths, count = [130, 37], 5
    alone = []
    for row, length in enumerate(lengths):
        whole = prefill(length, runner.chunk, pages[row])
        for step in (1, 7, 32):
            np.testing.assert_array_equal(prefill(length, step, pages[row]), whole, f"chunks of {step}")
        rows = [np.array([at], np.int32) for at in range(length, length + count)]
        alone.append(
            [
                runner.decode(tokens[at], at, pages[row : row + 1, : 3 - 2 * row], np.zeros(1, np.int32))[0]
                for at in rows
            ]
        )
    for together in (2, 3, count):
        for row, length in enumerate(lengths):
            prefill(length, runner.chunk, pages[row])
        for at in range(0, count, together):
            ahead = np.arange(at, min(at + together, count), dtype=np.int32)
            where = np.concatenate([length + ahead for length in lengths])
            slots = np.repeat(np.arange(2, dtype=np.int32), len(ahead))
            found = runner.decode(tokens[where], where, pages[slots], slots)
            expected = [alone[row][i] for row in range(2) for i in ahead]
            np.testing.assert_array_equal(found, np.stack(expected), f"{together} rows of each sequence")


__all__ = ["check_bits", "checkpoint", "library"]
