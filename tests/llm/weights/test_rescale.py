"""Activation-aware scaling of checkpoints: scaled checkpoints compute the same, and lose less by
quantization.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.llm.weights.models import folder_of, small_model
from tilewright.cli.llm import command
from tilewright.errors import WeightsError
from tilewright.llm.quantization import ActivationStatistics
from tilewright.llm.weights import (
    Conversion,
    ConvertedFolder,
    convert,
    open_checkpoint,
    read_statistics,
    rescaled,
    write_statistics,
)

HOW = Conversion("int4_g32", embedding_quantization="f32")


def calibrated(family: str, **changes: Any) -> tuple[Any, torch.Tensor, dict[str, ActivationStatistics]]:
    """Return a model in which some channels have large values, tokens, and the statistics of its matrices'
    inputs for these tokens.
    """
    model = small_model(family, **changes)
    for name, parameter in model.named_parameters():
        if "layernorm.weight" in name:
            parameter.data[::11] = 20
    tokens = torch.randint(3, 96, (4, 32), generator=torch.Generator().manual_seed(0))
    statistics: dict[str, ActivationStatistics] = {}

    def watch(name: str, module: torch.nn.Linear) -> None:
        statistics[name] = ActivationStatistics(module.in_features)
        module.register_forward_pre_hook(lambda _, inputs: statistics[name].update(inputs[0].numpy()))

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            watch(name, module)
    with torch.no_grad():
        model(tokens)
    return small(model), tokens, statistics


def small(model: Any) -> Any:
    for module in model.modules():
        module._forward_pre_hooks.clear()
    return model


def logits(model: Any, checkpoint: Any, tokens: torch.Tensor) -> np.ndarray:
    """Return the logits of the model with the weights of a checkpoint."""
    state = {
        name: torch.from_numpy(np.array(tensor.read(), np.float32)) for name, tensor in checkpoint.items()
    }
    again = type(model)(model.config).eval()
    again.load_state_dict(state, strict=False)
    again.tie_weights()
    with torch.no_grad():
        return again(tokens).logits.numpy()


@pytest.mark.parametrize(
    ("family", "kv_heads"), [("llama", 4), ("gemma2", 2), ("phi3", 4), ("starcoder2", 2)]
)
def test_the_same_is_computed_and_less_is_lost(family: str, kv_heads: int, tmp_path: Path) -> None:
    model, tokens, statistics = calibrated(family, num_key_value_heads=kv_heads)
    source = open_checkpoint(folder_of(model, tmp_path / "in"))
    exact = logits(model, source, tokens)
    scaled = rescaled(source, statistics, HOW)
    changed = [n for n in source if not np.array_equal(source[n].read(), scaled[n].read())]
    assert any("layernorm" in n for n in changed) and any("proj" in n for n in changed)
    assert np.allclose(logits(model, scaled, tokens), exact, atol=2e-4 * np.abs(exact).max())
    plain, aware = (
        logits(model, convert(c, tmp_path / n, HOW), tokens) for n, c in (("a", source), ("b", scaled))
    )
    assert np.square(aware - exact).mean() < 0.8 * np.square(plain - exact).mean()


def test_the_command(tmp_path: Path) -> None:
    model, _, statistics = calibrated("llama")
    folder_of(model, tmp_path / "in")
    write_statistics(tmp_path / "calibration.safetensors", statistics)
    arguments = ["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--quantization", "int4_g32"]
    arguments += ["--calibration", str(tmp_path / "calibration.safetensors")]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    expected = convert(
        rescaled(open_checkpoint(tmp_path / "in"), statistics, Conversion("int4_g32")),
        tmp_path / "o",
        Conversion("int4_g32"),
    )
    found = ConvertedFolder(tmp_path / "out")
    assert all(np.array_equal(found[name].read(), expected[name].read()) for name in expected)


def test_what_a_conversion_was_made_with_is_not_mixed(tmp_path: Path) -> None:
    """A conversion does not reuse shards of one with the same source and other calibration."""
    model, _, statistics = calibrated("llama")
    source = open_checkpoint(folder_of(model, tmp_path / "in"))
    convert(source, tmp_path / "out", HOW)
    again = convert(rescaled(source, statistics, HOW), tmp_path / "out", HOW)
    fresh = convert(rescaled(source, statistics, HOW), tmp_path / "fresh", HOW)
    assert all(np.array_equal(again[name].read(), fresh[name].read()) for name in fresh)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = open_checkpoint(folder_of(small_model("llama"), tmp_path / "in"))
    with pytest.raises(WeightsError, match="no statistics of the inputs of its matrices"):
        rescaled(source, {"other": ActivationStatistics(64)}, HOW)
    few = ActivationStatistics(32)
    with pytest.raises(WeightsError, match=r"q_proj.weight: statistics of 32 channels do not fit \[64, 64\]"):
        rescaled(source, {"model.layers.0.self_attn.q_proj": few}, HOW)
    mamba = open_checkpoint(folder_of(small_model("mixtral"), tmp_path / "moe"))
    right = ActivationStatistics(64)
    with pytest.raises(WeightsError, match="does not support mixtral"):
        rescaled(mamba, {"model.layers.0.self_attn.q_proj": right}, HOW)
    quantized = convert(source, tmp_path / "q", HOW)
    with pytest.raises(WeightsError, match="is quantized already"):
        rescaled(quantized, {"model.layers.0.self_attn.q_proj": right}, HOW)
    write_statistics(tmp_path / "s", {"a": right})
    assert np.array_equal(read_statistics(tmp_path / "s")["a"].mean_square, right.mean_square)
    with pytest.raises(WeightsError, match="statistics are"):
        read_statistics(tmp_path / "in" / "model.safetensors")
