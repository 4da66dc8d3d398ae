"""A compiled transformer has few kernels, which equal layers share, and a memory plan that saves memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tests.caches import new_cache
from tests.models.compare import SIZES, assert_matches, compiled
from tests.zoo.models import MINILM

every_isa = pytest.mark.every_isa


@every_isa
def test_equal_layers_share_kernels_and_memory() -> None:
    library = tw.compile(MINILM.onnx_model("tiny", dynamic=True), dims=MINILM.dims, cache=False)
    kernels = library.metadata["kernels"]
    assert len(kernels) <= 14
    assert sum(k["launches"] for k in kernels) >= 6 * 8
    memory = library.metadata["memory"]
    assert memory["arena_bytes"] < memory["unplanned_bytes"] / 4
    fusion = library.metadata["fusion"]
    assert fusion["kernels_after"] < fusion["kernels_before"] / 4
    assert fusion["bytes_after"] < fusion["bytes_before"] / 2
    assert any("layer" in place for k in kernels for place in k["locations"])


@pytest.mark.parametrize("front_end", [pytest.param("onnx", marks=every_isa), "torch"])
def test_windows_are_cut_out_without_copies_for_each_head(front_end: str) -> None:
    """In Swin, attention reads its operands from the projection's result. Only the windows themselves are
    moved, once before it.
    """
    library = compiled("swin", front_end, dynamic=False)
    launched = [(k["name"].rstrip("0123456789_"), k["launches"]) for k in library.metadata["kernels"]]
    layers = sum(count for name, count in launched if "attention" in name)
    assert layers == 4
    assert sum(count for name, count in launched if "transpose" in name) <= layers


def test_every_level_can_be_read() -> None:
    library = compiled("bert", "onnx", dynamic=True)
    assert "graph." in library.ir("graph")
    assert "tensor.group" in library.ir("tensor")
    assert "loop.for" in library.ir("loop")
    assert "define void @" in library.ir("llvm")
    assert ".text" in library.ir("asm")
    with pytest.raises(tw.CompileError, match="no level 'nonsense'"):
        library.ir("nonsense")


def test_cache_and_saved_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path / "cache")
    model = MINILM.onnx_model("tiny", dynamic=True)
    first = tw.compile(model, dims=MINILM.dims)
    again = tw.compile(model, dims=MINILM.dims)
    assert not first.report.cached
    assert again.report.cached
    assert_matches(again, "minilm", *SIZES[1])
    assert "graph." in again.ir("graph")
    loaded = tw.load(again.save(tmp_path / "minilm.so"))
    assert_matches(loaded, "minilm", *SIZES[2])
    with pytest.raises(tw.ShapeError, match="'seq' must be"):
        inputs = MINILM.inputs("tiny", batch=1, seq=200)
        loaded(*inputs.values())


def test_profile_counts_work() -> None:
    library = compiled("bert", "onnx", dynamic=True)
    inputs = [v.numpy() for v in MINILM.inputs("tiny", batch=2, seq=16).values()]
    rows = library.profile(*inputs, repeat=2)
    assert {r.name for r in rows} == {k["name"] for k in library.metadata["kernels"]}
    assert all(r.seconds > 0 and r.calls > 0 and r.bytes > 0 for r in rows)
    assert sum(r.flops for r in rows) > 100_000
