"""Tokenizers in GGUF files encode and decode as the tokenizers from which they were made: byte-level BPE of
`tokenizers`, and SentencePiece's own.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.llm.weights.gguf_files import add_value, gguf_of
from tests.llm.weights.models import folder_of, small_model
from tilewright.errors import WeightsError
from tilewright.llm.weights import Conversion, convert, open_checkpoint
from tilewright.llm.weights.checkpoint import Checkpoint

CORPUS = (
    re.sub(r"\s+", " ", (re.__doc__ or "") + (json.__doc__ or "") + (io.__doc__ or ""))
    + " naïve Größe 東京 12345 don't"
)
TEXTS = [
    "Hello world!",
    "  two spaces,\ttabs\nand\n\nlines  ",
    "don't we'll I'M naïve façade Größe 東京 한국어 🙂👩‍👩‍👧 e\u0301",
    "x = [1, 22, 333, 4444, 55555.666]",
    "",
    " ",
    "<|end|> regular expression <|start|>",
    "an expression pattern string matching operations",
]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501


def byte_level(kind: str) -> tuple[Tokenizer, dict[str, Any]]:
    """Return a tokenizer as its family builds it, trained on `CORPUS`, and the data that a GGUF file keeps of
    it.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind not in ("llama-bpe", "qwen2"))
    if kind == "llama-bpe":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), level]
        )
    elif kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        pattern = Regex(LLAMA3.replace("{1,3}", ""))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), level])
    elif kind == "starcoder":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), level]
        )
    else:
        tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    types = [3 if t in ("<|start|>", "<|end|>") else 4 if t == "<tool>" else 1 for t in tokens]
    merges = [" ".join(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]]
    return tokenizer, metadata(
        model="gpt2",
        pre=kind,
        tokens=tokens,
        token_type=types,
        merges=merges,
        bos_token_id=tokens.index("<|start|>"),
        eos_token_id=tokens.index("<|end|>"),
    )


def metadata(**values: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def checkpoint(data: dict[str, Any], path: Path) -> Checkpoint:
    """Return a checkpoint that has no weights but an embedding, and a tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"embedding_length": 8, "block_count": 1, "context_length": 64}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.attention.head_count", 2)
    for key, value in data.items():
        add_value(writer, key, value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path)


def tokenizer_of(data: dict[str, Any], path: Path) -> Tokenizer:
    return Tokenizer.from_str(checkpoint(data, path / "m.gguf").files["tokenizer.json"]().decode())


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "qwen2", "starcoder"])
def test_byte_level(kind: str, tmp_path: Path) -> None:
    original, data = byte_level(kind)
    made = tokenizer_of(data, tmp_path)
    assert made.get_vocab() == original.get_vocab()
    for text in [*TEXTS, CORPUS, "<tool>call</tool>"]:
        ids = original.encode(text).ids
        assert made.encode(text, add_special_tokens=False).ids == ids, text
        assert made.decode(ids) == original.decode(ids)
    assert made.decode(made.encode("a<|end|>b").ids) == "ab"


SPLITS = {
    "glm4": ("it's 12345 cats", ["it", "'s", " ", "123", "45", " cats"]),
    "lfm2": ("it's 12345 cats", ["it", "'s", " ", "123", "45", " cats"]),
    "hunyuan": ("it's 123 cats", ["it", "'s", " ", "1", "2", "3", " cats"]),
    "exaone4": ("it's 123 cats", ["it", "'s", " 123", " cats"]),
    "deepseek-v3": (
        "I've 12345 apples,東京!\n\nYes",
        ["I", "'ve", " ", "123", "45", " apples", ",", "東京", "!\n\n", "Yes"],
    ),
    "tekken": ("helloWorld don't 123", ["hello", "World", " don", "'t", " ", "1", "2", "3"]),
    "seed-coder": ("a 12;\n\nb", ["a", " ", "1", "2", ";", "\n\n", "b"]),
    "bloom": ("Hi, all 123.", ["Hi", ",", " all", " 123", "."]),
}
"""A text and its pieces by the rule that files name so."""


@pytest.mark.parametrize("kind", SPLITS)
def test_texts_are_split_by_the_rule(kind: str, tmp_path: Path) -> None:
    text, pieces = SPLITS[kind]
    _, data = byte_level("gpt-2")
    made = tokenizer_of(data | metadata(pre=kind), tmp_path)
    found = made.pre_tokenizer.pre_tokenize_str(text)
    assert [text[a:b] for _, (a, b) in found] == pieces


@given(text=st.text())
@settings(max_examples=100, deadline=None)
def test_byte_level_loses_no_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = _LLAMA3.get("made") or _LLAMA3.setdefault(
        "made", tokenizer_of(byte_level("llama-bpe")[1], tmp_path_factory.mktemp("t"))
    )
    text = text.replace("<", "")  # Without special tokens.
    assert made.decode(made.encode(text).ids) == text


_LLAMA3: dict[str, Tokenizer] = {}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> sentencepiece.SentencePieceProcessor:
    folder = tmp_path_factory.mktemp("spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.split(". ") * 2),
        model_prefix=str(folder / "m"),
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))


def of_pieces(p: sentencepiece.SentencePieceProcessor, **changes: Any) -> dict[str, Any]:
    n = p.get_piece_size()
    kinds = [
        2
        if p.is_unknown(i)
        else 3
        if p.is_control(i)
        else 6
        if p.is_byte(i)
        else 4
        if p.id_to_piece(i) == "<tool>"
        else 1
        for i in range(n)
    ]
    values = {
        "model": "llama",
        "tokens": [p.id_to_piece(i) for i in range(n)],
        "scores": [float(p.get_score(i)) for i in range(n)],
        "token_type": kinds,
        "bos_token_id": p.bos_id(),
        "eos_token_id": p.eos_id(),
        "unknown_token_id": p.unk_id(),
    }
    return metadata(**values | changes)


def test_sentence_pieces(pieces: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    made = tokenizer_of(of_pieces(pieces), tmp_path)
    for text in [*TEXTS, CORPUS]:
        expected = pieces.encode(text)
        assert made.encode(text, add_special_tokens=False).ids == expected, text
        assert made.encode(text).ids == [pieces.bos_id(), *expected]
        assert made.decode(expected) == pieces.decode(expected)


@given(text=st.text(alphabet=st.sampled_from("abcdeinorst .,'ïß東한🙂\n")))
@settings(max_examples=150, deadline=None)
def test_sentence_pieces_of_any_text(
    text: str, pieces: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = _PIECES.get("made") or _PIECES.setdefault(
        "made", tokenizer_of(of_pieces(pieces), tmp_path_factory.mktemp("t"))
    )
    assert made.encode(text, add_special_tokens=False).ids == pieces.encode(text)


_PIECES: dict[str, Tokenizer] = {}


def test_beginning_and_end(pieces: Any, tmp_path: Path) -> None:
    data = of_pieces(pieces, add_bos_token=True, add_eos_token=True, add_space_prefix=False)
    made = tokenizer_of(data, tmp_path)
    bos, eos = pieces.bos_id(), pieces.eos_id()
    inner = made.encode("string", add_special_tokens=False).ids
    assert made.encode("string").ids == [bos, *inner, eos]
    assert made.encode("string", "string").ids == [bos, *inner, eos, bos, *inner, eos]
    assert made.decode(inner) == "string" and not made.id_to_token(inner[0]).startswith("▁")


def test_the_tokenizers_configuration(tmp_path: Path) -> None:
    _, data = byte_level("gpt-2")
    data["tokenizer.chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    files = checkpoint(data, tmp_path / "m.gguf").files
    config = json.loads(files["tokenizer_config.json"]())
    assert (
        config["bos_token"] == "<|start|>"
        and config["eos_token"] == "<|end|>"
        and not config["add_bos_token"]
    )
    assert config["chat_template"].startswith("{% for m")


def test_a_converted_file_has_its_tokenizer(tmp_path: Path) -> None:
    import transformers

    original, data = byte_level("gpt-2")
    folder_of(small_model("llama"), tmp_path / "hf")
    gguf_of(tmp_path / "hf", tmp_path / "m.gguf", tokenizer=data)
    convert(tmp_path / "m.gguf", tmp_path / "out", Conversion("int8"))
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded("regular expressions")["input_ids"] == original.encode("regular expressions").ids
    assert loaded.eos_token == "<|end|>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre": "unheard-of"}, "splits text by the rule 'unheard-of'"),
        ({"model": "t5"}, "model 't5' is not supported"),
        ({"merges": ["a"]}, "does not join two tokens into a token"),
        ({"merges": ["a zzzz"]}, "does not join two tokens into a token"),
        ({"token_type": [1, 1]}, "2 types of"),
        ({"bos_token_id": 10**6}, "but there are"),
        ({"merges": 3}, "merges is int"),
    ],
)
def test_bad_tokenizers_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, data = byte_level("gpt-2")
    files = checkpoint(data | metadata(add_bos_token=True, **change), tmp_path / "m.gguf").files
    with pytest.raises(WeightsError, match=message):
        files["tokenizer.json"]()
