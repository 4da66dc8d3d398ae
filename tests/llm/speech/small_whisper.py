"""A small Whisper with windows of 1.4 s, its tokenizer, and its generation_config.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

POSITIONS = 70
"""States of the encoder: a window is as many times 20 ms."""
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
LANGUAGES = ["en", "de"]


@cache
def backend() -> Any:
    """Return a `tokenizers.Tokenizer` of words and bytes, with Whisper's special tokens after them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: k for k, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        whole = "Ġ"
        for letter in word:
            if whole + letter not in vocabulary:
                vocabulary[whole + letter] = len(vocabulary)
                merges.append((whole, letter))
            whole += letter
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [
        "<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>",
        "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
    ]  # fmt: skip
    tokenizer.add_special_tokens([AddedToken(name) for name in names])
    times = [AddedToken(f"<|{k * 0.02:.2f}|>") for k in range(POSITIONS + 1)]
    tokenizer.add_tokens(times)
    return tokenizer


def token(name: str) -> int:
    """Return the number of the token ``<|name|>``."""
    found: int = backend().token_to_id(f"<|{name}|>")
    return found


def settings() -> dict[str, Any]:
    """Return the content of generation_config.json."""
    end = token("endoftext")
    return {
        "eos_token_id": end, "pad_token_id": end, "bos_token_id": end,
        "decoder_start_token_id": token("startoftranscript"), "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": token(code) for code in LANGUAGES},
        "task_to_id": {task: token(task) for task in ("transcribe", "translate")},
        "no_timestamps_token_id": token("notimestamps"), "prev_sot_token_id": token("startofprev"),
        "max_initial_timestamp_index": 10, "begin_suppress_tokens": [end], "max_length": 64,
        "suppress_tokens": [token("startoflm"), token("startofprev"), token("startoftranscript"), 5],
    }  # fmt: skip


def model(seed: int = 0, **more: Any) -> Any:
    """Return an untrained model of `transformers`."""
    import torch
    import transformers

    torch.manual_seed(seed)
    end = token("endoftext")
    sizes = {
        "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_mel_bins": 40,
        "max_source_positions": POSITIONS, "max_target_positions": 64, "pad_token_id": end,
        "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": token("startoftranscript"),
        "begin_suppress_tokens": None,
    }  # fmt: skip
    vocabulary = backend().get_vocab_size()
    config = transformers.WhisperConfig(**{"vocab_size": vocabulary, **sizes, **more})
    made = transformers.WhisperForConditionalGeneration(config).eval()
    made.generation_config = transformers.GenerationConfig(**settings())
    return made


def save(made: Any, folder: Path) -> Path:
    """Write a model, its tokenizer and its settings as `transformers` does; return the folder."""
    made.save_pretrained(folder)
    backend().save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps(settings()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


def noise(seconds: float, seed: int = 0) -> Any:
    """Return a recording of noises of different pitch and loudness: float32, 16 kHz."""
    generator = np.random.default_rng(seed)
    count = int(16000 * seconds)
    t = np.arange(count) / 16000
    tones = sum(
        np.sin(2 * np.pi * f * t + np.sin(5 * t)) * (generator.random(count // 1600 + 1).repeat(1600)[:count])
        for f in generator.uniform(100, 4000, 5)
    )
    return (0.1 * tones + 0.01 * generator.standard_normal(count)).astype(np.float32)


__all__ = ["LANGUAGES", "POSITIONS", "WORDS", "backend", "model", "noise", "save", "settings", "token"]
