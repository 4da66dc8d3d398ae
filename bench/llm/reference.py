"""The model by its definition, in NumPy and float32, with the weights of the GGUF file; one matrix is in
memory at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .model import Size

Array = np.ndarray[Any, Any]


def logits(size: Size, path: Path, tokens: list[int]) -> Array:
    """The logits [tokens, vocabulary] after each token of a text."""
    from gguf import GGUFReader, dequantize

    tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in GGUFReader(path).tensors}

    def weight(name: str) -> Array:
        found = tensors[name]
        return dequantize(found.data, found.tensor_type)

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + size.epsilon) * weight(name)

    x = weight("token_embd")[tokens]
    for i in range(size.layers):
        h = norm(x, f"blk.{i}.attn_norm")
        q, k, v = (_heads(h @ weight(f"blk.{i}.attn_{name}").T, size.head_dim) for name in "qkv")
        mixed = _attention(_turned(q, size.theta), _turned(k, size.theta), v)
        x = x + mixed @ weight(f"blk.{i}.attn_output").T
        h = norm(x, f"blk.{i}.ffn_norm")
        gate = h @ weight(f"blk.{i}.ffn_gate").T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (h @ weight(f"blk.{i}.ffn_up").T)) @ weight(f"blk.{i}.ffn_down").T
        )
    return norm(x, "output_norm") @ weight("output").T


def _heads(x: Array, dim: int) -> Array:
    """[tokens, heads * dim] to [heads, tokens, dim]."""
    return x.reshape(len(x), -1, dim).swapaxes(0, 1)


def _turned(x: Array, theta: float) -> Array:
    """Rotary embedding (arXiv:2104.09864) of adjacent elements, the row order of Llama's GGUF files."""
    tokens, dim = x.shape[1:]
    angle = np.arange(tokens)[:, None] * theta ** -(np.arange(0, dim, 2) / dim)
    pairs = x.reshape(*x.shape[:-1], dim // 2, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(np.float32)


def _attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention with several query heads per key head: [tokens, heads * dim]."""
    repeats = len(q) // len(k)
    k, v = (np.repeat(a, repeats, 0) for a in (k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores += np.triu(np.full(scores.shape[1:], -np.inf, np.float32), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = weights / weights.sum(-1, keepdims=True) @ v
    return mixed.swapaxes(0, 1).reshape(q.shape[1], -1)
