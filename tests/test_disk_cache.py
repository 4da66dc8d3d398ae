from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tilewright import disk_cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_entries_are_found_again(folder: Path) -> None:
    key = disk_cache.digest("a", b"b")
    assert disk_cache.read("kind", key) is None
    disk_cache.write("kind", key, b"data")
    assert disk_cache.read("kind", key) == b"data"
    assert disk_cache.read("other", key) is None
    assert not [p for p in folder.rglob(".tmp-*")]


def test_digest_tells_parts_apart() -> None:
    assert disk_cache.digest("ab", "c") != disk_cache.digest("a", "bc")
    assert disk_cache.digest("ab") == disk_cache.digest(b"ab")


def test_the_oldest_go_first(folder: Path) -> None:
    keys = [disk_cache.digest(str(k)) for k in range(10)]
    for age, key in enumerate(keys):
        disk_cache.write("kind", key, bytes(100))
        path = next(p for p in folder.rglob(key[2:]))
        os.utime(path, (time.time() - 1e6 + age,) * 2)
    disk_cache.read("kind", keys[0])  # used just now
    assert disk_cache.prune(1000) == 0
    assert disk_cache.prune(500) == 600
    assert [k for k in keys if disk_cache.read("kind", k) is not None] == [keys[0], *keys[7:]]


def test_large_entries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry takes at most half the cache and a quarter of the disk's free space."""

    class Disk:
        total, free = 200 << 30, 60 << 30

    monkeypatch.setattr(disk_cache.shutil, "disk_usage", lambda _: Disk)
    monkeypatch.delenv("TILEWRIGHT_CACHE_BYTES", raising=False)
    assert disk_cache.limit() == 20 << 30
    assert disk_cache.takes(10 << 30) and not disk_cache.takes((10 << 30) + 1)
    Disk.free = 4 << 30
    assert disk_cache.takes(1 << 30) and not disk_cache.takes(2 << 30)
    Disk.total = 1 << 30
    assert disk_cache.limit() == 2 << 30
    Disk.total = 1 << 50
    assert disk_cache.limit() == 32 << 30
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "1000")
    assert disk_cache.limit() == 1000 and disk_cache.takes(500) and not disk_cache.takes(501)


def test_a_cache_that_cannot_be_written_is_empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder should be")
    disk_cache.write("kind", "abcd", b"data")
    assert disk_cache.read("kind", "abcd") is None
