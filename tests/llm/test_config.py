"""config.json as versions and families write it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import CompileError
from tilewright.llm.config import Config
from tilewright.llm.models import build
from tilewright.llm.models.gemma import Gemma3
from tilewright.llm.models.gpt2 import GPT2
from tilewright.llm.models.phi3 import Phi3

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50,
    "max_position_embeddings": 128,
}  # fmt: skip


def test_names_and_null() -> None:
    raw = Config({"n_embd": 48, "n_head": 4, "n_layer": 3, "n_inner": None, "vocab_size": 9, "n_positions": 32})
    config = raw.with_defaults(GPT2.defaults(raw))
    assert (config.hidden, config.heads, config.kv_heads, config.head_dim, config.layers) == (48, 4, 4, 12, 3)
    assert (config.intermediate, config.context, config.eps, config.tied) == (192, 32, 1e-5, True)
    # Null is an answer where the family's default is another.
    off = Config({**LLAMA, "sliding_window": None}).with_defaults({"sliding_window": 4096})
    assert off.window(0) is None
    assert Config(LLAMA).with_defaults({"sliding_window": 4096}).window(0) == 4096
    with pytest.raises(CompileError, match="config.json of a llama has no 'rms_norm_eps'"):
        _ = Config(LLAMA).eps


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "limit": [0.0, {"__float__": "Infinity"}]}))
    assert Config.read(tmp_path)["limit"][1] == float("inf")
    assert Config.read(tmp_path / "config.json", context=100).context == 100
    assert Config.read(tmp_path, context=1000).context == 128
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CompileError, match="a list, not an object"):
        Config.read(tmp_path)
    with pytest.raises(CompileError, match=r"nowhere.*not a model's config.json"):
        Config.read(tmp_path / "nowhere")


def test_rope_of_two_versions() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = Config({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}}).rope()
    new = Config({**LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}}).rope()
    assert old.theta == new.theta == 5e5
    np.testing.assert_array_equal(old.scaled[0], new.scaled[0])
    with pytest.raises(CompileError, match="rope_type 'mrope' in config.json is not supported; known: default"):
        _ = Config({**LLAMA, "rope_scaling": {"type": "mrope"}}).rope().scaled
    with pytest.raises(CompileError, match="of type 'linear' in config.json have no 'factor'"):
        _ = Config({**LLAMA, "rope_scaling": {"type": "linear"}}).rope().scaled


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_longrope_follows_the_context(kind: str) -> None:
    factors = {"long_factor": [2.0 + k for k in range(8)], "short_factor": [1.0] * 8}
    values = {**LLAMA, "rope_scaling": {"type": kind, **factors}, "original_max_position_embeddings": 32}
    long, short = (
        Config(values, context).with_defaults(Phi3.defaults(Config(values))).rope().scaled for context in (None, 32)
    )
    np.testing.assert_allclose(short[0] / long[0], factors["long_factor"], rtol=1e-6)
    assert long[1] == short[1] == pytest.approx(np.sqrt(1 + np.log(4) / np.log(32)))
    with pytest.raises(CompileError, match="short_factor of config.json's rope has 3 numbers, not 8"):
        _ = Config({**values, "rope_scaling": {"type": kind, **factors, "short_factor": [1.0] * 3}}, 32).rope().scaled


def test_gemma_3_as_older_files_have_it() -> None:
    """The text model's numbers stand apart, layers by a period, and ropes under names of their own."""
    text = {
        **LLAMA,
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "sliding_window": 512,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    raw = Config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9}})
    config = raw.with_defaults(Gemma3.defaults(raw))
    assert config.model_type == "gemma3_text" and config.hidden == 64
    assert [config.window(k) for k in range(7)] == [512] * 5 + [None, 512]
    slow, fast = config.rope("full_attention"), config.rope("sliding_attention")
    assert (slow.kind, slow.theta, fast.kind, fast.theta) == ("linear", 1e6, "default", 1e4)


def test_refused() -> None:
    with pytest.raises(
        CompileError, match=r"no model definition for 'unheard-of' or 'UnheardOfLM'; known: .*llama.*adding-a-model"
    ):
        build({**LLAMA, "model_type": "unheard-of", "architectures": ["UnheardOfLM"]})
    with pytest.raises(CompileError, match="activation 'xielu' in config.json is not supported; known: gelu"):
        build({**LLAMA, "hidden_act": "xielu"})
    with pytest.raises(CompileError, match="layer_types of config.json has 'chunked_attention'"):
        build({**LLAMA, "hidden_act": "silu", "layer_types": ["chunked_attention"] * 2})
    with pytest.raises(CompileError, match="use_bidirectional_attention is not supported"):
        build({**LLAMA, "model_type": "gemma3_text", "use_bidirectional_attention": True})
