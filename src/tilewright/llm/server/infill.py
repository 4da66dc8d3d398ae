"""Prompts for text between a prefix and a suffix, in the forms that models of code are trained on.

Source: Bavarian et al., 2022, "Efficient Training of Language Models to Fill in the Middle".
"""

from __future__ import annotations

from dataclasses import dataclass

from ..tokenizer import Tokenizer
from .errors import ApiError


@dataclass(frozen=True)
class Markers:
    """The tokens that mark the parts of a prompt; without `middle` the suffix comes first."""

    prefix: str
    suffix: str
    middle: str | None = None


_KNOWN = (
    Markers("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    Markers("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    Markers("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Markers("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    Markers("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    Markers("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    Markers("[PREFIX]", "[SUFFIX]"),  # Codestral
)
_ENDS = ("<|endoftext|>", "<|file_sep|>", "<file_sep>", "<|repo_name|>", "▁<EOT>", "<EOT>")
"""Tokens after which another file begins."""


def infill(tokenizer: Tokenizer, prefix: str, suffix: str) -> tuple[list[int], list[int]]:
    """Return the tokens of the prompt for the text between `prefix` and `suffix`, and tokens that end it.

    Raises:
        ApiError: 400: the tokenizer has no markers for such prompts.
    """

    def token(name: str | None) -> int | None:
        return None if name is None else tokenizer.backend.token_to_id(name)

    for markers in _KNOWN:
        begin, hole, end = token(markers.prefix), token(markers.suffix), token(markers.middle)
        if begin is None or hole is None or (markers.middle is not None and end is None):
            continue
        before = tokenizer.encode(prefix, special=False)
        after = tokenizer.encode(suffix, special=False)
        first = [t for t in (token(tokenizer.special.get("bos_token")),) if t is not None]
        if tokenizer.encode("", special=True)[:1] != first:  # the tokenizer itself adds none
            first = []
        if end is None:
            prompt = [*first, hole, *after, begin, *before]
        else:
            prompt = [*first, begin, *before, hole, *after, end]
        marks = [t for t in (begin, hole, end, *map(token, _ENDS)) if t is not None]
        return prompt, list(dict.fromkeys(marks))
    raise ApiError(
        400,
        "the model's tokenizer has no tokens that mark a prefix and a suffix: it cannot fill in text; "
        "omit 'suffix'",
        param="suffix",
        code="unsupported_parameter",
    )
