from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from build import W, build, expected

from tilewright.artifact.sources import INCLUDE_DIR
from tilewright.errors import ArtifactError, ShapeError
from tilewright.runtime.wasm import WasmLibrary

pytest.importorskip("wasmtime")


def arguments(batch: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(batch)
    return generator.random((batch, 8), np.float32), generator.random(batch, np.float32)


def test_values_at_many_sizes(affine_wasm: Path) -> None:
    with WasmLibrary(affine_wasm) as library:
        for batch in [1, 3, 4096, 2, 1000, 4096, 5] * 3:
            x, z = arguments(batch)
            for result, reference in zip(library(x, z), expected(x, z), strict=True):
                np.testing.assert_allclose(result, reference, rtol=1e-6)


def test_memory_does_not_leak(affine_wasm: Path) -> None:
    library = WasmLibrary(affine_wasm)
    x, z = arguments(4096)
    library(x, z)
    library(x, z)
    before = library._instance.memory_bytes
    for _ in range(50):
        library(x, z)
    assert library._instance.memory_bytes == before


def test_errors_name_the_input(affine_wasm: Path) -> None:
    library = WasmLibrary(affine_wasm)
    x, z = arguments(4)
    with pytest.raises(ShapeError, match="input 'x': expected float32, got int64"):
        library(x.astype(np.int64), z)
    with pytest.raises(ShapeError, match="'batch' is 4 from dimension 0 of 'x'"):
        library(x, z[:2])
    library.close()
    with pytest.raises(ArtifactError, match="closed"):
        library(x, z)


def test_damage_is_refused(affine_wasm: Path, tmp_path: Path) -> None:
    data = bytearray(affine_wasm.read_bytes())
    data[len(data) // 2] ^= 1
    damaged = tmp_path / "damaged.wasm"
    damaged.write_bytes(data)
    with pytest.raises(ArtifactError, match="checksum"):
        WasmLibrary(damaged)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_javascript_gives_the_same(affine_wasm: Path) -> None:
    loader = INCLUDE_DIR.parent / "js" / "index.js"
    script = Path(__file__).parent / "run_model.mjs"
    done = subprocess.run(["node", script, loader, affine_wasm], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    y, pairs = expected(np.arange(24, dtype=np.float32).reshape(3, 8), np.arange(3, dtype=np.float32))
    np.testing.assert_allclose(np.reshape(result["y"], result["y_shape"]), y, rtol=1e-6)
    np.testing.assert_array_equal(result["pairs"], pairs)
    assert (
        result["message"] == "input 'z' has size 2 in dimension 0, but 'batch' is 3 from dimension 0 of 'x'"
    )
    assert result["functions"] == ["main"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_javascript_runs_other_functions(tmp_path: Path) -> None:
    model = build(tmp_path / "model.wasm", wasm=True, states=True)
    loader = INCLUDE_DIR.parent / "js" / "index.js"
    script = Path(__file__).parent / "run_model.mjs"
    done = subprocess.run(["node", script, loader, model], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    assert result["functions"] == ["main", "recall"]
    np.testing.assert_allclose(result["recalled"], np.array(result["y"][:8]) * W[0])
