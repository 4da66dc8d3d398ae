"""Weights in a file beside their library are written piece by piece and mapped into memory; weights of
another model are refused.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.caches import new_cache

import tilewright as tw
from tilewright.artifact.weights import START, write_weights
from tilewright.errors import ArtifactError
from tilewright.ir.constant import Constant

X = np.linspace(-1, 1, 96, dtype=np.float32).reshape(1, 96)


def model(seed: int = 0, width: int = 80) -> Any:
    tw.nn.seed(seed)
    return tw.nn.Sequential(tw.nn.Linear(96, 800), tw.nn.ReLU(), tw.nn.Linear(800, width))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tw.compile(model(), (X,), cache=False)
    path: Path = library.save(tmp_path_factory.mktemp("beside") / "m.so", weights="beside")
    return path


def expected(seed: int = 0) -> Any:
    return model(seed)(X).numpy()


def test_a_library_finds_its_weights(saved: Path, tmp_path: Path) -> None:
    file = saved.with_suffix(".weights")
    size = tw.load(saved).metadata["memory"]["weights_bytes"]
    assert file.stat().st_size == START + size and saved.stat().st_size < size
    for options in ({}, {"weights": file}, {"weights": str(file), "check_weights": True}):
        library = tw.load(saved, **options)
        np.testing.assert_allclose(library(X), expected(), atol=1e-5)
    copy = library.save(tmp_path / "other.so")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.so", "other.weights", "tilewright.h"]
    np.testing.assert_array_equal(tw.load(copy)(X), library(X))
    copy.with_suffix(".weights").unlink()
    with pytest.raises(
        ArtifactError, match=r"the file of its weights, other.weights or m.weights, is not in the same folder"
    ):
        tw.load(copy)
    copy.with_suffix(".weights").mkdir()
    with pytest.raises(ArtifactError, match="other.weights: the weights cannot be read: not a regular file"):
        tw.load(copy, weights=copy.with_suffix(".weights"))
    with pytest.raises(ArtifactError, match="the weights cannot be read: No such file"):
        tw.load(copy, weights=tmp_path / "none")


def test_threads_and_sessions_map_the_same_file(saved: Path) -> None:
    library = tw.load(saved)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(library(X))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for y in (*found, library.session()(X)):  # type: ignore[attr-defined]
        np.testing.assert_allclose(y, expected(), atol=1e-5)
    assert f"{saved.with_suffix('.weights')}" in Path("/proc/self/maps").read_text()


def test_weights_of_another_model_are_refused(saved: Path, tmp_path: Path) -> None:
    identity = tw.load(saved).metadata["weights"]["identity"]
    others = {}
    for name, made in (("values", model(1)), ("sizes", model(0, 40))):
        path = tw.compile(made, (X,), cache=False).save(tmp_path / f"{name}.so", weights="beside")
        others[name] = tw.load(path).metadata["weights"]["identity"], path.with_suffix(".weights")
    theirs, file = others["values"]
    with pytest.raises(
        ArtifactError, match=rf"compiled for {identity}, the file holds {theirs}; both have \d+ bytes"
    ):
        tw.load(saved, weights=file)
    theirs, file = others["sizes"]
    with pytest.raises(
        ArtifactError, match=rf"compiled for {identity} \(\d+ bytes\), the file holds {theirs} \(\d+ bytes\)"
    ):
        tw.load(saved, weights=file)


def test_damaged_weights_are_found(saved: Path, tmp_path: Path) -> None:
    whole = saved.with_suffix(".weights").read_bytes()
    file = tmp_path / "damaged.weights"

    def load(data: bytes, **options: Any) -> None:
        file.write_bytes(data)
        tw.load(saved, weights=file, **options)

    for data, message in (
        (b"", "not a weights file of Tilewright"),
        (b"\0" * 8192, "not a weights file of Tilewright"),
        (whole[:8] + b"\2" + whole[9:], "the file has format version 2, this library reads version 1"),
        (whole[:-1], rf"damaged file: {len(whole)} bytes expected, {len(whole) - 1} found"),
        (whole + b"\0", "damaged file"),
    ):
        with pytest.raises(ArtifactError, match=message):
            load(data)
    changed = bytearray(whole)
    changed[-1] ^= 1
    load(bytes(changed))  # loading does not read the weights
    with pytest.raises(ArtifactError, match="damaged file: the weights differ from their checksum"):
        load(bytes(changed), check_weights=True)


def test_where_weights_go_is_said(saved: Path, tmp_path: Path) -> None:
    library = tw.load(saved)
    with pytest.raises(
        ArtifactError, match="the weights of .* are beside it: to save them elsewhere, compile"
    ):
        library.save(tmp_path / "a.so", weights="inside")
    compiled = tw.compile(model(), (X,), cache=False)
    with pytest.raises(ArtifactError, match="weights='outside' must be 'inside' or 'beside'"):
        compiled.save(tmp_path / "a.so", weights="outside")
    with pytest.raises(ArtifactError, match="are inside it"):
        tw.load(compiled.save(tmp_path / "a.so")).save(tmp_path / "b.so", weights="beside")


def test_a_kept_library_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path / "cache")
    for _ in range(2):
        library = tw.compile(model(), (X,))
    assert library.report.cached
    path = library.save(tmp_path / "m.so", weights="beside")
    assert path.with_suffix(".weights").exists()
    np.testing.assert_allclose(tw.load(path)(X), expected(), atol=1e-5)


def test_other_artifacts_have_weights_beside_them_too(tmp_path: Path) -> None:
    import tarfile

    path = tw.compile(model(), (X,), cache=False).save(tmp_path / "m.tar", weights="beside")
    with tarfile.open(path) as archive:
        assert archive.getmember("tw_blob_weights.bin").size == 64
    pytest.importorskip("wasmtime")
    path = tw.compile(model(), (X,), target="wasm32", cache=False).save(tmp_path / "m.wasm", weights="beside")
    np.testing.assert_allclose(tw.load(path)(X), expected(), atol=1e-5)
    path = tw.compile(model(), (X,), target="webgpu", cache=False).save(tmp_path / "g.tar", weights="beside")
    tw.load(path)
    other = tw.compile(model(1), (X,), cache=False).save(tmp_path / "o.so", weights="beside")
    with pytest.raises(ArtifactError, match="belong to another model"):
        tw.load(path, weights=other.with_suffix(".weights"))
    path = tmp_path / "m.wasm"
    with pytest.raises(ArtifactError, match="belong to another model"):
        tw.load(path, weights=other.with_suffix(".weights"))


def test_constants_are_made_one_after_the_other(tmp_path: Path) -> None:
    alive, most, lock = 0, 0, threading.Lock()

    def constant(k: int) -> Constant:
        def write(out: np.ndarray[Any, Any]) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)
            out[...] = k
            with lock:
                alive -= 1

        return Constant.made((70_000,), ml_dtypes.bfloat16, write, recipe=("filled", k))

    size = 140_032
    parts = [(k * size, constant(k)) for k in range(20)]
    identity = write_weights(
        tmp_path / "w.weights", [*parts, (20 * size, Constant(np.zeros((0, 3))))], 20 * size
    )
    assert identity.size == 20 * size and 1 <= most <= 2
    block = np.fromfile(tmp_path / "w.weights", np.uint8, offset=START)
    for k in range(20):
        row = block[k * size : (k + 1) * size]
        assert (row[:140_000].view(ml_dtypes.bfloat16) == k).all() and not row[140_000:].any()
    with pytest.raises(ArtifactError, match="no space"):
        write_weights(tmp_path / "w.weights", [], 1 << 60)
