"""Conversion: written weights are read back within the schemes' errors; interruption and damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.llm.weights.models import folder_of, small_model
from tilewright.errors import WeightsError
from tilewright.llm.quantization import dequantize, quantize, scheme_of
from tilewright.llm.weights import Conversion, ConvertedFolder, convert, open_checkpoint
from tilewright.llm.weights.roles import is_transposed
from tilewright.llm.weights.safetensors import read_safetensors


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = folder_of(small_model("llama"), tmp_path_factory.mktemp("llama"), shard_size="100KB")
    (path / "tokenizer.json").write_text('{"version": "1.0"}')
    assert len(list(path.glob("*.safetensors"))) > 2
    return path


def values(checkpoint: object) -> dict[str, np.ndarray]:
    return {name: tensor.read().astype(np.float32) for name, tensor in checkpoint.items()}  # type: ignore[attr-defined]


def same(a: object, b: object) -> bool:
    x, y = values(a), values(b)
    return list(x) == list(y) and all(np.array_equal(x[n], y[n]) for n in x)


def test_a_folder_is_read_lazily_and_right(llama: Path) -> None:
    model = small_model("llama")
    checkpoint = open_checkpoint(llama)
    state = model.state_dict()
    assert set(checkpoint) == set(state) and checkpoint.config["model_type"] == "llama"
    for name, tensor in checkpoint.items():
        assert tensor.shape == tuple(state[name].shape) and np.array_equal(tensor.read(), state[name].numpy())
    assert checkpoint.files["tokenizer.json"]() == b'{"version": "1.0"}'


@pytest.mark.parametrize("name", ["none", "f32"])
def test_nothing_is_lost_without_quantization(name: str, llama: Path, tmp_path: Path) -> None:
    folder = convert(llama, tmp_path / "out", Conversion(name, shard_size=50_000))
    assert same(folder, open_checkpoint(llama)) and len(folder.sources) > 3
    assert folder.config == open_checkpoint(llama).config
    assert (
        folder.files["tokenizer.json"]() == b'{"version": "1.0"}' and "generation_config.json" in folder.files
    )


@pytest.mark.parametrize("name", ["bf16", "int8", "int4_g32_asym", "int3_g32", "fp8_e4m3"])
def test_each_matrix_is_what_its_scheme_makes_of_it(name: str, llama: Path, tmp_path: Path) -> None:
    source, folder = (
        open_checkpoint(llama),
        convert(llama, tmp_path / "out", Conversion(name, shard_size=40_000)),
    )
    scheme, embedding = scheme_of(name), scheme_of("int8" if name.startswith("int") else name)
    for tensor_name, tensor in folder.items():
        before = source[tensor_name].read()
        role = embedding if "embed" in tensor_name or "lm_head" in tensor_name else scheme
        if not scheme.quantized:
            assert np.array_equal(tensor.read(), before.astype(scheme.dtype))
        elif "norm" in tensor_name:
            assert tensor.scheme is None and np.array_equal(tensor.read(), before)
        else:
            assert tensor.scheme == role and np.array_equal(tensor.read(), dequantize(quantize(before, role)))
    assert folder.quantization == scheme and folder.record["embedding_quantization"] == embedding.name


@pytest.mark.parametrize(
    ("family", "name", "transposed"),
    [
        ("gpt2", "transformer.h.0.attn.c_attn.weight", True),
        ("gpt2", "transformer.wte.weight", False),
        ("gpt_oss", "model.layers.0.mlp.experts.down_proj", True),
        ("gpt_oss", "model.layers.0.self_attn.q_proj.weight", False),
        ("llama4_text", "model.layers.0.feed_forward.experts.gate_up_proj", True),
        ("qwen3_moe", "model.layers.0.mlp.experts.gate_up_proj", False),
        ("unknown", "model.layers.0.mlp.experts.gate_up_proj", False),
    ],
)
def test_matrices_whose_rows_are_inputs(family: str, name: str, transposed: bool) -> None:
    assert is_transposed(name, {"model_type": family}) == transposed


def test_embedding_and_head_can_be_chosen(llama: Path, tmp_path: Path) -> None:
    how = Conversion("int4_g32", embedding_quantization="bf16", head_quantization="int4_g64")
    folder = convert(llama, tmp_path / "out", how)
    assert folder["model.embed_tokens.weight"].dtype.name == "bfloat16"
    assert folder["lm_head.weight"].scheme == scheme_of("int4_g64")


@pytest.mark.parametrize(
    ("family", "kept"),
    [("mixtral", "block_sparse_moe.gate"), ("qwen2_moe", "shared_expert_gate"), ("gpt2", "wpe")],
)
def test_routers_and_positions_stay(family: str, kept: str, tmp_path: Path) -> None:
    source = folder_of(small_model(family), tmp_path / "in")
    folder = convert(source, tmp_path / "out", Conversion("int8"))
    plain = [name for name, tensor in folder.items() if len(tensor.shape) > 1 and not tensor.scheme]
    assert plain and all(kept in name or name.endswith("mlp.gate.weight") for name in plain)


def test_gpt2_is_quantized_along_its_inputs(tmp_path: Path) -> None:
    source = folder_of(small_model("gpt2"), tmp_path / "in")
    folder = convert(source, tmp_path / "out", Conversion("int8"))
    tensor = folder["transformer.h.0.attn.c_attn.weight"]
    before = open_checkpoint(source)["transformer.h.0.attn.c_attn.weight"].read()
    assert tensor.shape == (64, 192) and tensor.transposed
    assert tensor.read_quantized().shape == (192, 64) and tensor.read_quantized().scales.shape == (192, 1)
    assert np.array_equal(tensor.read(), dequantize(quantize(before.T, scheme_of("int8"))).T)


def test_a_converted_folder_is_a_source_too(llama: Path, tmp_path: Path) -> None:
    first = convert(llama, tmp_path / "a", Conversion("int4_g32", shard_size=40_000))
    again = convert(first, tmp_path / "b", Conversion("none"))
    assert same(first, again) and len(again.sources) == 1
    assert again["lm_head.weight"].scheme == scheme_of("int8")
    wide = convert(first, tmp_path / "c", Conversion("f32"))
    assert same(first, wide) and not any(tensor.scheme for tensor in wide.values())


class Stopped(Exception):
    pass


def test_an_interrupted_conversion_goes_on(llama: Path, tmp_path: Path) -> None:
    how, out = Conversion("int8", shard_size=20_000), tmp_path / "out"

    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("model-00003"):
            raise Stopped

    with pytest.raises(Stopped):
        convert(llama, out, how, progress=stop)
    assert not (out / "tilewright.json").exists()
    kept = sorted(out.glob("*.safetensors"))
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert len(kept) == 2
    seen: list[str] = []
    damaged = kept[1].read_bytes()
    kept[1].write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    folder = convert(llama, out, how, progress=lambda stage, done, total: seen.append(stage[:11]))
    assert kept[0].stat().st_mtime_ns == times[kept[0]], "a complete shard is kept"
    assert "model-00001" not in seen and "model-00002" in seen, "a damaged shard is written again"
    assert same(folder, convert(llama, tmp_path / "other", how))


def test_two_conversions_to_one_folder_are_refused(llama: Path, tmp_path: Path) -> None:
    def again(stage: str, done: int, total: int) -> None:
        with pytest.raises(WeightsError, match="another process is converting"):
            convert(llama, tmp_path, Conversion("int4_g32"))

    convert(llama, tmp_path, Conversion("int8"), progress=again).verify()


def test_progress_ends_at_its_total(llama: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(
        llama, tmp_path, Conversion("int8"), progress=lambda stage, done, total: seen.append((done, total))
    )
    assert [d for d, _ in seen] == sorted(d for d, _ in seen) and seen[-1][0] == seen[-1][1] > 0


def test_another_conversion_replaces_all_shards(llama: Path, tmp_path: Path) -> None:
    convert(llama, tmp_path, Conversion("int8", shard_size=20_000))
    folder = convert(llama, tmp_path, Conversion("int4_g32", shard_size=40_000))
    assert sorted(tmp_path.glob("*.safetensors")) == sorted(folder.sources)
    assert folder.quantization.name == "int4_g32"


def test_killed_and_run_again(llama: Path, tmp_path: Path) -> None:
    """If SIGKILL interrupts the real command, every file under its final name is complete, and running the
    command again completes the folder.
    """
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tilewright", "llm", "convert", str(llama), "-o", str(out)]
    command += ["--quantization", "int4_g32", "--shard-size", "9kB"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while process.poll() is None and len(list(out.glob("model-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(out.glob("model-*"))
    for path in out.glob("model-*"):
        read_safetensors(path)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "21 tensors" in done.stdout, done.stderr
    assert same(ConvertedFolder(out), convert(llama, tmp_path / "other", Conversion("int4_g32")))
    assert not list(out.glob(".model*"))


def test_every_flipped_bit_of_the_data_is_found(llama: Path, tmp_path: Path) -> None:
    folder = convert(llama, tmp_path, Conversion("int4_g32"))
    path = folder.sources[0]
    whole = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(whole[:8], "little")
    for at in np.random.default_rng(0).integers(begin, len(whole), 8):
        whole[at] ^= 1 << (at % 8)
        path.write_bytes(whole)
        with pytest.raises(WeightsError, match=r"model-00001-of-00001.safetensors: .*: its checksum is not"):
            ConvertedFolder(tmp_path).verify()
        ConvertedFolder(tmp_path, verify=False).verify()
        whole[at] ^= 1 << (at % 8)
    path.write_bytes(whole)
    ConvertedFolder(tmp_path).verify()


def test_folders_that_do_not_belong_together_are_refused(llama: Path, tmp_path: Path) -> None:
    convert(llama, tmp_path / "a", Conversion("int4_g32"))
    convert(llama, tmp_path / "b", Conversion("int8"))
    (tmp_path / "a" / "tilewright.json").write_bytes((tmp_path / "b" / "tilewright.json").read_bytes())
    with pytest.raises(WeightsError, match="tilewright.json says"):
        ConvertedFolder(tmp_path / "a")
    record = json.loads((tmp_path / "b" / "tilewright.json").read_text())
    for change, message in (
        ({"format": 7}, "format 7"),
        ({"tensors": {"x": {}}}, "not what convert writes: KeyError"),
        ({"tensors": 3}, "not what convert writes"),
        ({"quantization": "int99"}, "int99"),
    ):
        (tmp_path / "b" / "tilewright.json").write_text(json.dumps(record | change))
        with pytest.raises(WeightsError, match=message):
            ConvertedFolder(tmp_path / "b")
    os.unlink(tmp_path / "b" / "model-00001-of-00001.safetensors")
    (tmp_path / "b" / "tilewright.json").write_text(json.dumps(record))
    with pytest.raises(WeightsError, match="no such file"):
        open_checkpoint(tmp_path / "b")


def test_parts_that_an_earlier_version_stored_otherwise_are_refused(llama: Path, tmp_path: Path) -> None:
    convert(llama, tmp_path, Conversion("int8"))
    record = json.loads((tmp_path / "tilewright.json").read_text())
    name = next(name for name, entry in record["tensors"].items() if "scheme" in entry)
    record["tensors"][name]["scheme"] = "int4_g32"
    (tmp_path / "tilewright.json").write_text(json.dumps(record))
    with pytest.raises(WeightsError, match=r"safetensors: .* of int4_g32 must be .*; convert again"):
        ConvertedFolder(tmp_path)[name].read()


def test_foreign_weights_are_not_overwritten(llama: Path, tmp_path: Path) -> None:
    folder_of(small_model("qwen2"), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(WeightsError, match="which convert did not write"):
        convert(llama, tmp_path, Conversion("int8"))
    with pytest.raises(WeightsError, match="is the source"):
        convert(llama, llama, Conversion("int8"))
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_values_that_a_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = small_model("llama")
    model.model.layers[0].mlp.up_proj.weight.data[3, 4] = 1e6
    source = folder_of(model, tmp_path / "in")
    with pytest.raises(WeightsError, match=r"up_proj.weight: has values beyond the range of float16"):
        convert(source, tmp_path / "out", Conversion("f16"))
    model.model.layers[0].mlp.up_proj.weight.data[3, 4] = float("nan")
    source = folder_of(model, tmp_path / "in2")
    with pytest.raises(
        WeightsError, match=r"model.safetensors: .*up_proj.weight: holds values that are not finite"
    ):
        convert(source, tmp_path / "out2", Conversion("int8"))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "not JSON"),
        ("config.json", "[]", "not a JSON object"),
        ("config.json", None, "no such file"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../../etc/passwd"}}',
            "not the name of a file in this folder",
        ),
        ("model.safetensors.index.json", "{}", "has no weight_map"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "model.safetensors"}}',
            "a should be in model.safetensors",
        ),
    ],
)
def test_bad_folders_are_refused(file: str, text: str | None, message: str, tmp_path: Path) -> None:
    folder_of(small_model("llama"), tmp_path)
    (tmp_path / file).unlink(missing_ok=True)
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(tmp_path)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match="pickle"):
        open_checkpoint(tmp_path)


def test_memory_is_bounded_by_a_shard_and_a_tensor(tmp_path: Path) -> None:
    """NumPy's memory stays near a shard and a tensor in converting a checkpoint of 84 MB, with tensors of 4
    MB and shards of 8 MB.
    """
    import tracemalloc

    model = small_model(
        "llama",
        vocab_size=64,
        hidden_size=1024,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    source = folder_of(model, tmp_path / "in")
    del model
    total = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    tracemalloc.start()
    convert(source, tmp_path / "out", Conversion("bf16", shard_size=8 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 80 << 20 and 6 << 20 < peak < 20 << 20


@pytest.mark.parametrize(
    "arguments", [["--quantization", "int9"], ["--quantization", "int8", "--shard-size", "x"], []]
)
def test_the_command_line_is_checked(arguments: list[str], llama: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tilewright.cli.llm import command

    result = CliRunner().invoke(command, ["convert", str(llama), "-o", str(tmp_path / "x"), *arguments])
    assert result.exit_code and not (tmp_path / "x").exists()
