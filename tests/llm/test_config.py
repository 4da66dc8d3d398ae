"""config.json, as different versions and families write it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import CompileError
from tilewright.llm.config import Config
from tilewright.llm.models import build
from tilewright.llm.models.base import missing_abilities
from tilewright.llm.models.gemma import Gemma3
from tilewright.llm.models.gpt2 import GPT2
from tilewright.llm.models.phi3 import Phi3

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 50,
    "max_position_embeddings": 128,
}


def test_names_and_null() -> None:
    raw = Config(
        {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_inner": None, "vocab_size": 9, "n_positions": 32}
    )
    config = raw.with_defaults(GPT2.defaults(raw))
    assert (config.hidden, config.heads, config.kv_heads, config.head_dim, config.layers) == (48, 4, 4, 12, 3)
    assert (config.intermediate, config.context, config.eps, config.tied) == (192, 32, 1e-5, True)
    # Null in the file overrides a default of the family.
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
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = Config({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}}).rope()
    new = Config({**LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}}).rope()
    assert old.theta == new.theta == 5e5
    np.testing.assert_array_equal(old.scaled[0], new.scaled[0])
    with pytest.raises(
        CompileError, match="rope_type 'mrope' in config.json is not supported; known: default"
    ):
        _ = Config({**LLAMA, "rope_scaling": {"type": "mrope"}}).rope().scaled
    with pytest.raises(CompileError, match="of type 'linear' in config.json have no 'factor'"):
        _ = Config({**LLAMA, "rope_scaling": {"type": "linear"}}).rope().scaled


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_longrope_follows_the_context(kind: str) -> None:
    factors = {"long_factor": [2.0 + k for k in range(8)], "short_factor": [1.0] * 8}
    values = {**LLAMA, "rope_scaling": {"type": kind, **factors}, "original_max_position_embeddings": 32}
    long, short = (
        Config(values, context).with_defaults(Phi3.defaults(Config(values))).rope().scaled
        for context in (None, 32)
    )
    np.testing.assert_allclose(short[0] / long[0], factors["long_factor"], rtol=1e-6)
    assert long[1] == short[1] == pytest.approx(np.sqrt(1 + np.log(4) / np.log(32)))
    with pytest.raises(CompileError, match="short_factor of config.json's rope has 3 numbers, not 8"):
        _ = (
            Config({**values, "rope_scaling": {"type": kind, **factors, "short_factor": [1.0] * 3}}, 32)
            .rope()
            .scaled
        )


def test_gemma_3_as_older_files_have_it() -> None:
    """The numbers of the text model are in their own dictionary, the kinds of layers are given by a period,
    and each kind has its own entries for the rotary embedding.
    """
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
        CompileError,
        match=r"no model definition for 'lama' or 'UnheardOfLM'; names like it: llama.*/adding-a-lang",
    ):
        build({**LLAMA, "model_type": "lama", "architectures": ["UnheardOfLM"]})
    with pytest.raises(CompileError, match="activation 'xielu' in config.json is not supported; known: gelu"):
        build({**LLAMA, "hidden_act": "xielu"})
    with pytest.raises(CompileError, match="layer_types of config.json has 'chunked_attention'"):
        build({**LLAMA, "hidden_act": "silu", "layer_types": ["chunked_attention"] * 2})
    with pytest.raises(CompileError, match="of a mixtral asks for what Mixtral lacks: clip_qkv=8"):
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu"}
        build({**LLAMA, **experts, "model_type": "mixtral", "clip_qkv": 8})


FAMILIES = {
    "llama": {"hidden_act": "silu", "rms_norm_eps": 1e-6, "num_key_value_heads": 2},
    "gemma3_text": {"sliding_window": 16, "sliding_window_pattern": 2, "head_dim": 16},
    "gemma3n_text": {
        "sliding_window": 16,
        "head_dim": 16,
        "altup_num_inputs": 2,
        "altup_active_idx": 1,
        "layer_types": ["sliding_attention"] * 2,
        "activation_sparsity_pattern": [0.5, 0.0],
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "num_kv_shared_layers": 1,
        "vocab_size_per_layer_input": 40,
    },
    "qwen2_moe": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": 64,
    },
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128},
    "phi3": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 64,
        "layer_types": ["full_attention"] * 2,
    },
    "mamba2": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "time_step_limit": [0.0, 1.0],
    },
}
ROPE = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 1e4,
    "beta_fast": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}
WRONG = ["x", -1, 0, 0.5, 10**8, 10**30, [], {}, True, float("nan"), float("inf"), [[0]], {"a": "b"}]


def built(values: dict[str, object]) -> str | None:
    """Return the error that a config.json gives, or None."""
    try:
        config = build(values).config
        for layer_type in (None, "full_attention"):
            _ = config.rope(layer_type).scaled
    except CompileError as error:
        assert ("config.json" in str(error) or "no model definition" in str(error)) and len(str(error)) < 400
        return str(error)
    return None


@pytest.mark.parametrize("family", FAMILIES)
def test_errors_name_wrong_values(family: str) -> None:
    """An error names the key of the wrong value, whatever the value is, and no value makes the model take
    forever to build.
    """
    right = {**LLAMA, **FAMILIES[family], "model_type": family, "rope_theta": 1e4}
    assert built(right) is None
    for key in right.keys() - {"model_type"}:
        found = [built({**right, key: value}) for value in WRONG]
        assert found[0] is None or key in found[0] or not isinstance(right[key], int | float | list), key
        assert found[0] or family != "llama", f"every model with attention reads {key}"
    for key in ROPE:
        for value in WRONG:
            built({**right, "rope_scaling": {**ROPE, key: value}})
    for value in WRONG:
        built({**right, "rope_parameters": {"full_attention": value, "sliding_attention": ROPE}})
        built({**right, "text_config": value})
        built({**right, "model_type": value, "architectures": [value]})


def test_messages_of_wrong_values() -> None:
    right = {**LLAMA, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    assert built({**right, "rope_theta": "x"}) == "config.json of a llama: 'rope_theta' is 'x', not a number"
    assert built({**right, "num_hidden_layers": 10**8}) == (
        "config.json of a llama: 'num_hidden_layers' is 100000000, not a whole number of 1 to 4096"
    )
    found = built({**right, "rope_scaling": {"type": "linear", "factor": 0}})
    assert found and found.startswith("config.json: its rope of type 'linear' is invalid: ")


def test_what_is_left_out_of_a_model_that_sees() -> None:
    text = {**LLAMA, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    with pytest.raises(
        CompileError,
        match=r"no model definition for 'fuyu', which wraps a 'llama'; .* gemma3.*language_model\.save",
    ):
        build({"model_type": "fuyu", "architectures": ["FuyuForCausalLM"], "text_config": text})
    whole = {
        "model_type": "gemma3",
        "text_config": {**text, **FAMILIES["gemma3_text"], "model_type": "gemma3_text"},
    }
    model = build(whole)
    assert missing_abilities(model, ["language_model.model.norm.weight"]) == []
    assert missing_abilities(model, ["model.vision_tower.encoder.weight", "multi_modal_projector.norm"]) == [
        "images"
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    (
        ({"altup_active_idx": 2}, "'altup_active_idx' is 2, but 'altup_num_inputs' is 2"),
        (
            {"num_kv_shared_layers": 2},
            "layer 0 has no keys and values.*earlier one of kind 'sliding_attention'",
        ),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "earlier one of kind 'full_attention'"),
        ({"activation_sparsity_pattern": [0.5]}, "'activation_sparsity_pattern' has 1 values for 2 layers"),
        ({"activation_sparsity_pattern": [0.5, 1.0]}, "of layer 1 is 1.0, not a number from 0 to below 1"),
        ({"intermediate_size": [96, "x"]}, "'intermediate_size' is 'x', not a whole number"),
        ({"attn_logit_softcapping": 50.0}, "asks for what Gemma3n lacks: attn_logit_softcapping=50.0"),
    ),
)
def test_what_gemma_3n_refuses(values: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        build({**LLAMA, **FAMILIES["gemma3n_text"], "model_type": "gemma3n_text", **values})


def test_what_is_left_out_of_gemma_3n() -> None:
    """Images and audio are left out, and so are projections of keys and values in layers that read those of
    others.
    """
    text = {**LLAMA, **FAMILIES["gemma3n_text"], "model_type": "gemma3n_text"}
    model = build({"model_type": "gemma3n", "text_config": text})
    others = ["model.vision_tower.x.weight", "model.embed_audio.x.weight"]
    assert missing_abilities(model, others) == ["images", "audio"]
    for name in (*others, "model.language_model.layers.1.self_attn.k_proj.weight"):
        assert model.destination(name) is None
    for name in ("model.language_model.layers.0.self_attn.k_proj.weight", "altup_projections.0.weight"):
        found = model.destination(name)
        assert found and found.name in dict(model.named_parameters())
