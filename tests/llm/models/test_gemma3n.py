"""Gemma 3n with quantized weights, and as the language model of a checkpoint that takes images and audio."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tilewright.ir.types import f32
from tilewright.llm.cache import NoCache
from tilewright.llm.load_model import model_of
from tilewright.llm.models.base import missing_abilities
from tilewright.llm.quantized_linear import factors
from tilewright.llm.weights import open_checkpoint
from tilewright.llm.weights.convert import Conversion, convert
from tilewright.llm.weights.safetensors import write_safetensors

from .tiny import checkpoint, logits, tokens

ROUND = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "hidden_size_per_layer_input": 32,
    "laurel_rank": 32,
}  # fmt: skip
"""Sizes that groups of 32 columns divide, so that all matrices stay quantized."""


def test_quantized_weights(tmp_path: Path) -> None:
    """Embeddings of layers are quantized like other embeddings, AltUp is not. The model computes what that of
    `transformers` does with the quantized values.
    """
    theirs, x = checkpoint("gemma 3n", tmp_path / "whole", **ROUND), tokens(1, 9)
    convert(open_checkpoint(tmp_path / "whole"), tmp_path / "small", Conversion("int4_g32"))
    small = open_checkpoint(tmp_path / "small")
    schemes = {name: tensor.scheme and tensor.scheme.name for name, tensor in small.items()}
    layer = "model.layers.3"
    assert schemes["model.embed_tokens_per_layer.weight"] == schemes["model.embed_tokens.weight"] == "int8"
    assert (
        schemes[f"{layer}.laurel.linear_left.weight"] == schemes[f"{layer}.mlp.up_proj.weight"] == "int4_g32"
    )
    assert not any(scheme for name, scheme in schemes.items() if ".altup." in name)
    theirs.load_state_dict({n: torch.tensor(np.float32(t.read())) for n, t in small.items()}, strict=False)
    with factors(f32):
        found = model_of(small)(x, NoCache(x))
    np.testing.assert_allclose(found, logits(theirs, x), atol=1e-4, rtol=1e-4)


def test_a_checkpoint_that_takes_images_and_audio(tmp_path: Path) -> None:
    """Encoders are left out, and so are projections in layers that read the keys and values of others, which
    older checkpoints have.
    """
    theirs, x = checkpoint("gemma 3n", tmp_path), tokens(2, 21)
    inner = json.loads((tmp_path / "config.json").read_text())
    arrays = {
        name.replace("model.", "model.language_model."): tensor.read()
        for name, tensor in open_checkpoint(tmp_path).items()
    }
    others = (
        "vision_tower.timm_model.conv",
        "embed_vision.embedding",
        "audio_tower.x",
        "embed_audio.embedding",
    )
    arrays |= {f"model.{name}.weight": np.ones((4, 4), np.float32) for name in others}
    unused = "model.language_model.layers.4.self_attn.k_proj.weight"
    arrays[unused] = np.ones((32, 64), np.float32)
    write_safetensors(tmp_path / "model.safetensors", arrays, {})
    outer = {"model_type": "gemma3n", "text_config": inner, "vision_config": {}, "audio_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    model = model_of(open_checkpoint(tmp_path))
    assert missing_abilities(model, arrays) == ["images", "audio"]
    np.testing.assert_allclose(model(x, NoCache(x)), logits(theirs, x), atol=1e-4, rtol=1e-4)
