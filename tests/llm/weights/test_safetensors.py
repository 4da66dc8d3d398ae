"""Safetensors files: files of the package `safetensors` are read, the package reads ours, and errors name
what is damaged.
"""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.errors import WeightsError
from tilewright.llm.weights.safetensors import DTYPES, read_safetensors, write_safetensors


def arrays() -> dict[str, np.ndarray]:
    r = np.random.default_rng(0)
    return {f"t.{name}": r.standard_normal((3, 5)).astype(dtype) for name, dtype in DTYPES.items()} | {
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.float32(3).reshape(()),
    }


def test_every_dtype_comes_back(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", arrays(), {"a": "b"})
    tensors, metadata = read_safetensors(tmp_path / "x.safetensors")
    assert metadata == {"a": "b"} and list(tensors) == list(arrays())
    for name, array in arrays().items():
        assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape
        assert tensors[name].read().tobytes() == array.tobytes()


def test_the_package_reads_what_is_written(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", arrays(), {})
    loaded = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert loaded["t.F32"].numpy().tobytes() == arrays()["t.F32"].tobytes()
    assert loaded["t.BF16"].dtype == torch.bfloat16 and loaded["t.F8_E4M3"].dtype == torch.float8_e4m3fn


def test_what_the_package_writes_is_read_without_copies(tmp_path: Path) -> None:
    x = torch.randn(4, 6).bfloat16()
    safetensors.torch.save_file({"x": x, "y": torch.arange(3)}, tmp_path / "x.safetensors")
    tensors, _ = read_safetensors(tmp_path / "x.safetensors")
    read = tensors["x"].read()
    assert read.dtype == ml_dtypes.bfloat16 and np.array_equal(read.astype(np.float32), x.float().numpy())
    assert not read.flags.writeable and not read.flags.owndata


def with_header(header: object, data: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
BAD = {
    "empty": (b"", "not a whole safetensors file"),
    "header longer than the file": ((1 << 40).to_bytes(8, "little") + b"{}", "a header of 1099511627776"),
    "no JSON": (with_header(b"{nonsense"), "not JSON"),
    "a list": (with_header([1]), "not a JSON object"),
    "deeply nested": (with_header(b"[" * 100_000), "not JSON"),
    "a name twice": (with_header(b'{"a": 1, "a": 2}'), "occurs twice"),
    "no dtype": (with_header({"w": {"shape": [1], "data_offsets": [0, 4]}}), "w: its header lacks"),
    "unknown dtype": (with_header({"w": ENTRY | {"dtype": "F3"}}), "w: has dtype 'F3'"),
    "negative": (with_header({"w": ENTRY | {"shape": [-2, -2]}}), "w: shape"),
    "huge": (with_header({"w": ENTRY | {"shape": [1 << 40, 1 << 40]}}), "w: F32"),
    "data cut off": (with_header({"w": ENTRY}, b"\0" * 12), "w: F32 .* truncated or damaged"),
    "overlap": (with_header({"w": ENTRY, "v": ENTRY}), "v: does not begin where w ends|w: does not begin"),
    "gap": (
        with_header({"w": ENTRY | {"data_offsets": [4, 20]}}, b"\0" * 20),
        "does not begin where the header ends",
    ),
    "data after the last tensor": (with_header({"w": ENTRY}, b"\0" * 20), "4 bytes after the last tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(case: str, tmp_path: Path) -> None:
    data, message = BAD[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=message) as raised:
        read_safetensors(path)
    assert str(raised.value).startswith(str(path))


@given(cut=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_truncation_is_refused(cut: int, tmp_path: Path) -> None:
    safetensors.numpy.save_file(
        {"x": np.ones((3, 3), np.float32), "y": np.ones(5, np.int8)}, tmp_path / "x.safetensors"
    )
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: cut % len(whole)])
    with pytest.raises(WeightsError):
        read_safetensors(tmp_path / "cut.safetensors")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    class Fails(dict):  # type: ignore[type-arg]
        def values(self):  # type: ignore[no-untyped-def]
            yield np.ones(4)
            raise OSError("no space left")

    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"old": np.ones(1)}, {})
    with pytest.raises(OSError, match="no space"):
        write_safetensors(path, Fails(a=np.ones(4), b=np.ones(4)), {})
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"] and list(read_safetensors(path)[0]) == [
        "old"
    ]
