"""Encoders and other models for embeddings give the hidden states of `transformers`, and its classifiers'
logits, also with padding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.numpy import load_file  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.llm.models.tiny import GROUPED, SMALL  # noqa: E402
from tilewright.errors import CompileError  # noqa: E402
from tilewright.llm.layers import POOLINGS, of_length_1, pooled  # noqa: E402
from tilewright.llm.load_weights import load_weights  # noqa: E402
from tilewright.llm.models import LanguageModel, build  # noqa: E402

ENCODER = {**SMALL, "max_position_embeddings": 40, "pad_token_id": 1, "num_labels": 3}
DISTIL = {
    "vocab_size": 96, "dim": 64, "hidden_dim": 80, "n_layers": 2, "n_heads": 4, "num_labels": 3,
    "max_position_embeddings": 40, "pad_token_id": 1,
}  # fmt: skip
MODERN = {
    **ENCODER, "num_hidden_layers": 4, "local_attention": 8, "eos_token_id": 2, "bos_token_id": 0,
    "cls_token_id": 0, "sep_token_id": 2, "classifier_pooling": "mean",
}  # fmt: skip
DECODER = {**GROUPED, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "num_labels": 1}
GEMMA = {**DECODER, "head_dim": 24, "query_pre_attn_scalar": 20, "use_bidirectional_attention": True}
MODELS: dict[str, dict[str, Any]] = {
    "BertModel": ENCODER,
    "BertForMaskedLM": ENCODER,
    "BertForSequenceClassification": ENCODER,
    "RobertaModel": ENCODER,
    "XLMRobertaModel": ENCODER,
    "XLMRobertaForSequenceClassification": ENCODER,
    "DistilBertModel": DISTIL,
    "DistilBertForMaskedLM": DISTIL,
    "DistilBertForSequenceClassification": DISTIL,
    "MPNetModel": ENCODER,
    "MPNetForSequenceClassification": ENCODER,
    "NomicBertModel": ENCODER,
    "NomicBertForSequenceClassification": ENCODER,
    "GteModel": {**ENCODER, "type_vocab_size": 0},
    "GteForSequenceClassification": {**ENCODER, "type_vocab_size": 2},
    "ModernBertModel": MODERN,
    "ModernBertForMaskedLM": MODERN,
    "ModernBertForSequenceClassification": MODERN,
    "Qwen3Model": {**DECODER, "head_dim": 24},
    "Qwen3ForSequenceClassification": {**DECODER, "head_dim": 24},
    "EuroBertModel": DECODER,
    "Gemma3TextModel": {**GEMMA, "sliding_window": 8, "num_hidden_layers": 6},
}


def tiny(architecture: str, folder: Path) -> Any:
    """Save a small model of `transformers` with large random weights, and return it."""
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = cls(cls.config_class(**MODELS[architecture])).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2) if p.ndim > 1 else p.normal_(0.5, 0.3)
    model.save_pretrained(folder)
    return model


def loaded(folder: Path) -> LanguageModel:
    model = build(folder)
    load_weights(model, load_file(folder / "model.safetensors"))
    return model


def padded() -> tuple[Any, Any, Any]:
    """Tokens, mask and segments of three texts of 17, 9 and 1 tokens."""
    tokens = np.random.default_rng(0).integers(3, 96, (3, 17))
    mask = np.arange(17)[None] < np.array([[17], [9], [1]])
    tokens[~mask] = 1
    return tokens, mask, (np.arange(17)[None] > 5).repeat(3, 0).astype(np.int64)


def expected(theirs: Any, tokens: Any, mask: Any, types: Any = None) -> Any:
    """The logits of a classifier, or the hidden states of any other model."""
    given = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
    if types is not None:
        given["token_type_ids"] = torch.from_numpy(types)
    classifies = type(theirs).__name__.endswith("ForSequenceClassification")
    with torch.no_grad():
        if classifies:
            return theirs(**given).logits.numpy()
        return getattr(theirs, theirs.base_model_prefix, theirs)(**given).last_hidden_state.numpy()


@pytest.mark.parametrize("architecture", MODELS)
def test_like_transformers(architecture: str, tmp_path: Path) -> None:
    theirs, (tokens, mask, types) = tiny(architecture, tmp_path), padded()
    ours = loaded(tmp_path)
    seen = mask[:, :, None]
    there = ours.classes if ours.task == "score" else lambda *given: ours.states(*given) * seen
    for segments in (None, types) if ours.segments > 1 else (None,):
        wanted = expected(theirs, tokens, mask, segments)
        wanted = wanted if ours.task == "score" else wanted * seen
        assert np.abs(wanted).max() > 0.5
        np.testing.assert_allclose(there(tokens, mask, segments).numpy(), wanted, atol=1e-4, rtol=1e-4)


COMPILED = ("XLMRobertaModel", "MPNetModel", "ModernBertForSequenceClassification", "Gemma3TextModel")
"""One for each mechanism: padding, a bias of distances, windows in both directions, decoders."""


@pytest.mark.parametrize("architecture", COMPILED)
def test_compiled(architecture: str, tmp_path: Path) -> None:
    """A batch with padding, and each of its texts alone, in a model compiled for dynamic sizes."""
    theirs, (tokens, mask, _) = tiny(architecture, tmp_path), padded()
    ours = loaded(tmp_path)
    function = ours.classes if ours.task == "score" else ours.states
    dims = {"tokens": {0: "b<=4", 1: "n<=32"}, "mask": {0: "b", 1: "n"}}
    library = tw.compile(lambda tokens, mask: function(tokens, mask), (tokens, mask), dims=dims)
    wanted, found = expected(theirs, tokens, mask), library(tokens, mask)
    for row, length in enumerate(mask.sum(1)):
        alone = library(tokens[row : row + 1, :length], mask[row : row + 1, :length])[0]
        here, there = found[row], wanted[row]
        if ours.task != "score":
            here, there = here[:length], there[:length]
        np.testing.assert_allclose(here, there, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(alone, there, atol=1e-4, rtol=1e-4)


def test_names_of_early_checkpoints(tmp_path: Path) -> None:
    theirs, (tokens, mask, _) = tiny("BertModel", tmp_path), padded()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = {}
    for name, array in load_file(tmp_path / "model.safetensors").items():
        end = ".".join(name.split(".")[-2:])
        weights[name.replace(end, old[end]) if end in old else name] = array
    ours = build(tmp_path)
    load_weights(ours, weights)
    seen = mask[:, :, None]
    np.testing.assert_allclose(
        ours.states(tokens, mask).numpy() * seen, expected(theirs, tokens, mask) * seen, atol=1e-4
    )


def test_longest_text(tmp_path: Path) -> None:
    """Positions that RoBERTa leaves out are not counted."""
    tiny("RobertaModel", tmp_path)
    assert build(tmp_path).config.context == 38


def test_refused() -> None:
    config = {"model_type": "deberta-v3", "architectures": ["DebertaForSequenceClassification"], **SMALL}
    with pytest.raises(CompileError, match="'deberta-v3' or 'DebertaForSequenceClassification'"):
        build(config)
    config = {"model_type": "eurobert", "architectures": ["EuroBertForSequenceClassification"], **GROUPED}
    with pytest.raises(CompileError, match="classifiers of EuroBERT"):
        build(config)
    with pytest.raises(CompileError, match="use_bidirectional_attention=True"):
        build({"model_type": "gemma2", **GROUPED, "use_bidirectional_attention": True})


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooled(kind: str) -> None:
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    theirs = modules.Pooling(8, "lasttoken" if kind == "last" else kind)
    wanted = theirs({"token_embeddings": torch.from_numpy(x), "attention_mask": torch.from_numpy(mask)})
    np.testing.assert_allclose(pooled(x, mask, kind), wanted["sentence_embedding"].numpy(), rtol=1e-5)
    with pytest.raises(ValueError, match="known: cls, last, lasttoken, max, mean"):
        pooled(x, mask, "middle")


def test_of_length_1() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(of_length_1(tw.numpy.asarray(x)), [[0.6, 0.8], [0, 0]], rtol=1e-6)
