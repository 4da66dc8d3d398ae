"""Small encoder-decoders with random weights, made by `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_T5 = {
    "vocab_size": 96, "d_model": 64, "d_kv": 24, "d_ff": 80, "num_layers": 2, "num_decoder_layers": 3,
    "num_heads": 4, "relative_attention_num_buckets": 12, "relative_attention_max_distance": 30,
    "decoder_start_token_id": 0,
}  # fmt: skip
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5 1.1": (
        "T5ForConditionalGeneration",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5ForConditionalGeneration", {**_T5, "feed_forward_proj": "gated-gelu"}),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            "vocab_size": 96, "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "num_mel_bins": 10,
            "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 80, "max_source_positions": 70, "max_target_positions": 64,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 2,
            "begin_suppress_tokens": None,
        },
    ),
}  # fmt: skip


def checkpoint(name: str, folder: Path) -> Any:
    """Return a model of `transformers`, saved in `folder`, in which every parameter affects the logits."""
    architecture, numbers = PAIRS[name]
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = cls(cls.config_class(**numbers)).float().eval()
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if p.ndim < 2:
                p.normal_(1.0 if parameter_name.endswith("weight") else 0.0, 0.3)
            elif "relative_attention_bias" in parameter_name or "embed_positions" in parameter_name:
                p.normal_(0, 1)
            else:
                # Scores of T5 are not divided by the root of the size of a head.
                narrow = 0.4 if "t5" in name and (".q." in parameter_name or ".k." in parameter_name) else 1.5
                p.normal_(0, narrow * p[0].numel() ** -0.5)
    model.save_pretrained(folder)
    return model


def source(name: str, batch: int, n: int) -> Any:
    """Return inputs of the encoder: tokens [batch, n], or frames [batch, 140, 10] of audio."""
    generator = np.random.default_rng(batch)
    if name == "whisper":
        return generator.standard_normal((batch, 140, 10)).astype(np.float32)
    return generator.integers(3, 96, (batch, n))


def logits(model: Any, given: Any, tokens: Any, mask: Any = None) -> Any:
    """Return what a model of `transformers` gives for inputs of the encoder and `tokens` [batch, n] of the
    decoder: [batch, n, vocabulary].
    """
    named = (
        {"input_features": torch.from_numpy(given.transpose(0, 2, 1).copy())}
        if given.ndim == 3
        else {"input_ids": torch.from_numpy(given)}
    )
    if mask is not None:
        named["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
    with torch.no_grad():
        return model(**named, decoder_input_ids=torch.from_numpy(tokens.astype(np.int64))).logits.numpy()


def greedy(runner: Any, given: list[Any], count: int) -> tuple[Any, Any]:
    """Return the greedy tokens [batch, count + 1] of a `LibraryRunner` for inputs of its encoder, and the
    logits that chose them [batch, count, any].
    """
    batch = len(given)
    pages = np.arange(batch, dtype=np.int32)[::-1, None].copy()
    slots = np.arange(batch, dtype=np.int32)
    for slot, one in enumerate(given):
        runner.encode(one.astype(np.int32) if one.ndim == 1 else one, slot)
    tokens = [np.array(runner.start * batch, np.int32)]
    found = [np.stack([runner.prefill(tokens[0][k : k + 1], 0, pages[k], k) for k in range(batch)])]
    for n in range(1, count):
        tokens.append(found[-1].argmax(-1).astype(np.int32))
        found.append(runner.decode(tokens[-1], np.full(batch, n, np.int32), pages, slots))
    return np.stack([*tokens, found[-1].argmax(-1)], 1), np.stack(found, 1)


__all__ = ["PAIRS", "checkpoint", "greedy", "logits", "source"]
