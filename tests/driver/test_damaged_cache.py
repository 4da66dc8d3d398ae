"""A damaged or unusable cache makes compilation slower but does not change its result."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.artifact import disk_cache

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
W = np.arange(256, dtype=np.float32).reshape(16, 16) / 256


def model(x: Any) -> Any:
    return tnp.maximum(x @ W, 0) + 1


EXPECTED = np.maximum(X @ W, 0) + 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return new_cache(monkeypatch, tmp_path / "cache")


def compiled() -> Any:
    library = tw.compile(model, (X,))
    np.testing.assert_allclose(library(X), EXPECTED, rtol=1e-5)
    return library


def flip(path: Path, bits: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[bits.randrange(len(data))] ^= 1 << bits.randrange(8)
    path.write_bytes(data)


def cut(path: Path, bits: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: bits.randrange(path.stat().st_size + 1)])


def empty(path: Path, bits: random.Random) -> None:
    path.write_bytes(b"")


def another(path: Path, bits: random.Random) -> None:
    path.write_bytes(b"something else" * 1000)


def a_folder(path: Path, bits: random.Random) -> None:
    path.unlink()
    (path / "within").mkdir(parents=True)


DAMAGES = (flip, cut, empty, another, a_folder)


def test_damaged_models(folder: Path) -> None:
    for damage in DAMAGES:
        assert not compiled().report.cached
        assert compiled().report.cached
        (path,) = (p for p in disk_cache.folder_of("artifacts").rglob("*") if p.is_file())
        damage(path, random.Random(1))
    assert not compiled().report.cached


def test_damaged_parts(folder: Path) -> None:
    """If the cached library is missing and the cached kernels and runtime are damaged, they are compiled
    again.
    """
    assert not compiled().report.cached
    shutil.rmtree(disk_cache.folder_of("artifacts"))
    bits = random.Random(0)
    parts = sorted(p for p in folder.rglob("*") if p.is_file())
    for number, path in enumerate(parts):
        DAMAGES[number % len(DAMAGES)](path, bits)
    assert len(parts) > 2 * len(DAMAGES)
    assert not compiled().report.cached
    assert sum(p.is_dir() and p.name == "within" for p in folder.rglob("*")) == len(parts[4 :: len(DAMAGES)])


def test_a_file_where_the_folder_should_be(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("no folder")
    with pytest.warns(UserWarning, match=r"cache is not a folder; remove it, or set TILEWRIGHT_CACHE_DIR"):
        compiled()
    assert folder.read_text() == "no folder"


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "/proc/none/cache")  # no user may write to this folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not compiled().report.cached
