"""Compiled libraries of small Llamas, with random or trained weights, and the checks that all must pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.llm.small_tokenizer import tokenizer
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library
from tilewright.llm.weights import Conversion, convert


def checkpoint(folder: Path, vocabulary: int | None = None, layers: int = 2) -> Path:
    """Write a checkpoint with random weights as `transformers` does, and return its folder."""
    import torch

    model = llama(vocabulary or tokenizer().vocabulary, layers)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    model.save_pretrained(folder)
    return folder


def llama(vocabulary: int, layers: int = 2) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config)


@cache
def learned() -> Any:
    """The tokens that the model of `trained` knows by heart: int32 [300]."""
    text = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
    return np.array(tokenizer().encode(text)[:300], np.int32)


def trained(folder: Path) -> Path:
    """Write a checkpoint of a model that has learned a text by heart, so that its most probable token is far
    more probable than the next one; return its folder. Takes some seconds.
    """
    import torch

    model, tokens = llama(tokenizer().vocabulary), torch.tensor(learned().astype(np.int64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    steps, width = 200, 100
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # A step is too small to be shared, and waiting threads slow each other down.
    for _ in range(steps):
        starts = torch.randint(len(tokens) - width + 1, (8, 1))
        batch = tokens[starts + torch.arange(width)]
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    model.save_pretrained(folder)
    return folder


def library(folder: Path, scheme: str, options: LibraryOptions, target: str = "cpu") -> Any:
    """Return a checkpoint's library, with weights in a quantization `scheme`."""
    if scheme != "none":
        convert(folder, folder / scheme, Conversion(scheme))
        folder = folder / scheme
    return compile_library(folder, options, target=target)


def check_bits(
    runner: LibraryRunner,
    lengths: Sequence[int] = (130, 37),
    chunks: Sequence[int] = (1, 7, 32),
    count: int = 5,
) -> None:
    """Check that a token has the same logits to the bit in every chunk of a prompt, next to any other rows,
    and as one of several rows of its sequence.

    Args:
        runner: The library.
        lengths: The tokens of two prompts; the first has one page more than the second, or two.
        chunks: The lengths of chunks.
        count: The number of tokens decoded after each prompt.
    """
    tokens = np.random.default_rng(1).integers(5, runner.vocabulary, 150).astype(np.int32)
    pages = np.array([[0, 1, 2], [3, 4, 5], [2, 1, 0]], np.int32)

    def prefill(end: int, step: int, table: Any) -> Any:
        for start in range(0, end, step):
            stop = min(start + step, end)
            found = runner.prefill(tokens[start:stop], start, table[: -(-stop // 64)], 0)
        return found

    alone = []
    for row, length in enumerate(lengths):
        whole = prefill(length, runner.chunk, pages[row])
        for step in chunks:
            np.testing.assert_array_equal(prefill(length, step, pages[row]), whole, f"chunks of {step}")
        table, slot = pages[row : row + 1, : -(-(length + count) // 64)], np.zeros(1, np.int32)
        rows = [np.array([at], np.int32) for at in range(length, length + count)]
        alone.append([runner.decode(tokens[at], at, table, slot)[0] for at in rows])
    for together in {2, 3, count}:
        for row, length in enumerate(lengths):
            prefill(length, runner.chunk, pages[row])
        for at in range(0, count, together):
            ahead = np.arange(at, min(at + together, count), dtype=np.int32)
            where = np.concatenate([length + ahead for length in lengths])
            slots = np.repeat(np.arange(2, dtype=np.int32), len(ahead))
            found = runner.decode(tokens[where], where, pages[slots], slots)
            expected = [alone[row][i] for row in range(2) for i in ahead]
            np.testing.assert_array_equal(found, np.stack(expected), f"{together} rows of each sequence")


__all__ = ["check_bits", "checkpoint", "learned", "library", "llama", "trained"]
