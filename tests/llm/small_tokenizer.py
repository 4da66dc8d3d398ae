"""Small tokenizers, trained when they are needed."""

from __future__ import annotations

from functools import cache
from typing import Any

TEXT = [
    "The quick brown fox jumps over the lazy dog. Grüße aus Köln, 東京 and 🦊!",
    'def f(x):\n    return {"name": "value", "list": [1, 2, 3], "true": true}\n',
    "one two three four five six seven eight nine ten, again and again and again",
]


def byte_level(vocabulary: int = 400, special: tuple[str, ...] = ("<s>", "</s>")) -> Any:
    """Return a `tokenizers.Tokenizer` of GPT-2's kind."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXT * 3,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=list(special),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return backend


@cache
def tokenizer(vocabulary: int = 400) -> Any:
    """Return a `Tokenizer` whose token 1 ends a text."""
    from tilewright.llm.tokenizer import Tokenizer

    return Tokenizer(byte_level(vocabulary), special={"bos_token": "<s>", "eos_token": "</s>"})
