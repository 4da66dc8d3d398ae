"""Checkpoints of GPTQ, AWQ and block-wise fp8, which are packed here word by word by their definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import WeightsError
from tilewright.llm.quantization.tables import NF4
from tilewright.llm.weights import Conversion, convert, open_checkpoint
from tilewright.llm.weights.safetensors import write_safetensors

OUT, IN, GROUP = 32, 128, 32


def words(values: np.ndarray, bits: int) -> np.ndarray:
    """Return values [n, m] as int32 [n * bits / 32, m], with a stream of bits in each column."""
    result = np.zeros((len(values) * bits // 32, values.shape[1]), np.uint32)
    for column in range(values.shape[1]):
        stream = sum(int(v) << (bits * i) for i, v in enumerate(values[:, column]))
        for i in range(len(result)):
            result[i, column] = (stream >> (32 * i)) & 0xFFFFFFFF
    return result.view(np.int32)


def integers(bits: int, groups: int = IN // GROUP) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q [out, in], zeros [out, groups] of at least 1, and scales [out, groups] in float16."""
    r = np.random.default_rng(bits)
    q = r.integers(0, 1 << bits, (OUT, IN), dtype=np.uint8)
    zeros = r.integers(1, 1 << bits, (OUT, groups))
    return q, zeros, (r.random((OUT, groups)) * 0.01 + 0.001).astype(np.float16)


def folder(path: Path, tensors: dict[str, np.ndarray], quantization: dict[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    extra = {"model.norm.weight": np.ones(IN, np.float16)}
    write_safetensors(path / "model.safetensors", tensors | extra, {})
    (path / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": quantization})
    )
    return path


def gptq(
    path: Path,
    bits: int,
    *,
    order: np.ndarray | None = None,
    version: str = "gptq",
    sym: bool = False,
    drop: str = "",
) -> tuple[Path, np.ndarray]:
    q, zeros, scales = integers(bits)
    if sym:
        zeros[:] = 1 << (bits - 1)
    g_idx = (np.arange(IN) // GROUP).astype(np.int32) if order is None else order
    expected = (q.astype(np.float32) - zeros[:, g_idx]) * scales.astype(np.float32)[:, g_idx]
    stored = zeros - (1 if version == "gptq" else 0)
    tensors = {
        "l.qweight": words(q.T, bits),
        "l.qzeros": words(stored, bits).T.copy(),
        "l.scales": scales.T.copy(),
        "l.g_idx": g_idx,
    }
    tensors.pop(drop, None)
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": GROUP,
        "sym": sym,
        "checkpoint_format": version,
    }
    return folder(path, tensors, config), expected


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq(bits: int, version: str, tmp_path: Path) -> None:
    path, expected = gptq(tmp_path / "in", bits, version=version)
    checkpoint = open_checkpoint(path)
    tensor = checkpoint["l.weight"]
    assert (
        list(checkpoint) == ["l.weight", "model.norm.weight"]
        and "quantization_config" not in checkpoint.config
    )
    assert tensor.scheme is not None and tensor.scheme.name == f"int{bits}_g32_asym"
    assert np.array_equal(tensor.read(), expected)
    kept = convert(checkpoint, tmp_path / "out", Conversion("none"))
    assert kept["l.weight"].scheme == tensor.scheme and np.array_equal(kept["l.weight"].read(), expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_gptq(bits: int, tmp_path: Path) -> None:
    path, expected = gptq(tmp_path, bits, sym=True)
    tensor = open_checkpoint(path)["l.weight"]
    assert tensor.read_quantized().zeros is None and tensor.read_quantized().scheme == tensor.scheme
    assert np.array_equal(tensor.read(), expected)


def test_gptq_by_order_of_importance(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(np.arange(IN) // GROUP).astype(np.int32)
    path, expected = gptq(tmp_path / "in", 4, order=order)
    tensor = open_checkpoint(path)["l.weight"]
    assert tensor.read_quantized().permutation is not None
    assert np.array_equal(tensor.read(), expected)
    kept = convert(path, tmp_path / "out", Conversion("int4_g32_asym"))["l.weight"]
    assert kept.read_quantized().permutation is not None and np.array_equal(kept.read(), expected)
    other = convert(path, tmp_path / "out8", Conversion("int8"))["l.weight"]
    assert np.abs(other.read() - expected).max() <= np.abs(expected).max() / 127


def test_gptq_that_does_not_hold_together(tmp_path: Path) -> None:
    path, _ = gptq(tmp_path / "a", 4, order=np.zeros(IN, np.int32))
    with pytest.raises(WeightsError, match=r"l.qweight: g_idx does not put 32 columns into each group"):
        open_checkpoint(path)["l.weight"].read()
    path, _ = gptq(tmp_path / "b", 4, drop="l.scales")
    with pytest.raises(WeightsError, match=r"there is no l.scales"):
        open_checkpoint(path)
    path, _ = gptq(tmp_path / "c", 4)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["sym"] = True
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="declared symmetric"):
        open_checkpoint(path)["l.weight"].read()


def test_awq(tmp_path: Path) -> None:
    q, zeros, scales = integers(4)

    def interleaved(values: np.ndarray) -> np.ndarray:
        """Return values [n, out] as int32 [n, out / 8]."""
        result = np.zeros((len(values), OUT // 8), np.uint32)
        for i, row in enumerate(values):
            for word in range(OUT // 8):
                for place, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
                    result[i, word] |= np.uint32(row[word * 8 + column]) << np.uint32(4 * place)
        return result.view(np.int32)

    tensors = {"l.qweight": interleaved(q.T), "l.qzeros": interleaved(zeros.T), "l.scales": scales.T.copy()}
    path = folder(
        tmp_path / "in", tensors, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    )
    tensor = open_checkpoint(path)["l.weight"]
    expected = (q - zeros.repeat(GROUP, 1).astype(np.float32)) * scales.astype(np.float32).repeat(GROUP, 1)
    assert np.array_equal(tensor.read(), expected)
    kept = convert(path, tmp_path / "out", Conversion("int4_g32_asym"))
    assert np.array_equal(kept["l.weight"].read(), expected)


def test_blocks_of_8_bit_floats(tmp_path: Path) -> None:
    r = np.random.default_rng(0)
    values = r.standard_normal((200, 256)).astype(ml_dtypes.float8_e4m3fn)
    scales = r.random((2, 2)).astype(np.float32)
    tensors = {"l.weight": values, "l.weight_scale_inv": scales}
    path = folder(tmp_path / "in", tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    expected = values.astype(np.float32) * scales.repeat(128, 0)[:200].repeat(128, 1)
    assert np.array_equal(open_checkpoint(path)["l.weight"].read(), expected)
    kept = convert(path, tmp_path / "out", Conversion("fp8_e4m3"))["l.weight"]
    assert kept.scheme is not None and np.array_equal(kept.read(), expected)


@pytest.mark.parametrize("count", ["one", "rows"])
def test_8_bit_floats_with_other_scales(count: str, tmp_path: Path) -> None:
    r = np.random.default_rng(0)
    values = r.standard_normal((OUT, IN)).astype(ml_dtypes.float8_e4m3fn)
    scales = (r.random(() if count == "one" else (OUT, 1)) + 0.1).astype(np.float32)
    scales = np.asarray(scales, ml_dtypes.bfloat16)
    tensors = {"l.weight": values, "l.weight_scale": scales, "l.input_scale": np.ones(1, np.float32)}
    path = folder(tmp_path, tensors, {"quant_method": "fp8"})
    checkpoint = open_checkpoint(path)
    assert list(checkpoint) == ["l.weight", "model.norm.weight"]
    assert np.array_equal(
        checkpoint["l.weight"].read(), values.astype(np.float32) * scales.astype(np.float32)
    )


def test_exponents_and_floats_of_4_bits(tmp_path: Path) -> None:
    """GPT-OSS' experts are what transformers makes of them."""
    integrations = pytest.importorskip("transformers.integrations.mxfp4")
    torch = pytest.importorskip("torch")
    r = np.random.default_rng(0)
    blocks = r.integers(0, 256, (2, OUT, 4, 16), dtype=np.uint8)
    exponents = r.integers(110, 130, (2, OUT, 4), dtype=np.uint8)
    expected = integrations.convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(exponents), dtype=torch.float32
    )
    tensors = {"m.experts.up_blocks": blocks, "m.experts.up_scales": exponents}
    tensor = open_checkpoint(folder(tmp_path / "in", tensors, {"quant_method": "mxfp4"}))["m.experts.up"]
    assert tensor.shape == (2, IN, OUT) and tensor.scheme is not None
    assert np.array_equal(tensor.read(), expected.numpy())
    kept = convert(tmp_path / "in", tmp_path / "out", Conversion("none"))["m.experts.up"]
    assert kept.scheme == tensor.scheme and np.array_equal(kept.read(), expected.numpy())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("form", ["pack-quantized", "int-quantized"])
def test_compressed_tensors(form: str, symmetric: bool, tmp_path: Path) -> None:
    r = np.random.default_rng(0)
    bits = 4 if form == "pack-quantized" else 8
    middle = 1 << (bits - 1)
    q = r.integers(-middle, middle, (OUT, IN))
    zeros = np.zeros((OUT, 4), int) if symmetric else r.integers(-middle, middle, (OUT, 4))
    scales = (r.random((OUT, 4)) * 0.01 + 0.001).astype(ml_dtypes.bfloat16)
    tensors: dict[str, np.ndarray] = {"l.weight_scale": scales}
    if form == "pack-quantized":
        tensors["l.weight_packed"] = words((q + middle).T, bits).T.copy()
        tensors["l.weight_shape"] = np.array([OUT, IN], np.int64)
        if not symmetric:
            tensors["l.weight_zero_point"] = words(zeros + middle, bits)
    else:
        tensors["l.weight"] = q.astype(np.int8)
        if not symmetric:
            tensors["l.weight_zero_point"] = zeros.astype(np.int8)
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": GROUP}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"a": {"weights": weights}},
    }
    tensor = open_checkpoint(folder(tmp_path, tensors, config))["l.weight"]
    expected = (q - zeros.repeat(GROUP, 1)) * scales.astype(np.float32).repeat(GROUP, 1)
    assert tensor.scheme is not None and np.allclose(tensor.read(), expected, rtol=1e-6, atol=0)


def padded_words(values: np.ndarray, bits: int) -> np.ndarray:
    """Return values [n, m] as int32 [words, m], with ``32 // bits`` values in each word of a column."""
    per = 32 // bits
    result = np.zeros((-(-len(values) // per), values.shape[1]), np.uint32)
    for i, row in enumerate(values):
        result[i // per] |= row.astype(np.uint32) << np.uint32(bits * (i % per))
    return result.view(np.int32)


def packed_3_bits(pack: Any, columns: int = IN) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the parts of a matrix of compressed-tensors, packed by `pack`, and its values."""
    r = np.random.default_rng(3)
    groups = columns // GROUP if columns % GROUP == 0 else 1
    q, zeros = r.integers(0, 8, (OUT, columns)), r.integers(0, 8, (OUT, groups))
    scales = (r.random((OUT, groups)) * 0.01 + 0.001).astype(np.float32)
    tensors = {
        "l.weight_packed": pack(q.T, 3).T.copy(),
        "l.weight_shape": np.array([OUT, columns], np.int64),
        "l.weight_scale": scales,
        "l.weight_zero_point": pack(zeros, 3),
    }
    wide = columns // groups
    return tensors, (q - zeros.repeat(wide, 1)) * scales.repeat(wide, 1)


def of_3_bits(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    weights = {"num_bits": 3, "type": "int", "symmetric": False, "group_size": GROUP}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return folder(path, tensors, {**config, "config_groups": {"a": {"weights": weights}}})


@pytest.mark.parametrize(("pack", "count"), [(words, 12), (padded_words, 13)])
def test_compressed_tensors_of_3_bits(pack: Any, count: int, tmp_path: Path) -> None:
    """Newer writers make a stream of bits; older ones leave two bits of each word unused."""
    tensors, expected = packed_3_bits(pack)
    assert tensors["l.weight_packed"].shape == (OUT, count)
    tensor = open_checkpoint(of_3_bits(tmp_path, tensors))["l.weight"]
    assert np.allclose(tensor.read(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("part", "shape", "message"),
    [
        ("weight_packed", (OUT, 14), r"weight_packed: has shape \[32, 14\].*\[32, 12\] or \[32, 13\] words"),
        ("weight_packed", (OUT + 1, 12), r"weight_packed: has shape \[33, 12\]"),
        ("weight_packed", (2, OUT, 12), r"weight_packed: has shape \[2, 32, 12\]; only matrices"),
        ("weight_zero_point", (5, 4), r"weight_zero_point: has shape \[5, 4\].*\[3, 4\] or \[4, 4\] words"),
        ("weight_scale", (OUT + 1, 4), r"weight_scale: has shape \[33, 4\], not \[32, 4\]"),
        ("weight_shape", (3,), r"weight_shape: has shape \[3\], not \[2\]"),
        ("weight_g_idx", (IN - 1,), r"weight_g_idx: has shape \[127\], not \[128\]"),
    ],
)
def test_shapes_of_compressed_tensors(
    part: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    tensors, _ = packed_3_bits(words)
    kind = tensors.get(f"l.{part}", np.zeros(0, np.int32)).dtype
    tensors[f"l.{part}"] = np.zeros(shape, kind)
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(of_3_bits(tmp_path, tensors))


def test_compressed_tensors_whose_layout_is_not_known(tmp_path: Path) -> None:
    """40 values of 3 bits take 4 words in both layouts, which differ."""
    tensors, _ = packed_3_bits(padded_words, 40)
    assert tensors["l.weight_packed"].shape == (OUT, 4)
    with pytest.raises(WeightsError, match="l.weight_packed: 40 values of 3 bits .* layout is not known"):
        open_checkpoint(of_3_bits(tmp_path, tensors))


@pytest.mark.parametrize(
    ("method", "part", "shape", "message"),
    [
        ("gptq", "qweight", (13, OUT), r"qweight: has shape \[13, 32\], not \[12, 32\]"),
        ("gptq", "qzeros", (4, 4), r"qzeros: has shape \[4, 4\], not \[4, 3\]"),
        ("gptq", "scales", (5, OUT), r"scales: has shape \[5, 32\], not \[4, 32\]"),
        ("gptq", "g_idx", (IN + 1,), r"g_idx: has shape \[129\], not \[128\]"),
        ("awq", "qweight", (IN, 5), r"qweight: has shape \[128, 5\], not \[128, 4\]"),
        ("awq", "qzeros", (4, 5), r"qzeros: has shape \[4, 5\], not \[4, 4\]"),
    ],
)
def test_shapes_of_gptq_and_awq(
    method: str, part: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    awq = method == "awq"
    shapes = {"qweight": (IN, 4) if awq else (12, OUT), "qzeros": (4, 4 if awq else 3)}
    shapes |= {"scales": (4, OUT), "g_idx": (IN,), part: shape}
    tensors = {f"l.{p}": np.zeros(s, np.float16 if p == "scales" else np.int32) for p, s in shapes.items()}
    config = {"quant_method": method, "bits": 4 if awq else 3, "group_size": GROUP}
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(folder(tmp_path, tensors, config))


@pytest.mark.parametrize("nested", [True, False])
def test_bitsandbytes_of_4_bits(nested: bool, tmp_path: Path) -> None:
    """The codes of the flattened matrix, the first one in a byte's upper bits, in blocks of 64."""
    r = np.random.default_rng(0)
    codes, largest = r.integers(0, 16, OUT * IN), r.random(OUT * IN // 64).astype(np.float32) + 0.01
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": [OUT, IN], "dtype": "float16"}
    tensors = {
        "l.weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
        "l.weight.absmax": largest,
        "l.weight.quant_map": np.array(NF4, np.float32),
    }
    if nested:
        steps, spread = np.sort(r.standard_normal(256)).astype(np.float32), np.full(1, 0.3, np.float32)
        tensors["l.weight.absmax"] = r.integers(0, 256, len(largest), dtype=np.uint8)
        tensors |= {"l.weight.nested_absmax": spread, "l.weight.nested_quant_map": steps}
        state |= {"nested_blocksize": 256, "nested_offset": 1.5}
        largest = steps[tensors["l.weight.absmax"]] * spread[0] + np.float32(1.5)
    text = json.dumps(state).encode()
    tensors["l.weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8).copy()
    checkpoint = open_checkpoint(
        folder(tmp_path, tensors, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    )
    assert list(checkpoint) == ["l.weight", "model.norm.weight"]
    expected = (np.array(NF4, np.float32)[codes] * largest.repeat(64)).reshape(OUT, IN)
    tolerance = 2**-11 if nested else 1e-6  # float16 scales
    assert np.allclose(checkpoint["l.weight"].read(), expected, rtol=tolerance, atol=0)


def test_bitsandbytes_of_8_bits(tmp_path: Path) -> None:
    r = np.random.default_rng(0)
    q, largest = r.integers(-127, 128, (OUT, IN), dtype=np.int8), r.random(OUT).astype(np.float32)
    tensors = {"l.weight": q, "l.SCB": largest, "l.weight_format": np.zeros((), np.uint8)}
    checkpoint = open_checkpoint(folder(tmp_path, tensors, {"quant_method": "bitsandbytes"}))
    assert list(checkpoint) == ["l.weight", "model.norm.weight"]
    expected = q * (largest / 127)[:, None]
    assert np.allclose(checkpoint["l.weight"].read(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "hqq"}, "quantized by 'hqq' are not supported"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format 'marlin-24'"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 32}, "bits 5 and group_size 32"),
        ({"quant_method": "awq", "bits": 4, "group_size": "x"}, "group_size x"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"},
            "only supported with 4 bits in version gemm",
        ),
    ],
)
def test_other_ways_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    gptq(tmp_path, 4)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(tmp_path)
