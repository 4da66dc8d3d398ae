"""Peculiarities of families in GGUF files, and what is refused because it would change a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.llm.weights.gguf_files import gguf_of
from tests.llm.weights.models import folder_of, small_model
from tilewright.errors import WeightsError
from tilewright.llm.models import families
from tilewright.llm.quantization import dequantize
from tilewright.llm.weights import Checkpoint, open_checkpoint
from tilewright.llm.weights.gguf_names import FAMILIES, VARIANTS


def opened(family: str, tmp_path: Path, kinds: Any = "F32", **options: Any) -> Checkpoint:
    folder = folder_of(small_model(family), tmp_path / "hf")
    return open_checkpoint(gguf_of(folder, tmp_path / "m.gguf", kinds, **options))


def test_every_architecture_is_of_a_family_and_has_names_that_the_package_knows() -> None:
    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    joined = {"ffn_gate_up_exps", "attn_kv_b"}
    for name, family in [*FAMILIES.items(), *((n, v.family) for n, v in VARIANTS.items())]:
        assert family.model_type in families()
        theirs = {
            gguf.TENSOR_NAMES[tensor].removeprefix("blk.{bid}.") for tensor in gguf.MODEL_TENSORS[known[name]]
        }
        # A family's names may be more than those of the architecture, but never lack one that is a weight.
        ours = {n.removesuffix(".weight").removesuffix(".bias") for n in family.names} | joined
        parts = {part for step in family.steps for part in getattr(step, "parts", ())}
        without = ("rope", "attn_rot_embd", "nextn.", "dense_2", "ffn_gate_up_exps")
        missing = {n for n in theirs - ours - parts if not n.startswith(without)}
        assert missing <= _LEFT_OUT.get(name, set()), name


_LEFT_OUT = {
    "granitemoe": {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"},
    "glm4": {"attn_qkv"},
    "phi2": {"attn_qkv"},
    "llama": {"ffn_gate_inp", "ffn_gate_exps", "ffn_down_exps", "ffn_up_exps"},
    "falcon": {"attn_norm_2"},
}
"""Tensors that only variants of a family have, or other models of Hugging Face's."""


@pytest.mark.parametrize(
    ("family", "kind", "scheme"),
    [("gpt_oss", "MXFP4", "mxfp4"), ("granitemoe", "Q8_0", "int8_g32"), ("llama4_text", "Q4_0", "int4_g32")],
)
def test_joined_experts_stay_quantized(family: str, kind: str, scheme: str, tmp_path: Path) -> None:
    experts = lambda name: kind if name.endswith("exps.weight") else "F32"  # noqa: E731
    file = opened(family, tmp_path, experts)
    names = [n for n in file if re.search(r"(gate_up_proj|input_linear|experts\.down_proj)(\.weight)?$", n)]
    assert names
    exact = open_checkpoint(tmp_path / "hf")
    for name in names:
        tensor = file[name]
        assert tensor.scheme and tensor.scheme.name == scheme
        values, wanted = tensor.read(), exact[name].read()
        assert values.shape == wanted.shape and np.abs(values - wanted).max() < 0.3 * np.abs(wanted).max()
        rows = values.swapaxes(-1, -2) if tensor.transposed else values
        assert np.array_equal(dequantize(tensor.read_quantized()), rows)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    extra = {"blk.2.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}
    keys = {"nextn_predict_layers": 1, "block_count": 3}
    file = opened("glm4_moe", tmp_path, keys=keys, extra=extra)
    assert file.config["num_hidden_layers"] == 2 and set(file) == set(open_checkpoint(tmp_path / "hf"))


def test_latent_attention_of_older_files_has_one_matrix_of_keys_and_values(tmp_path: Path) -> None:
    """Files of older converters tell the sizes of heads by the common keys, and keep the joint matrix."""
    folder = folder_of(small_model("deepseek_v2"), tmp_path / "hf")
    exact = open_checkpoint(folder)
    keys = {
        "attention.key_length_mla": None, "attention.value_length_mla": None,
        "attention.key_length": 24, "attention.value_length": 24,
        "expert_group_count": None, "expert_group_used_count": None,
    }  # fmt: skip
    new = gguf.GGUFReader(gguf_of(folder, tmp_path / "new.gguf", keys=keys))
    writer = gguf.GGUFWriter(tmp_path / "old.gguf", "deepseek2")
    for field in new.fields.values():
        if field.name.startswith("deepseek2."):
            value = field.contents()
            add = {bool: writer.add_bool, float: writer.add_float32}.get(type(value), writer.add_uint32)
            add(field.name, value)
    for tensor in new.tensors:
        if "attn_v_b" not in tensor.name and "attn_k_b" not in tensor.name:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    for i in range(2):
        writer.add_tensor(
            f"blk.{i}.attn_kv_b.weight", exact[f"model.layers.{i}.self_attn.kv_b_proj.weight"].read()
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_checkpoint(tmp_path / "old.gguf")
    assert set(file) == set(exact)
    assert {k: file.config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_group")} == {
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "n_group": 1,
    }  # fmt: skip


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a key that no family reads": (
        "llama",
        {"attention.temperature_scale": 0.1},
        r"llama.attention.temperature_scale is 0.1.*, which is not supported with llama",
    ),
    "a window of a family without": (
        "qwen3",
        {"attention.sliding_window": 8},
        "qwen3.attention.sliding_window",
    ),
    "heads that are rotated in part": (
        "llama",
        {"rope.dimension_count": 8},
        "rope.dimension_count is 8, of 16 elements of a head",
    ),
    "values of another size": ("llama", {"attention.value_length": 8}, "value_length is 8, and keys have 16"),
    "heads that differ by layer": (
        "lfm2",
        {"attention.head_count_kv": [2, 4, 0]},
        r"head_count_kv is \[2, 4, 0\]",
    ),
    "more layers than tensors": ("gemma2", {"block_count": 1 << 31}, "2147483648 layers, 24 tensors"),
    "no heads": ("lfm2", {"attention.head_count": None}, "inconsistent: 0 heads, 2 of keys"),
    "a missing multiplier of logits": ("cohere", {"logit_scale": None}, "lack command-r.logit_scale"),
    "unknown groups of experts": (
        "deepseek_v3",
        {"expert_group_count": None},
        "lack deepseek2.expert_group_count, which files of older converters lack",
    ),
    "an unknown kind of scores": ("deepseek_v2", {"expert_gating_func": 4}, "expert_gating_func is 4"),
    "Granite without rotation": ("granite", {"rope.scaling.finetuned": False}, "without rotary embedding"),
    "Falcon 2": ("falcon", {"attention.head_count_kv": 2}, r"Falcon 2.*rope.freq_base"),
    "Falcon Mamba": ("mamba", {"ssm.dt_b_c_rms": True}, "Falcon Mamba"),
    "a magnitude without scaling": ("llama", {"rope.scaling.attn_factor": 1.5}, "attn_factor is 1.5"),
    "YaRN with less extrapolation": (
        "gpt_oss",
        {"rope.scaling.yarn_ext_factor": 0.5},
        "yarn_ext_factor is 0.5",
    ),
    "an unknown scaling": (
        "llama",
        {"rope.scaling.type": "ntk", "rope.scaling.factor": 2.0},
        "rope.scaling.type 'ntk' with factor 2",
    ),
    "two widths of experts": (
        "hunyuan_v1_moe",
        {"expert_feed_forward_length": 8},
        "expert_feed_forward_length is 8; only 96",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_change_a_model_is_refused_by_name(case: str, tmp_path: Path) -> None:
    family, keys, message = REFUSED[case]
    with pytest.raises(WeightsError, match=message):
        opened(family, tmp_path, keys=keys)


def test_keys_that_tell_nothing_new_are_no_reason_to_refuse(tmp_path: Path) -> None:
    keys = {"vocab_size": 96, "expert_count": 0, "attention.causal": True, "rope.scaling.finetuned": False}
    assert opened("qwen3", tmp_path, keys=keys).config["model_type"] == "qwen3"


def test_parts_that_a_file_does_not_have_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """Granite 4 without state spaces and experts is Granite, whose converter describes both."""
    keys = {
        "ssm.conv_kernel": 4, "ssm.state_size": 128, "expert_used_count": 0,
        "expert_shared_feed_forward_length": 96, "attention.head_count_kv": [2, 2],
        "rope.scaling.finetuned": True,
    }  # fmt: skip
    assert opened("granite", tmp_path, keys=keys).config["num_key_value_heads"] == 2


def test_experts_of_a_family_without_are_refused(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_up_exps.weight": np.ones((2, 96, 64), np.float32)}
    with pytest.raises(WeightsError, match=r"gemma.expert_count is 2, which is not supported"):
        opened("gemma", tmp_path, keys={"expert_count": 2}, extra=extra)


@pytest.mark.parametrize("scaling", [(8.0, 1.0, 4.0), (16.0, 1.0, 1.0)])
def test_scaled_frequencies_of_llama_4(scaling: tuple[float, float, float], tmp_path: Path) -> None:
    factor, low, high = scaling
    waves = 2 * np.pi * 5e5 ** (np.arange(8) / 8)
    steps = (8192 / waves < low).astype(float) if high == low else 1 - np.clip((8192 / waves - low) / 3, 0, 1)
    factors = 1 / (steps / factor + 1 - steps)
    extra = {"rope_freqs.weight": factors.astype(np.float32)}
    file = opened("llama4_text", tmp_path, keys={"rope.freq_base": 5e5}, extra=extra)
    found = file.config["rope_scaling"]
    assert (found["factor"], found["low_freq_factor"], found["high_freq_factor"]) == scaling
    assert file.config["no_rope_layers"] == [1, 1, 1, 0] and file.config["use_qk_norm"]


def test_a_part_of_a_joined_tensor_is_missed(tmp_path: Path) -> None:
    opened("granitemoe", tmp_path)
    path = tmp_path / "m.gguf"
    path.write_bytes(path.read_bytes().replace(b"blk.0.ffn_up_exps.weight", b"blk.0.ffn_xx_exps.weight"))
    with pytest.raises(WeightsError, match=r"blk.0.ffn_gate_exps.weight: the file lacks blk.0.ffn_up_exps"):
        open_checkpoint(path)
