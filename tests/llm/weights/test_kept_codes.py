"""Quantized files stay quantized: their codes are kept when converted, and compiled libraries multiply them,
with the logits of the dequantized weights.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.llm.weights.gguf_files import gguf_of
from tests.llm.weights.models import folder_of, small_model
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library
from tilewright.llm.quantization import dequantize, quantize, scheme_of
from tilewright.llm.quantization.tables import NF4
from tilewright.llm.weights import Checkpoint, Conversion, convert, open_checkpoint
from tilewright.llm.weights.safetensors import write_safetensors
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.llvm.brgemm.byte_dots import has_byte_dots

TOKENS = np.random.default_rng(1).integers(0, 128, 20).astype(np.int32)
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "vocab_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 1,
}  # fmt: skip
FORMATS = {
    "Q4_0": 1.0, "Q4_1": 1.0, "Q5_0": 1.0, "Q5_1": 1.0, "Q8_0": 1.0, "Q2_K": 1.0, "Q3_K": 1.04, "Q4_K": 1.03,
    "Q5_K": 1.03, "Q6_K": 1.0, "IQ4_NL": 1.0, "IQ4_XS": 1.02, "MXFP4": 1.0, "TQ2_0": 1.0, "TQ1_0": 1.0,
}  # fmt: skip
"""Formats, and the most bytes that their matrices take in memory, as a multiple of those in the file."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(small_model("llama", **SIZES), tmp_path_factory.mktemp("llama"))


def logits_of(family: str, checkpoint: Checkpoint, **sizes: Any) -> Any:
    """The logits of transformers' model with the dequantized weights."""
    model = small_model(family, **sizes)
    weights = {name: torch.from_numpy(np.array(t.read(), np.float32)) for name, t in checkpoint.items()}
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS[None].astype(np.int64))).logits[0].numpy()


def compiled_logits(checkpoint: Checkpoint, **options: Any) -> tuple[Any, int]:
    """The logits of the last two tokens, from a prompt in bf16 and from a step of decoding in 8-bit integers;
    and the bytes of weights.
    """
    sizes = LibraryOptions(context=64, chunk=32, max_batch=2, prompt_factors="bfloat16", **options)
    with compile_library(checkpoint, sizes) as library:
        runner = LibraryRunner(library)
        assert "quantized_matmul" in library.ir("graph")
        first = runner.prefill(TOKENS[:19], 0, np.array([1], np.int32), 0)
        second = runner.decode(
            TOKENS[19:], np.array([19], np.int32), np.array([[1]], np.int32), np.zeros(1, np.int32)
        )
        return np.stack([first, second[0]]), library.report.memory["weights_bytes"]


def assert_close(found: Any, expected: Any, limits: tuple[float, float] = (4e-2, 7e-2)) -> None:
    for ours, theirs, most in zip(found, expected[-2:], limits, strict=True):
        error = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
        print(f"error {error:.2e}")
        assert error < most


@pytest.mark.parametrize("kind", FORMATS)
def test_gguf(kind: str, original: Path, tmp_path: Path) -> None:
    """Converted folders have the values that the package `gguf` dequantizes, in about as many bytes."""
    path = gguf_of(original, tmp_path / "m.gguf", kind)
    convert(path, tmp_path / "out", Conversion("none"))
    kept = open_checkpoint(tmp_path / "out")
    reader = gguf.GGUFReader(path)
    stored = next(t for t in reader.tensors if t.name == "blk.0.ffn_down.weight")
    name = "model.layers.0.mlp.down_proj.weight"
    np.testing.assert_array_equal(kept[name].read(), gguf.quants.dequantize(stored.data, stored.tensor_type))
    quantized = [t for t in kept.values() if t.scheme is not None]
    assert len(quantized) == 7 + 2
    in_file = sum(t.n_bytes for t in reader.tensors if len(t.shape) > 1)
    assert (
        sum(a.nbytes for t in quantized for a in t.read_quantized().arrays.values())
        <= FORMATS[kind] * in_file
    )
    found, weights = compiled_logits(kept)
    assert_close(found, logits_of("llama", kept, **SIZES))
    if has_byte_dots(host_isa()):  # else packed otherwise
        others = 32 << 10  # norms and tables of the rotary embedding, float32
        print("size", weights / in_file)
        assert weights <= FORMATS[kind] * in_file + others


@pytest.mark.parametrize("scheme", ["fp8_e4m3", "int6_g32", "int8_g32_asym"])
def test_own_schemes(scheme: str, original: Path, tmp_path: Path) -> None:
    kept = convert(original, tmp_path / "out", Conversion(scheme))
    found, weights = compiled_logits(kept)
    assert_close(found, logits_of("llama", kept, **SIZES))
    parts = [t.read_quantized().arrays.values() for t in kept.values() if t.scheme is not None]
    # A scale of a block becomes one for each of its rows.
    assert weights < 1.05 * sum(a.nbytes for arrays in parts for a in arrays) + (48 << 10)


def nf4_folder(original: Path, path: Path) -> Path:
    """The folder `original` as bitsandbytes stores it in NF4, embedding, head and norms excepted."""
    source, tensors = open_checkpoint(original), {}
    for name, tensor in source.items():
        values = np.array(tensor.read())
        if ".layers." not in name or values.ndim != 2:
            tensors[name] = values
            continue
        blocks = values.reshape(-1, 64)
        largest = np.abs(blocks).max(1)
        codes = np.abs(blocks[..., None] / largest[:, None, None] - np.array(NF4)).argmin(-1).reshape(-1)
        state = {"quant_type": "nf4", "blocksize": 64, "shape": values.shape, "dtype": "float32"}
        tensors |= {
            name: (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
            f"{name}.absmax": largest,
            f"{name}.quant_map": np.array(NF4, np.float32),
            f"{name}.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
        }
    path.mkdir()
    write_safetensors(path / "model.safetensors", tensors, {})
    config = source.config | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_nf4(original: Path, tmp_path: Path) -> None:
    kept = convert(nf4_folder(original, tmp_path / "nf4"), tmp_path / "out", Conversion("none"))
    assert {t.scheme.name for t in kept.values() if t.scheme is not None} == {"nf4_g64"}
    found, _ = compiled_logits(kept)
    assert_close(found, logits_of("llama", kept, **SIZES))


def gpt_oss() -> Any:
    sizes = SIZES | {
        "num_hidden_layers": 2,  # one with a window and one without
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 64,
    }
    config = transformers.AutoConfig.for_model("gpt_oss", **sizes)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    """MXFP4 experts, as GPT-OSS has them, are multiplied as codes; transformers' own functions dequantize
    them for its model.
    """
    model = gpt_oss()
    r = np.random.default_rng(0)
    tensors, state = {}, model.state_dict()
    for name, values in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            state[name] = torch.randn_like(values) * 0.1
            tensors[name] = state[name].numpy()
            continue
        experts, inner, out = values.shape
        blocks = r.integers(0, 256, (experts, out, inner // 32, 16), dtype=np.uint8)
        exponents = r.integers(121, 124, (experts, out, inner // 32), dtype=np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": exponents}
        state[name] = convert_moe_packed_tensors(
            *map(torch.from_numpy, (blocks, exponents)), dtype=torch.float32
        )
    model.load_state_dict(state)
    write_safetensors(tmp_path / "model.safetensors", tensors, {})
    described = model.config.to_dict() | {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    checkpoint = convert(tmp_path, tmp_path / "out", Conversion("none"))
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS[None].astype(np.int64))).logits[0].numpy()
    found, weights = compiled_logits(checkpoint)
    assert_close(found, expected)
    codes = sum(a.nbytes for name, a in tensors.items() if "experts" in name)
    others = sum(a.nbytes // 2 for name, a in tensors.items() if "experts" not in name)
    assert weights < 1.05 * codes + 3 * others


def test_experts_of_gpt_oss_in_bf16(tmp_path: Path) -> None:
    """Experts are stored as [experts, in, out], but groups of values that share a scale are of the inputs, as
    products need them.
    """
    model = gpt_oss()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    source = open_checkpoint(folder_of(model, tmp_path / "bf16", dtype=torch.bfloat16))
    checkpoint = convert(source, tmp_path / "out", Conversion("int4_g32"))
    experts = [t for name, t in checkpoint.items() if re.search(r"experts\.(gate_up|down)_proj$", name)]
    assert len(experts) == 4
    for tensor in experts:
        matrices = source[tensor.name].read().swapaxes(-1, -2)
        nearest = dequantize(quantize(matrices, scheme_of("int4_g32")))
        np.testing.assert_array_equal(tensor.read(), nearest.swapaxes(-1, -2))
    found, weights = compiled_logits(checkpoint)
    model = model.float()
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS[None].astype(np.int64))).logits[0].numpy()
    assert_close(found, expected, (0.2, 0.2))
    quantized = [t for t in checkpoint.values() if t.scheme is not None]
    stored = sum(a.nbytes for t in quantized for a in t.read_quantized().arrays.values())
    assert weights < 1.05 * stored + (48 << 10)
