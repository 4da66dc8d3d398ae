"""The model that all engines run, a Whisper with random weights, and the recording that they hear."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

VOCABULARY = 51865
"""The tokens of Whisper's multilingual models, with those of 99 languages and of 1501 times."""
TEXT = (
    "The quick brown fox jumps over the lazy dog. One two three four five six seven eight nine ten. "
    "Twenty years ago this harbour was a quiet place, and ships came only once a week. "
)
SAMPLES = "recording.npy"


@dataclass(frozen=True)
class Size:
    """A Whisper's shape; encoder and decoder have as many layers and heads. `tokens` are those of a window's
    text, `seconds` those of the recording.
    """

    hidden: int
    layers: int
    heads: int
    tokens: int = 112
    seconds: int = 60

    @property
    def windows(self) -> int:
        """The windows of 30 s."""
        return -(-self.seconds // 30)


SIZES = {
    "tiny": Size(384, 4, 6),
    "base": Size(512, 6, 8),
    "least": Size(32, 1, 2, tokens=32, seconds=30),
}


def write(size: Size, folder: Path) -> None:
    """Write a folder of Hugging Face with a model, its tokenizer and its settings, and the recording.

    The model counts as one of English alone, whose texts have no token of a language.
    """
    import torch
    import transformers

    backend = _tokenizer()
    find = backend.token_to_id
    end, start = find("<|endoftext|>"), find("<|startoftranscript|>")
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=size.hidden, encoder_layers=size.layers, decoder_layers=size.layers,
        encoder_attention_heads=size.heads, decoder_attention_heads=size.heads,
        encoder_ffn_dim=4 * size.hidden, decoder_ffn_dim=4 * size.hidden, pad_token_id=end, bos_token_id=end,
        eos_token_id=end, decoder_start_token_id=start,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # distinct logits: engines that add in another order choose equal tokens
                parameter.normal_(0, 2.0 * parameter[0].numel() ** -0.5)
    settings = {
        "eos_token_id": end, "pad_token_id": end, "bos_token_id": end, "decoder_start_token_id": start,
        "is_multilingual": False, "no_timestamps_token_id": find("<|notimestamps|>"),
        "max_length": 448, "suppress_tokens": suppressed(), "begin_suppress_tokens": [],
    }  # fmt: skip
    model.generation_config = transformers.GenerationConfig(**settings)
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    about = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "generation_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": 80}))
    np.save(folder / SAMPLES, recording(size.seconds))


def suppressed() -> list[int]:
    """The tokens that are never chosen: all after those of text. So no text ends before it has its number of
    tokens.
    """
    return list(range(50257, VOCABULARY))


def recording(seconds: int) -> np.ndarray[Any, Any]:
    """Speech that espeak-ng makes, float32 [n], 16 kHz.

    Raises:
        FileNotFoundError: espeak-ng is not installed.
        CalledProcessError: It failed.
    """
    from tilewright.llm.speech.audio import read_audio

    with TemporaryDirectory() as folder:
        file = Path(folder) / "speech.wav"
        words = TEXT * (1 + seconds // 10)
        subprocess.run(["espeak-ng", "-w", str(file), words], check=True, capture_output=True)
        return np.resize(read_audio(file.read_bytes()), 16000 * seconds)


def _languages() -> list[str]:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return list(LANGUAGES)[:99]


def _tokenizer() -> Any:
    """A tokenizer of bytes and pairs of bytes, with Whisper's special tokens at their places."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in letters for b in letters][: 50257 - len(letters)]
    vocabulary = {text: k for k, text in enumerate([*letters, *(a + b for a, b in merges)])}
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = [
        "endoftext", "startoftranscript", *_languages(), "translate", "transcribe", "startoflm",
        "startofprev", "nospeech", "notimestamps",
    ]  # fmt: skip
    backend.add_special_tokens([AddedToken(f"<|{name}|>") for name in names])
    backend.add_tokens([AddedToken(f"<|{k * 0.02:.2f}|>") for k in range(1501)])
    assert backend.get_vocab_size() == VOCABULARY
    return backend
