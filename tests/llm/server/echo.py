"""A model with a predictable output: it answers a chat with the user's last message, and continues any other
text by a fixed rule.

Its KV cache holds the tokens themselves, so an answer is right only if every page was.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tilewright.llm.runner import PAGE
from tilewright.llm.tokenizer import Tokenizer

TEMPLATE = """{% if tools %}<|im_start|>system
Call functions within <tool_call></tool_call>: {{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or () %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

END, START, EOS = 256, 257, 258


def tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """Return a tokenizer with a token for each byte, and three special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name) for name in ("<|im_end|>", "<|im_start|>", "<eos>")])
    return Tokenizer(backend, eos=(END, EOS), chat_templates={"default": template} if template else {})


class EchoRunner:
    """The echo model as a `Runner`."""

    vocabulary = 259
    has_state = False
    uniform = True
    drawing = sight = guessing = None
    page_access = None
    window = None
    source_kind, source, start = None, 0, []
    adapters: Any = None

    def __init__(self, pages: int = 512, chunk: int = 128, max_batch: int = 16, context: int = 2048) -> None:
        self.pages = pages
        self.chunk = chunk
        self.max_batch = self.rows = max_batch
        self.context = context
        self._cache = np.full((pages, PAGE), -1, np.int32)
        self._tokenizer = tokenizer()

    def prefill(self, tokens: Any, start: int, pages: Any, slot: int, given: Any = None) -> Any:
        for i, token in enumerate(tokens, start):
            self._cache[pages[i // PAGE], i % PAGE] = token
        return self._logits(pages, start + len(tokens))

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        return np.stack(
            [self.prefill(tokens[i : i + 1], int(lengths[i]), pages[i], 0) for i in range(len(tokens))]
        )

    def copy_page(self, source: int, target: int) -> None:
        self._cache[target] = self._cache[source]

    def reset(self, slot: int) -> None: ...

    def embed(self, tokens: Any) -> Any:
        found = np.bincount(tokens, minlength=self.vocabulary)[:8].astype(np.float32) + 1
        return found / np.linalg.norm(found)

    def score(self, tokens: Any, types: Any) -> Any:
        """The share of the second segment's tokens that the first one has, too."""
        first, second = tokens[types == 0], tokens[types == 1]
        return np.array([np.isin(second, first).mean() if len(second) else len(first)], np.float32)

    def _logits(self, pages: Any, length: int) -> Any:
        return self.logits([int(self._cache[pages[i // PAGE], i % PAGE]) for i in range(length)])

    def logits(self, tokens: list[int]) -> Any:
        found = np.array([-1.0 - (i * 7919 % 101) / 10 for i in range(self.vocabulary)], np.float32)
        found[self._next(tokens)] = 40.0  # This token is so likely that no other one is ever drawn.
        return found

    def _next(self, tokens: list[int]) -> int:
        starts = [i for i, token in enumerate(tokens) if token == START]
        if len(starts) < 2:
            digest = hashlib.blake2s(repr(tokens).encode()).digest()
            return self._tokenizer.encode(chr(97 + digest[0] % 26), special=False)[0]
        text = self._tokenizer.decode(tokens[starts[-2] + 1 : starts[-1]], special=True)
        reply = self._tokenizer.encode(text.partition("\n")[2].rpartition("<|im_end|>")[0], special=False)
        said = len(tokens) - starts[-1] - 1 - len("assistant\n")
        return reply[said] if 0 <= said < len(reply) else END
