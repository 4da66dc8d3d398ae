from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tilewright.artifact import disk_cache


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
    disk_cache.read("kind", keys[0])  # makes it the most recently used entry
    size = disk_cache.path_of("kind", keys[0]).stat().st_size
    assert disk_cache.prune(10 * size) == 0
    assert disk_cache.prune(5 * size) == 6 * size
    assert [k for k in keys if disk_cache.read("kind", k) is not None] == [keys[0], *keys[7:]]


def test_large_entries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry may take at most half of the cache and a quarter of the disk's free space."""

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
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "1G")
    with pytest.warns(UserWarning, match="TILEWRIGHT_CACHE_BYTES='1G' is ignored"):
        assert disk_cache.limit() == 32 << 30


def test_a_cache_that_cannot_be_written_is_empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cache is not a folder; remove it, or set TILEWRIGHT_CACHE_DIR"):
        disk_cache.write("kind", "abcd", b"data")
    assert disk_cache.read("kind", "abcd") is None
    assert disk_cache.takes(1)


def test_formats_never_meet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of this package with another cache format that shares the folder neither reads nor removes
    entries of this format, even under the same names.
    """
    disk_cache.write("kind", "abcd", b"of this format")
    assert not (folder / "kind").exists(), "versions without a format in their paths would read this folder"
    with monkeypatch.context() as later:
        later.setattr(disk_cache, "FORMAT", disk_cache.FORMAT + 1)
        later.setattr(disk_cache, "_MAGIC", b"LATERONE")
        assert disk_cache.read("kind", "abcd") is None
        disk_cache.write("kind", "abcd", b"of a later one")
    assert disk_cache.read("kind", "abcd") == b"of this format"
    assert disk_cache.prune(0) > 0, "entries of all formats count"
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_every_damage_is_seen(folder: Path) -> None:
    key = disk_cache.digest("what it is made of")
    disk_cache.write("kind", key, bytes(range(64)))
    path = disk_cache.path_of("kind", key)
    whole = path.read_bytes()
    flipped = [whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :] for k in range(len(whole))]
    for damaged in (*flipped, *(whole[:k] for k in range(len(whole))), whole + b"\0"):
        path.write_bytes(damaged)
        assert disk_cache.read("kind", key) is None
        assert not path.exists(), "a damaged entry is removed"
    other = disk_cache.digest("something else")
    disk_cache.write("kind", other, b"another entry's data")
    path.parent.mkdir(exist_ok=True, parents=True)
    disk_cache.path_of("kind", other).rename(path)
    assert disk_cache.read("kind", key) is None


def test_a_folder_where_an_entry_should_be(folder: Path) -> None:
    path = disk_cache.path_of("kind", "abcd")
    path.mkdir(parents=True)
    disk_cache.write("kind", "abcd", b"data")
    assert disk_cache.read("kind", "abcd") is None
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file is left"


def test_what_a_killed_process_left_aside_is_removed(folder: Path) -> None:
    disk_cache.write("kind", "abcd", b"data")
    old, new = (disk_cache.path_of("kind", "abcd").with_name(f".tmp-{name}") for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half of it")
    os.utime(old, (time.time() - 1e5,) * 2)
    disk_cache.prune()
    assert not old.exists() and new.exists(), "another process may still be writing the new file"
    assert disk_cache.read("kind", "abcd") == b"data"
