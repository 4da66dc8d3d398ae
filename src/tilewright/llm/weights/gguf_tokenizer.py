"""Builds tokenizer.json and tokenizer_config.json from the tokenizer in a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...errors import WeightsError
from .gguf_file import GGUFFile

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTIONS + (
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LETTERS = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}*{_LETTERS[1]}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}+{_LETTERS[1]}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}*{_LETTERS[1]}+|[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}+{_LETTERS[1]}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = _CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2")
_GPT2_NAMES = ("default", "gpt-2", "gpt2", "olmo", "phi-2", "jina-es", "jina-de", "mpt", "exaone4")
_QWEN2_NAMES = ("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan")
_SPLITS: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys((*_GPT2_NAMES, "trillion", "granite-docling"), None),
    **dict.fromkeys((*_LLAMA3_NAMES, "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), (_LLAMA3 % "1,3",)),
    **dict.fromkeys(_QWEN2_NAMES, (_LLAMA3.replace("{%s}", ""),)),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "tekken": (_TEKKEN,),
    "seed-coder": (_SEED,),
    "bloom": (r" ?[^(\s|.,!?…。，、।۔،)]+",),
}
"""Patterns that split text one after the other before merging, by the file's name; None: GPT-2's."""
_DIGITS = ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone")
"""Splitters like GPT-2's, with each digit separate."""
_COMPOSED = ("qwen2", "deepseek-r1-qwen")
"""Splitters that normalize text to NFC first."""
_MERGES_IGNORED = (*_LLAMA3_NAMES, "gpt-4o", "llama4", "tekken")
"""Splitters whose pieces become a token if there is one, whatever its merges."""
_BEGINS = (*_LLAMA3_NAMES, "tekken")
"""Splitters of models whose texts begin with a token, if the file does not tell."""


def tokenizer_files(file: GGUFFile, config: dict[str, Any]) -> dict[str, Callable[[], bytes]]:
    """Return the tokenizer's files, which are built when they are read; empty if the file has no
    tokenizer.
    """
    if f"{_KEY}model" not in file.metadata:
        return {}
    tokenizer_json = cache(lambda: _tokenizer_json(file, config))
    return {
        "tokenizer.json": lambda: tokenizer_json().encode(),
        "tokenizer_config.json": lambda: json.dumps(_tokenizer_config(file), indent=2).encode(),
    }


def _tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    tokens = file.need(f"{_KEY}tokens", list)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (number := _special(file, key, len(tokens))) is not None:
            config[f"{name}_token"] = tokens[number]
    config["add_bos_token"], config["add_eos_token"] = _adds(file)
    if template := file.get("tokenizer.chat_template", None, str):
        config["chat_template"] = template
    return config


def _adds(file: GGUFFile) -> tuple[bool, bool]:
    """Whether a beginning token, and an end token, are added to a text."""
    model = file.need(f"{_KEY}model", str)
    first = model == "llama" or file.get(f"{_KEY}pre", "", str) in _BEGINS
    return file.get(f"{_KEY}add_bos_token", first, bool), file.get(f"{_KEY}add_eos_token", False, bool)


def _special(file: GGUFFile, key: str, count: int) -> int | None:
    number = file.get(f"{_KEY}{key}_token_id", None, int)
    if number is not None and not 0 <= number < count:
        raise WeightsError(f"{file.path}: {_KEY}{key}_token_id is {number}, but there are {count} tokens")
    return number


def _tokenizer_json(file: GGUFFile, config: dict[str, Any]) -> str:
    try:
        from tokenizers import AddedToken, Tokenizer, processors
    except ImportError:
        raise WeightsError(
            "a GGUF file's tokenizer needs the package tokenizers: pip install 'tilewright[llm]'"
        ) from None
    model = file.need(f"{_KEY}model", str)
    tokens = file.need(f"{_KEY}tokens", list)
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise WeightsError(f"{file.path}: {_KEY}tokens is not a list of strings")
    types = file.get(f"{_KEY}token_type", np.full(len(tokens), _NORMAL), np.ndarray)
    if len(types) != len(tokens):
        raise WeightsError(f"{file.path}: {len(types)} types of {len(tokens)} tokens")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        # Padding may repeat names; the first one keeps the name.
        vocabulary = {}
        for i, token in enumerate(tokens):
            vocabulary.setdefault(token, i)
    if model == "gpt2":
        tokenizer = _byte_level(file, vocabulary)
    elif model == "llama":
        tokenizer = _sentence_pieces(file, tokens, vocabulary, types)
    else:
        raise WeightsError(f"{file.path}: {_KEY}model {model!r} is not supported; gpt2 and llama are")
    assert isinstance(tokenizer, Tokenizer)
    added = [
        AddedToken(tokens[i], special=bool(types[i] != _USER), normalized=False)
        for i in np.flatnonzero(np.isin(types, (_CONTROL, _USER, _UNKNOWN)))
        if tokens[i]
    ]
    tokenizer.add_tokens(added)
    begin, end = _adds(file)
    ids = [_special(file, key, len(tokens)) if on else None for key, on in (("bos", begin), ("eos", end))]
    parts = [None if i is None else tokens[i] for i in ids]
    if any(parts):
        single = [parts[0], "$A", parts[1]]
        pair = [*single, *(parts[:1] if parts[0] else []), "$B", parts[1]]
        named = [(part, i) for part, i in zip(parts, ids, strict=True) if part]
        template = processors.TemplateProcessing(
            single=" ".join(p for p in single if p),
            pair=" ".join(f"{p}:1" if k > 2 and p else p for k, p in enumerate(pair) if p),
            special_tokens=named,
        )
        before = tokenizer.post_processor
        tokenizer.post_processor = processors.Sequence([before, template]) if before else template
    return str(tokenizer.to_str())


def _byte_level(file: GGUFFile, vocabulary: dict[str, int]) -> Any:
    """Make byte-level BPE, as of GPT-2 and its successors."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    merges = [tuple(merge.split(" ", 1)) for merge in file.need(f"{_KEY}merges", list)]
    for merge in merges:
        if (
            len(merge) != 2
            or "".join(merge) not in vocabulary
            or any(part not in vocabulary for part in merge)
        ):
            raise WeightsError(
                f"{file.path}: {_KEY}merges: {' '.join(merge)!r} does not join two tokens into a token"
            )
    splitter = file.get(f"{_KEY}pre", "default", str)
    if splitter not in _SPLITS and splitter not in _DIGITS:
        raise WeightsError(
            f"{file.path}: its tokenizer splits text by the rule {splitter!r}, which is not supported; "
            "convert the Hugging Face "
            "folder instead"
        )
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, ignore_merges=splitter in _MERGES_IGNORED)
    )
    if splitter in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    patterns = _SPLITS.get(splitter)
    if splitter in _DIGITS:
        before = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    elif patterns is None:
        before = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        before = [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = before[0] if len(before) == 1 else pre_tokenizers.Sequence(before)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _sentence_pieces(
    file: GGUFFile, tokens: list[str], vocabulary: dict[str, int], types: np.ndarray[Any, Any]
) -> Any:
    """Make SentencePiece's BPE, which merges the neighbors whose union has the highest score.

    Text without a token becomes bytes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.need(f"{_KEY}scores", np.ndarray)
    if len(scores) != len(tokens):
        raise WeightsError(f"{file.path}: {len(scores)} scores of {len(tokens)} tokens")
    unknown = _special(file, "unknown", len(tokens))
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(tokens, vocabulary, scores, types),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=bool(np.any(types == _BYTE)),
        )
    )
    prefix = file.get(f"{_KEY}add_space_prefix", True, bool)
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def _merges(
    tokens: list[str], vocabulary: dict[str, int], scores: np.ndarray[Any, Any], types: np.ndarray[Any, Any]
) -> list[tuple[str, str]]:
    """Return all pairs of tokens that concatenate to a token, in descending order of its score.

    Pairs of the same token are ordered by their left parts.
    """
    normal = np.isin(types, (_NORMAL, _USER, _UNUSED))
    merges = []
    for i, token in enumerate(tokens):
        if not normal[i] or len(token) < 2:
            continue
        pairs = []
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None and normal[left] and normal[right]:
                pairs.append((left, right))
        merges += [(-float(scores[i]), i, left, right) for left, right in sorted(pairs)]
    merges.sort(key=lambda entry: entry[0])
    return [(tokens[left], tokens[right]) for _, _, left, right in merges]
