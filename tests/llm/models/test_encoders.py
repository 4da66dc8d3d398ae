"""BERT-style encoders give the hidden states of `transformers`, also with padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.numpy import load_file  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.llm.models.tiny import SMALL  # noqa: E402
from tilewright.llm.layers import pooled  # noqa: E402
from tilewright.llm.load_weights import load_weights  # noqa: E402
from tilewright.llm.models import build  # noqa: E402

ENCODER = {**SMALL, "max_position_embeddings": 40}


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "RobertaModel", "XLMRobertaModel"])
def test_like_transformers(architecture: str, tmp_path: Path) -> None:
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    theirs = cls(cls.config_class(**ENCODER, pad_token_id=1)).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(0, 0.2) if p.ndim > 1 else p.normal_(0.5, 0.3)
    theirs.save_pretrained(tmp_path)
    ours = build(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if architecture == "BertModel":
        # The names of early checkpoints.
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        weights = {
            n.replace(k, v) if (k := ".".join(n.split(".")[-2:])) in old and (v := old[k]) else n: a
            for n, a in weights.items()
        }
    load_weights(ours, weights)
    tokens = np.random.default_rng(0).integers(3, 96, (3, 17))
    mask = np.arange(17)[None] < np.array([[17], [9], [1]])
    tokens[~mask] = 1
    types = (np.arange(17)[None] > 5).repeat(3, 0).astype(np.int64)
    backbone = getattr(theirs, "bert", theirs)
    given = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
    two_types = theirs.config.type_vocab_size > 1
    with torch.no_grad():
        expected = backbone(
            **given, **({"token_type_ids": torch.from_numpy(types)} if two_types else {})
        ).last_hidden_state.numpy()
        plain = backbone(**given).last_hidden_state.numpy()
    seen = mask[:, :, None]
    np.testing.assert_allclose(
        ours(tokens, mask, types if two_types else None).numpy() * seen, expected * seen, atol=1e-4
    )
    if architecture == "XLMRobertaModel":
        library = tw.compile(
            lambda tokens, mask: ours(tokens, mask),
            (tokens, mask),
            dims={"tokens": {0: "b<=4", 1: "n<=32"}, "mask": {0: "b", 1: "n"}},
        )
        np.testing.assert_allclose(library(tokens, mask) * seen, plain * seen, atol=1e-4)
        # The rows cut off are padding in both sequences.
        np.testing.assert_allclose(
            (library(tokens[1:, :9], mask[1:, :9]) * seen[1:, :9]), plain[1:, :9] * seen[1:, :9], atol=1e-4
        )


def test_pooled() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])

    def unit(v: Any) -> Any:
        return v / np.linalg.norm(v, axis=-1, keepdims=True)

    np.testing.assert_allclose(pooled(x, mask), unit(np.stack([x[0, :3].mean(0), x[1].mean(0)])), rtol=1e-5)
    np.testing.assert_allclose(pooled(x, mask, "cls"), unit(x[:, 0]), rtol=1e-5)
    np.testing.assert_allclose(pooled(x, mask, "last"), unit(np.stack([x[0, 2], x[1, 4]])), rtol=1e-5)
    with pytest.raises(ValueError, match="known: cls, last, mean"):
        pooled(x, mask, "middle")
