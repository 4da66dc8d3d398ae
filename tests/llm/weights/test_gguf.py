"""GGUF files that the package `gguf` writes as llama.cpp's converter does equal the Hugging Face folders from
which they were made.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.llm.weights.gguf_files import gguf_of
from tests.llm.weights.models import FAMILIES, WITHOUT_ATTENTION, folder_of, small_model
from tilewright.errors import WeightsError
from tilewright.llm.cache import NoCache
from tilewright.llm.load_weights import load_weights
from tilewright.llm.models import build
from tilewright.llm.weights import Conversion, convert, open_checkpoint
from tilewright.llm.weights.gguf_blocks import FORMATS, decode

BLOCKS = [number for number, form in FORMATS.items() if form.split]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(small_model("llama"), tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("number", BLOCKS, ids=lambda n: FORMATS[n].name)
def test_blocks_are_what_the_package_makes_of_them(number: int) -> None:
    form = FORMATS[number]
    data = np.random.default_rng(number).integers(0, 256, (5000, form.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        if form.name == "MXFP4":  # an exponent of 255 is no number
            data[:, 0] %= 255
        found = decode(data.reshape(-1), form)
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(number)).reshape(-1)
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_equals_the_folder_it_was_made_from(family: str, tmp_path: Path) -> None:
    model = small_model(family)
    folder = open_checkpoint(folder_of(model, tmp_path / "hf"))
    file = open_checkpoint(gguf_of(folder.path, tmp_path / "m.gguf"))
    assert set(file) == set(folder)
    for name, tensor in file.items():
        assert tensor.shape == folder[name].shape
        # The converter adds 1, which the reader subtracts, or stores an exponential.
        rounded = (
            family.startswith(("gemma", "nemotron", "qwen3_next")) and "norm" in name
        ) or name.endswith("A_log")
        assert np.allclose(tensor.read(), folder[name].read(), rtol=0, atol=1e-6 if rounded else 0), name
    config = transformers.AutoConfig.for_model(
        **{k: v for k, v in file.config.items() if not k.endswith("_token_id")}
    )
    ours, theirs = config.to_dict(), model.config.to_dict()
    unimportant = {
        "_name_or_path",
        "hidden_act",
        "hidden_activation",
        "head_dim",
        "attention_bias",
        "mlp_bias",
        "norm_type",
        "partial_rotary_factor",
        "rope_theta",
        "rotary_emb_base",
        "layer_norm_eps" if family == "olmo" else "",
        "use_qk_norm" if family.startswith("hunyuan") else "",
        "chunk_size",
    }
    if family in WITHOUT_ATTENTION or family.startswith("falcon"):  # keys that their config.json lacks
        unimportant |= {"max_position_embeddings", "num_key_value_heads"}
    unlike = {
        k
        for k in {*ours, *theirs} - unimportant
        if ours.get(k) != theirs.get(k) and not k.endswith("_token_id")
    }
    assert not unlike, {k: (ours.get(k), theirs.get(k)) for k in unlike}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_folder(family: str, tmp_path: Path) -> None:
    """The logits of our definitions equal those of transformers for the folder, the GGUF file and the
    converted folder, each with its own configuration.
    """
    model = small_model(family)
    folder_of(model, tmp_path / "hf")
    gguf_of(tmp_path / "hf", tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "out", Conversion("f32"))
    tokens = np.random.default_rng(0).integers(3, 96, (2, 40))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).logits.numpy()
    assert np.ptp(expected) > 0.1  # far above the tolerance
    for source in ("hf", "m.gguf", "out"):
        checkpoint = open_checkpoint(tmp_path / source)
        ours = build(checkpoint.config)
        load_weights(ours, checkpoint)
        assert np.allclose(np.asarray(ours(tokens, NoCache(tokens))), expected, rtol=0, atol=1e-4), source


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_formats_of_whole_files(kind: str, llama: Path, tmp_path: Path) -> None:
    original = open_checkpoint(llama)
    file = open_checkpoint(gguf_of(llama, tmp_path / "m.gguf", kind))
    bound = {"F16": 1e-3, "BF16": 1e-2, "Q8_0": 0.02, "Q4_0": 0.2, "Q4_1": 0.2, "Q5_0": 0.1, "Q5_1": 0.1}[
        kind
    ]
    for name, tensor in original.items():
        before = tensor.read()
        assert np.abs(file[name].read().astype(np.float32) - before).max() <= bound * np.abs(before).max()


@pytest.mark.parametrize(("kind", "scheme"), [("Q4_0", "int4_g32"), ("Q8_0", "int8_g32")])
@pytest.mark.parametrize("family", ["llama", "mixtral", "gpt2"])
def test_formats_that_a_scheme_holds_are_kept_bit_by_bit(
    kind: str, scheme: str, family: str, tmp_path: Path
) -> None:
    folder = folder_of(small_model(family), tmp_path / "hf")
    file = open_checkpoint(gguf_of(folder, tmp_path / "m.gguf", kind))
    converted = convert(file, tmp_path / "out", Conversion(scheme, embedding_quantization=scheme))
    for name, tensor in file.items():
        assert np.array_equal(converted[name].read(), tensor.read()), name
    quantized = [t for t in converted.values() if t.scheme]
    assert len(quantized) > 8 and all(t.scheme and t.scheme.name == scheme for t in quantized)


def test_an_expert_is_read_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.llm.weights import gguf_file

    folder = folder_of(small_model("mixtral"), tmp_path / "hf")
    file = open_checkpoint(gguf_of(folder, tmp_path / "m.gguf", "Q5_0"))
    read: list[int] = []
    monkeypatch.setattr(gguf_file, "decode", lambda data, form: read.append(data.size) or decode(data, form))
    expert = file["model.layers.1.block_sparse_moe.experts.2.w1.weight"]
    assert expert.read().shape == (96, 64) and read == [96 * 64 // 32 * 22]
    assert expert.where.endswith("blk.1.ffn_gate_exps.weight[2]")


def test_the_same_weights_convert_to_the_same_tensors(llama: Path, tmp_path: Path) -> None:
    gguf_of(llama, tmp_path / "m.gguf")
    how = Conversion("int4_g64_asym")
    a, b = convert(llama, tmp_path / "a", how), convert(tmp_path / "m.gguf", tmp_path / "b", how)
    assert set(a) == set(b) and all(np.array_equal(a[name].read(), b[name].read()) for name in a)


def test_a_file_in_parts(llama: Path, tmp_path: Path) -> None:
    gguf_of(llama, tmp_path / "whole.gguf")
    reader = gguf.GGUFReader(tmp_path / "whole.gguf")
    for part in range(2):
        writer = gguf.GGUFWriter(tmp_path / f"m-0000{part + 1}-of-00002.gguf", "llama")
        writer.add_uint16("split.count", 2)
        if part == 0:
            for field in reader.fields.values():
                if field.name.startswith("llama."):
                    value = field.contents()
                    (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(field.name, value)
        for tensor in reader.tensors[part::2]:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    parts, whole = (
        open_checkpoint(tmp_path / "m-00001-of-00002.gguf"),
        open_checkpoint(tmp_path / "whole.gguf"),
    )
    assert set(parts) == set(whole) and len(parts.sources) == 2
    assert all(np.array_equal(parts[name].read(), whole[name].read()) for name in whole)
    with pytest.raises(WeightsError, match="is one of 2 parts; give the first"):
        open_checkpoint(tmp_path / "m-00002-of-00002.gguf")


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3s_scaling_of_frequencies_is_found(factor: float, llama: Path, tmp_path: Path) -> None:
    def with_factors(factors: np.ndarray) -> Path:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        reader = gguf.GGUFReader(gguf_of(llama, tmp_path / "plain.gguf"))
        for field in reader.fields.values():
            if field.name.startswith("llama."):
                value = 500000.0 if field.name.endswith("freq_base") else field.contents()
                (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(field.name, value)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "m.gguf"

    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        rope_parameters=scaling | {"rope_theta": 5e5},
        max_position_embeddings=131072,
    )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 5e5 ** (-np.arange(0, 16, 2) / 16)
    assert open_checkpoint(with_factors(plain / scaled.numpy())).config["rope_scaling"] == scaling
    with pytest.raises(WeightsError, match=r"not Llama 3's"):
        open_checkpoint(with_factors(np.linspace(1, 7, 8)))


# Hostile files


@pytest.fixture(scope="module")
def data(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return gguf_of(llama, tmp_path_factory.mktemp("gguf") / "m.gguf", "Q8_0").read_bytes()


def put(format: str, value: int, at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into("<" + format, data, at, value)

    return change


def before(
    text: bytes, format: str, value: int, after: bool = False, skip: int = 0
) -> Callable[[bytearray], None]:
    """Return a change that overwrites the value before, or after, the first occurrence of a name."""

    def change(data: bytearray) -> None:
        at = data.index(text)
        struct.pack_into(
            "<" + format, data, at + len(text) + skip if after else at - struct.calcsize(format), value
        )

    return change


BAD = {
    "magic": (put("I", 0, 0), "neither a GGUF file nor"),
    "version 1": (put("I", 1, 4), "GGUF version 1"),
    "big-endian": (put("I", 3 << 24, 4), "big-endian"),
    "tensors without end": (put("Q", 1 << 60, 8), "truncated or damaged|which is not|twice|dimensions"),
    "keys without end": (put("Q", 1 << 60, 16), "truncated or damaged|has type|twice"),
    "a key without end": (put("Q", 1 << 63, 24), "9223372036854775808 more bytes should follow"),
    "an unknown type": (before(b"llama.block_count", "I", 77, after=True), "the unknown type 77"),
    "too many dimensions": (before(b"blk.0.attn_q.weight", "I", 1000, after=True), "has 1000 dimensions"),
    "a huge size": (before(b"blk.0.attn_q.weight", "Q", 1 << 62, after=True, skip=4), "truncated or damaged"),
    "a size that is no multiple of blocks": (
        before(b"blk.0.attn_q.weight", "Q", 33, after=True, skip=4),
        "packs 32 elements of a row; rows have 33",
    ),
    "an unsupported format": (
        before(b"blk.0.attn_q.weight", "I", 29, after=True, skip=20),
        "has format IQ1_M, which is not supported",
    ),
    "an offset beyond the end": (
        before(b"blk.0.attn_q.weight", "Q", 1 << 40, after=True, skip=24),
        "truncated or damaged",
    ),
    "an unaligned offset": (
        before(b"blk.0.attn_q.weight", "Q", 7, after=True, skip=24),
        "truncated or damaged",
    ),
    "no layers": (before(b"llama.block_count", "I", 0, after=True, skip=4), "metadata are inconsistent"),
    "a size that heads do not divide": (
        before(b"llama.attention.head_count", "I", 5, after=True, skip=4),
        "which are not 5 heads",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_hostile_files_are_refused(case: str, data: bytes, tmp_path: Path) -> None:
    change, message = BAD[case]
    bad = bytearray(data)
    change(bad)
    path = tmp_path / "bad.gguf"
    path.write_bytes(bad)
    with pytest.raises(WeightsError, match=message) as raised:
        open_checkpoint(path)
    assert str(path) in str(raised.value)


@given(share=st.floats(0, 1))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_truncation_is_refused(share: float, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(data[: min(int(share * len(data)), len(data) - 1)])
    with pytest.raises(WeightsError):
        open_checkpoint(tmp_path / "cut.gguf")


@given(seed=st.integers(0, 10_000))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bits_in_the_header_raise_nothing_else(seed: int, data: bytes, tmp_path: Path) -> None:
    r = np.random.default_rng(seed)
    bad = bytearray(data)
    end = data.rindex(b"output_norm.weight") + 60
    for _ in range(r.integers(1, 4)):
        bad[r.integers(0, end)] ^= 1 << r.integers(0, 8)
    (tmp_path / "bad.gguf").write_bytes(bad)
    try:
        checkpoint = open_checkpoint(tmp_path / "bad.gguf")
        for tensor in checkpoint.values():
            with np.errstate(all="ignore"):
                assert tensor.read().shape == tensor.shape
    except WeightsError:
        pass


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=re.escape("has architecture rwkv7; supported: llama, qwen2")):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_tensor_of_no_known_name_is_refused(llama: Path, tmp_path: Path) -> None:
    path = gguf_of(llama, tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"))
    with pytest.raises(WeightsError, match=r"blk.0.attn_z.weight: llama has no tensor of this name"):
        open_checkpoint(path)
